"""The compiled inner loops, where they are installed.

`_native.c` holds the few loops that interpreted Python is too slow for. It is built where there is a C compiler when
the package is installed; without it, or with the environment variable `LEDGERBEAM_PURE_PYTHON` set to anything but the
empty string, the same work is done in Python, with the same results and the same errors, only slower.

The compiled functions do the common case and stop before anything else, a failed system call included, so that all that
is unusual is met, and all errors are worded, in one place: the Python code.
"""

from __future__ import annotations

import importlib
import os
from typing import Protocol, TypeAlias, TypeVar, cast

from ledgerbeam._base.lazy import NDArray, np

_Bytes: TypeAlias = "NDArray[np.uint8]"
_Numbers: TypeAlias = "NDArray[np.uint64]"
_Sample = TypeVar("_Sample", bound=dict[str, bytes])


class Compiled(Protocol):
    """What the compiled module offers. Arrays are contiguous, numbers 8 bytes; none is held beyond the call."""

    def scan_file_headers(self, descriptor: int, position: int, peek: int, headers: _Bytes, sizes: _Numbers, /) -> int:
        """Read tar headers of a file from `position` on, each payload's size leading to the next.

        Args:
            descriptor: The open file.
            position: Where the first header is.
            peek: Bytes of each read, 512 to 4096: more than 512 may hold the next header too.
            headers: Filled with 512 bytes for each header.
            sizes: Filled with the size of each payload; the shorter of the two says how many there are at most.

        Returns:
            How many plain headers with the right checksum came first. Fewer than there is room for: the next one is not
            plain, or damaged, or cannot be read.
        """

    def scan_bytes_headers(self, data: bytes, offset: int, headers: _Bytes, sizes: _Numbers, /) -> int:
        """Do the same in bytes, from an offset on; end where they do not hold the next header whole."""

    def group_names(self, names: list[str], regular: NDArray[np.bool_], starts: NDArray[np.int64], /) -> int | None:
        """Find where samples begin, as `grouping.group_key` does.

        Args:
            names: The names of the members of an archive.
            regular: Which of them are files.
            starts: Filled with the number of each sample's first member; as long as `names`.

        Returns:
            How many samples there are; None when a name is hidden, begins with `__`, is not UTF-8 or comes twice, or a
            sample is large.
        """

    def read_samples(
        self, descriptor: int, bounds: _Numbers, most: int, by_stem: bool, kind: type[_Sample], /
    ) -> list[_Sample]:
        """Read samples of a tar archive, each checked to be one whole sample of its key.

        Args:
            descriptor: The open file.
            bounds: Of each the first byte of the sample before it, its own, and its end, where the next header is.
            most: Ends when the samples have so many bytes or more.
            by_stem: Whether the names of two members of one stem are split at their last dot, not at their first.
            kind: What is made: a dict of extension to content, with a `key`.

        Returns:
            The samples: fewer than there are, perhaps none, before one of more than 8 MiB or 32 members, and before one
            of which any member, or of the one before, or the first one behind, is not a plain file whose name has a
            key, or cannot be read, or does not belong there.
        """

    def find_newlines(
        self, descriptor: int, start: int, stop: int, scratch: memoryview, ends: _Numbers, /
    ) -> tuple[int, int]:
        """Find the newlines of a file in `[start, stop)`.

        Args:
            descriptor: The open file.
            start: First byte.
            stop: End, exclusive.
            scratch: Where blocks are read to.
            ends: Filled with the offset just after each newline.

        Returns:
            How many were found, and how far the range is done: less than `stop` when there was no more room in `ends`,
            or when the file ends there or cannot be read.
        """

    def read_lines(
        self, descriptor: int, starts: _Numbers, stops: _Numbers, first: int, most: int, /
    ) -> tuple[list[bytes], bool]:
        """Read the lines `[start, stop)` of a file, each with the newline before it, if it is not the first.

        Args:
            descriptor: The open file.
            starts: First byte of each.
            stops: End of each.
            first: Number of the line to begin with.
            most: Ends when the lines have so many bytes or more.

        Returns:
            The lines: fewer than there are, perhaps none, before one that does not begin after a newline or whose only
            newline is not its last byte, and before one of more than 8 MiB: damaged offsets can claim any size.
        """

    def stat_files(self, folder: str, names: list[str], /) -> tuple[list[int], list[str]]:
        """Describe files of a folder.

        Returns:
            Their sizes in bytes and times of modification in nanoseconds as decimal text: fewer than asked, perhaps
            none, before one that is no file or cannot be described.
        """

    def holds_wide(self, data: bytes, /) -> bool:
        """Return whether JSON text has what looks like an integer beyond 64 bits; see `json_values.holds_wide`."""

    def holds_null(self, line: bytes, /) -> bool:
        """Return whether bytes have the word `null` in them."""

    def say_before_end(self, words: bytes, /) -> None:
        """Have the process write words to standard error and exit with 1 where SIGABRT, SIGBUS or SIGSEGV would end it.

        Args:
            words: At most 4,096 bytes of them are written. They replace those of an earlier call.

        Raises:
            OSError: The system does not allow it.
        """


def _load() -> Compiled | None:
    if os.environ.get("LEDGERBEAM_PURE_PYTHON"):
        return None
    try:
        return cast(Compiled, importlib.import_module("ledgerbeam.io._native"))
    except ImportError:  # not built
        return None


compiled: Compiled | None = _load()
"""The compiled module, None where Python does its work."""


_is_enabled = False


def enable_crash_message() -> None:
    """Take the end of this process: it is a command, and no program of a user. Call it before a ledger is opened."""
    global _is_enabled  # noqa: PLW0603 - so is the way in which a process ends
    _is_enabled = True


def set_crash_message(path: str, remedy: str) -> None:
    """Leave what is to be said if the process ends while a ledger is open; its exit status is 1 then.

    Without compiled code, and in a program of a user, the signal ends it as ever.

    Args:
        path: The folder of LMDB's files.
        remedy: What to do if they are damaged.
    """
    if _is_enabled and compiled is not None:
        compiled.say_before_end(
            f"ledgerbeam: error: ledger {os.path.abspath(path)}: a library ended this command while it was open. If "
            f"that stays so, its data.mdb is damaged: {remedy}\n".encode(errors="surrogateescape")
        )
