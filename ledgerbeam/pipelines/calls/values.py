"""Parsers of the values of options, from the command line and from Python."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeVar

from ledgerbeam._base.disk import read_size
from ledgerbeam._base.extensions import extension_names
from ledgerbeam._base.names import check_route
from ledgerbeam.errors import UsageError

if TYPE_CHECKING:
    from ledgerbeam.sources.listing import RecordedOutputs

TARS_WITH_METADATA = ("webdataset", "energon", "lit")
"""Formats that are tars with metadata beside them: words of ``--to``, and of ``publish --as``."""

FORMATS_GROUP = "ledgerbeam.formats"  # value of `io.formats.registry.GROUP`, whose import takes too long for help

MAPPED = ("jsonl", "tar", "parquet", "arrow", "text")  # formats that results of functions are written in

CONVERTED = (*MAPPED, "shar", "megatron")  # formats that any records are written in

MOST_PARTS = 10_000  # parts of `split`, each with a folder and open shards

_T = TypeVar("_T")


def given(name: str, value: Any, parse: Callable[[Any], _T]) -> _T:
    """Parse the value of an option. UsageError: it is invalid."""
    try:
        return parse(value)
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"{name}: {error}") from None


class OutputFormats(Collection[str]):
    """Names of output formats: of ledgerbeam, then of other packages (listed on first use), then tars with metadata."""

    def __init__(self, own: Sequence[str], tars: Sequence[str] = ()) -> None:
        self.shown = f"{', '.join(own)} or a format of another package"
        self._own = tuple(own)
        self._tars = tuple(tars)

    def __contains__(self, name: object) -> bool:
        return name in self._own or name in self._tars or name in _formats_of_others()

    def __iter__(self) -> Iterator[str]:
        return iter((*self._own, *_formats_of_others(), *self._tars))

    def __len__(self) -> int:
        return len(self._own) + len(_formats_of_others()) + len(self._tars)


@cache
def _formats_of_others() -> tuple[str, ...]:
    return tuple(extension_names(FORMATS_GROUP))  # reads a file of each package that is installed


def require_format(to: str, own: Sequence[str]) -> None:
    """Raise `UsageError` if records cannot be written in a format."""
    known = OutputFormats(own, TARS_WITH_METADATA)
    if to not in known:
        raise UsageError(f"to: expected one of {', '.join(known)}, found {to!r}")


def path(value: str | PathLike[str]) -> str:
    """Return a path or URL as text."""
    if isinstance(value, str):
        return value
    try:
        found = os.fspath(value)
    except TypeError:
        raise UsageError(f"expected a path or a URL, found {value!r:.80}") from None
    if not isinstance(found, str):
        raise UsageError(f"expected a path or a URL as text, found {found!r:.80}")
    return found


def paths(values: Iterable[str | PathLike[str] | Iterable[str | PathLike[str]]]) -> list[str]:
    """Return paths or URLs as texts; each value may be one path, or a list of paths."""
    found: list[str] = []
    for value in values:
        found += [path(value)] if isinstance(value, (str, PathLike)) else paths(value)
    return found


def named_sources(values: Iterable[Any]) -> list[str | RecordedOutputs]:
    """Return patterns as texts; each value may be one pattern or a list. `RecordedOutputs` are returned unchanged."""
    from ledgerbeam.sources.listing import RecordedOutputs

    found: list[str | RecordedOutputs] = []
    for value in values:
        if isinstance(value, RecordedOutputs):
            found.append(value)
        else:
            found += named_sources(value) if isinstance(value, (list, tuple)) else paths([value])
    return found


def texts(value: str | Iterable[str]) -> list[str]:
    """Return one text, or several, as a list."""
    return [value] if isinstance(value, (str, PathLike)) else [*value]


def parse_size(value: int | str) -> int:
    """Read a number of bytes such as ``1000000``, ``64K``, ``16MiB``; units are powers of 1024."""
    try:
        return read_size(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def parse_count(value: int | str, least: int = 1) -> int:
    """Read a whole number from `least`."""
    text = str(value)
    if isinstance(value, bool) or not text.isdigit() or int(text) < least:
        raise argparse.ArgumentTypeError(f"expected a whole number from {least}, found {value!r}")
    return int(text)


def parse_columns(value: str | Iterable[str]) -> tuple[str, ...]:
    """Return names of columns, sorted and each once. An empty tuple stands for all columns."""
    if not value:
        return ()
    names = value.split(",") if isinstance(value, str) else [*value]
    if not all(isinstance(name, str) and name for name in names):
        raise argparse.ArgumentTypeError(f"expected names of columns such as text,url, found {value!r}")
    return tuple(sorted({*names}))


def parse_devices(value: str | Iterable[str | int]) -> tuple[str, ...]:
    """Return the IDs of devices; an empty tuple stands for no devices. An ID given twice is an error."""
    if not value:
        return ()
    devices = tuple(value.split(",") if isinstance(value, str) else map(str, value))
    if not all(devices) or len({*devices}) < len(devices):
        raise argparse.ArgumentTypeError(f"expected different IDs of devices such as 0,1, found {value!r}")
    return devices


def parse_seconds(value: float | str) -> float:
    """Read seconds from 0.01 to 3,600."""
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = -1.0
    if not 0.01 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"expected seconds from 0.01 to 3600, found {value!r}")
    return seconds


def parse_options(value: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """Read storage options: a mapping, or JSON of one."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = ""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise argparse.ArgumentTypeError("expected a JSON object, found another value (not shown, it may be secret)")
    for name in value:
        if not isinstance(name, str):
            raise argparse.ArgumentTypeError(f"expected names that are texts, found a {type(name).__name__}")
    return dict(value)


def parse_batch(value: int | str | Mapping[str, int] | Sequence[str]) -> dict[str, int]:
    """Read sizes of batches by label: a number, a mapping, or texts ``N`` and ``LABEL=N``.

    The empty label stands for all functions that have no size of their own.
    """
    if isinstance(value, Mapping):
        return {label: parse_count(size) for label, size in value.items()}
    sizes: dict[str, int] = {}
    for word in value if isinstance(value, (list, tuple)) else [value]:
        label, _, size = str(word).rpartition("=")
        if label in sizes:
            raise argparse.ArgumentTypeError(f"expected one size for each function, found {word!r} after another one")
        sizes[label] = parse_count(size)
    return sizes


def parse_reason(value: str | bool | None) -> str | None:
    """Read a shell pattern of reasons; True stands for any reason."""
    return "*" if value is True else value or None


def parse_shares(value: Mapping[str, int] | str | int) -> tuple[tuple[str, int], ...]:
    """Read names and shares of parts: a mapping, ``NAME=SHARE,...``, or a number of equal parts."""
    found: list[tuple[str, str | int]] = []
    if isinstance(value, Mapping):
        found = [*value.items()]
    elif str(value).isdigit():
        number = parse_count(value)
        if number > MOST_PARTS:
            raise argparse.ArgumentTypeError(f"expected at most {MOST_PARTS:,} parts, found {number:,}")
        found = [(f"part-{part:0{len(str(number - 1))}d}", 1) for part in range(number)]
    else:
        for word in str(value).split(","):
            name, equals, share = word.partition("=")
            if not name or not equals:
                raise argparse.ArgumentTypeError(f"expected NAME=SHARE,... such as train=98,val=2, found {value!r}")
            found.append((name, share))
    if len({name for name, _ in found}) < len(found) or not found:
        raise argparse.ArgumentTypeError(f"expected different names of parts, found {value!r}")
    for name, _ in found:
        try:
            check_route(name)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
    return tuple((name, parse_count(share)) for name, share in found)


def parse_parts(value: Mapping[str, str] | Sequence[str]) -> list[tuple[str, str]]:
    """Read names of parts and the patterns of their shards: a mapping, or ``NAME=PATTERN`` once or several times."""
    if isinstance(value, Mapping):
        return [*value.items()]
    found = []
    for word in texts(value):
        name, _, pattern = word.partition("=")
        if not name or not pattern:
            raise argparse.ArgumentTypeError(f"expected NAME=PATTERN such as 'val=b*', found {word!r}")
        found.append((name, pattern))
    return found
