"""What a command says when a library ends its process.

LMDB has errors for most of what can be wrong with a file. But where it follows a page that is none, such as one of
zeros, it aborts, or reads what is not there. No Python code runs then: what is to be said is left with compiled code.
"""

from __future__ import annotations

import os

from ledgerbeam.io.native import compiled

_speaks = False


def may_speak() -> None:
    """Take the end of this process: it is a command, and no program of a user. Call it before a ledger is opened."""
    global _speaks  # noqa: PLW0603 - so is the way in which a process ends
    _speaks = True


def last_words(path: str, remedy: str) -> None:
    """Leave what is to be said if the process ends while a ledger is open; its exit status is 1 then.

    Without compiled code, and in a program of a user, the signal ends it as ever.

    Args:
        path: The folder of LMDB's files.
        remedy: What to do if they are damaged.
    """
    if _speaks and compiled is not None:
        compiled.say_before_end(
            f"ledgerbeam: error: ledger {os.path.abspath(path)}: a library ended this command while it was open. If "
            f"that stays so, its data.mdb is damaged: {remedy}\n".encode(errors="surrogateescape")
        )
