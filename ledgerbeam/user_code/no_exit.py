"""What user code may not do in the process of the launcher: end it at once, as if all were done."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from ledgerbeam.user_code.forks import user_code

_lock = threading.Lock()
_real: Any = os._exit
_inside = 0


@contextmanager
def no_exit() -> Iterator[None]:
    """Have `os._exit` raise SystemExit while user code runs in this process, as `sys.exit` does.

    It would end the launcher without a message, and with the status 0 if the function says so. Processes that the
    function forks end as ever, see `user_code`. What ends a process from within a C library cannot be held up.
    """
    global _inside  # noqa: PLW0603 - one for the process, whichever of its threads run user code
    with _lock:
        _inside += 1
        os._exit = _ends_only_children(os.getpid())
    try:
        with user_code():
            yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                os._exit = _real


def _ends_only_children(process: int) -> Any:
    def end(status: int) -> NoReturn:
        if os.getpid() != process or not _inside:  # a module may have imported it by name
            _real(status)
        raise SystemExit(f"os._exit({status})")

    return end
