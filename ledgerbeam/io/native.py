"""The compiled inner loops, where they are installed.

`_native.c` holds the few loops that interpreted Python is too slow for. It is built where there is a C compiler when
the package is installed. Without it, or if the environment variable `LEDGERBEAM_PURE_PYTHON` is set and not empty,
Python does the same work more slowly, with the same results and the same errors.

The compiled functions handle only the common case. Before any other case, such as a failed system call, they stop. The
Python code handles these cases and raises all errors.

LMDB reports most damage of a file as an error. But an invalid page, such as a page of zeros, can make LMDB abort the
process or read invalid memory. No Python code runs then, so compiled code prints the message of the crash.
"""

from __future__ import annotations

import importlib
import os
from typing import Any, Protocol, TypeAlias, TypeVar, cast

from ledgerbeam._base.lazy import NDArray, np

_Bytes: TypeAlias = "NDArray[np.uint8]"
_Numbers: TypeAlias = "NDArray[np.uint64]"
_Rows: TypeAlias = "NDArray[np.int64]"
_Array: TypeAlias = "NDArray[Any]"
_Sample = TypeVar("_Sample", bound=dict[str, bytes])


class Compiled(Protocol):
    """The functions of the compiled module.

    Arrays are contiguous, with 8-byte numbers. They are not kept after a call, and must not change during it.
    """

    def scan_file_headers(self, descriptor: int, position: int, peek: int, headers: _Bytes, sizes: _Numbers, /) -> int:
        """Read tar headers of a file from `position` on. The size of a payload gives the position of the next header.

        Each read has `peek` bytes, 512 to 4096: over 512 bytes may include the next header. `headers` is filled with
        512 bytes for each header, `sizes` with the size of each payload; the shorter one limits their number. Return
        the number of plain headers with a correct checksum. If it is less than the limit, the next one is not plain, is
        damaged, or cannot be read.
        """

    def scan_bytes_headers(self, data: bytes, offset: int, headers: _Bytes, sizes: _Numbers, /) -> int:
        """Read tar headers as `scan_file_headers` does, in bytes from `offset` on, up to the last complete header."""

    def group_names(self, names: list[str], regular: NDArray[np.bool_], starts: NDArray[np.int64], /) -> int | None:
        """Find the start of each sample, as `grouping.group_key` does; `regular` is true for members that are files.

        `starts`, as long as `names`, is filled with the number of each sample's first member. Return the number of
        samples; None if Python must do it: over 32 members, a repeated name, an extension not in lower-case ASCII.
        """

    def read_samples(
        self, descriptor: int, bounds: _Numbers, most: int, by_stem: bool, kind: type[_Sample], /
    ) -> list[_Sample]:
        """Read samples of a tar archive, and check that each one is whole; perhaps fewer than requested.

        `bounds` has three numbers for each sample: the first byte of the previous sample, its own first byte, and its
        end, where the next header is. `kind` is the class `Sample`, a dict with a `key`. With `by_stem`, names are
        split at the last dot if a sample has two members with equal names up to this dot, else at the first dot.

        Reading ends when the samples have `most` bytes. It also ends before a sample that Python must read: with more
        than 8 MiB or 32 members; or if its members, the members of the previous sample, or the member after it have the
        wrong key, cannot be read, or are not plain files.
        """

    def find_newlines(
        self, descriptor: int, start: int, stop: int, scratch: memoryview, ends: _Numbers, /
    ) -> tuple[int, int]:
        """Find the newlines of a file in `[start, stop)`, read in blocks to `scratch`.

        `ends` is filled with the offset just after each newline. Return their number, and the end of the searched part.
        This end is less than `stop` if `ends` is full, or the file ends or cannot be read.
        """

    def read_lines(
        self, descriptor: int, starts: _Numbers, stops: _Numbers, first: int, most: int, /
    ) -> tuple[list[bytes], bool]:
        """Read the lines `[starts[i], stops[i])` of a file from `i = first` on; check that a newline precedes each.

        Return the lines, each with the newline before it unless it starts at byte 0, and whether they may have integers
        beyond 64 bits. Reading ends at `most` bytes, or before a range that is not one line or has more than 8 MiB.
        """

    def stat_files(self, folder: str, names: list[str], /) -> tuple[list[int], list[str]]:
        """Return sizes in bytes of files, and modification times in nanoseconds as decimal text.

        The lists end before the first name that is not a file or cannot be described.
        """

    def holds_wide(self, data: bytes, /) -> bool:
        """Return whether JSON text seems to have an integer beyond 64 bits; see `json_values.holds_wide`."""

    def holds_null(self, line: bytes, /) -> bool:
        """Return whether bytes contain the word `null`."""

    def say_before_end(self, words: bytes, /) -> None:
        """Set a message for SIGABRT, SIGBUS and SIGSEGV: the process writes it to standard error and exits with 1.

        At most 4,096 bytes are written. The message replaces an earlier one. `OSError`: the system does not allow it.
        """

    def find_fields(self, data: bytes, starts: _Rows, stops: _Rows, name: bytes, bounds: _Rows, /) -> tuple[int, bool]:
        """Find a field of the objects in lines of JSON, `data[start:stop]`, by its name in UTF-8.

        `bounds` is filled with the start and the end of each value in `data`; with zeros if the line has no such field.
        Return the number of lines before the first line that Python must handle, and whether all values are strings
        without escapes.
        """

    def join_rows(
        self, buffers: tuple[bytes, ...], starts: _Rows, lengths: _Rows, before: bytes, after: bytes, /
    ) -> bytes:
        """Return the rows of a `ByteRows` one after the other, each between the bytes `before` and `after`.

        `ValueError`: a row is outside of its buffer.
        """

    def copy_tokens(
        self, tokens: _Array, into: _Array, kinds: tuple[int, int], ranges: _Rows, places: _Rows, /
    ) -> bool:
        """Copy ranges of an array of tokens to places of another array.

        `kinds` are those of both arrays: the size of a number in bytes, negative for signed numbers. `ranges` has the
        starts of all ranges, then their ends. Return False if Python must do it: numbers of other kinds, or a range
        outside of an array; the ranges before it are copied.
        """


def _load() -> Compiled | None:
    if os.environ.get("LEDGERBEAM_PURE_PYTHON"):
        return None
    try:
        return cast(Compiled, importlib.import_module("ledgerbeam.io._native"))
    except ImportError:  # not built
        return None


compiled: Compiled | None = _load()  # None if Python does its work


_is_enabled = False


def enable_crash_message() -> None:
    """Allow crash messages in this process, which runs a command. Call this before a ledger is opened."""
    global _is_enabled  # noqa: PLW0603 - signal handlers are global too
    _is_enabled = True


def set_crash_message(path: str, remedy: str) -> None:
    """Set the message for a crash while a ledger is open in the folder `path`. The exit status is 1 then.

    Without compiled code, and in a program of a user, the signal ends the process without a message.
    """
    if _is_enabled and compiled is not None:
        compiled.say_before_end(
            f"ledgerbeam: error: ledger {os.path.abspath(path)}: a library crashed while the ledger was open. If this "
            f"happens again, its data.mdb is damaged: {remedy}\n".encode(errors="surrogateescape")
        )
