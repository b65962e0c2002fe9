"""A module that starts a thread at its import, on which its function depends."""

from __future__ import annotations

import queue
import threading
from typing import Any

_asked: queue.Queue[Any] = queue.Queue()
_answers: queue.Queue[Any] = queue.Queue()


def _answer() -> None:
    while True:
        _answers.put(_asked.get())


threading.Thread(target=_answer, daemon=True).start()


def answered(record: dict[str, Any]) -> Any:
    _asked.put(record)
    return _answers.get()
