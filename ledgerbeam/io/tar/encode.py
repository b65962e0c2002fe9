"""Encode samples as a tar archive. Its bytes depend only on the samples."""

from __future__ import annotations

import contextlib
import tarfile
from collections.abc import Mapping, Sequence

import numpy as np

from ledgerbeam.errors import RecordError
from ledgerbeam.io.index.file import Offsets
from ledgerbeam.io.tar.grouping import Grouping, are_pairs, name_sample
from ledgerbeam.io.tar.headers import BLOCK, padded
from ledgerbeam.io.tar.sample import Sample

__all__ = ["encode_pair", "encode_sample", "encode_tar", "end_marker", "pairs_sentinel"]

_RECORD = 20 * BLOCK


def encode_tar(samples: Sequence[Sample], *, group: Grouping = "auto", pax: bool = True) -> tuple[bytes, Offsets]:
    """Encode samples as a whole archive.

    Members are named `<key>.<extension>`, in the order of the mapping, with mode 0644, owner 0 and time 0. Headers are
    ustar, with a pax header before members whose name is longer than 100 bytes or not ASCII. tarfile, webdataset and
    lhotse can read the archive (lhotse's indexed reader only without pax headers).

    Args:
        samples: Samples of at least one member; the contents are bytes.
        group: How a reader will group the members; samples that it would group differently are refused.
        pax: Whether names that need it get a pax header. If false, they are written to the ustar fields if they fit,
            where lhotse's indexed reader finds them.

    Returns:
        The archive, and the `N + 1` offsets that `build_tar_index` would find in it.

    Raises:
        RecordError: A sample without members, content that is not bytes, a key that is empty, absolute or contains
            `..`, the key of the previous sample, or names from which a reader would get another key or extensions.
    """
    names = [_names(position, sample) for position, sample in enumerate(samples)]
    paired = group == "pairs" or (group == "auto" and are_pairs([name for some in names for name in some]))
    _require_readable(samples, names, "pairs" if paired else group)
    pieces: list[bytes] = []
    offsets = np.zeros(len(samples) + 1, np.uint64)
    position = 0
    for number, sample in enumerate(samples):
        offsets[number] = position
        for name, content in zip(names[number], sample.values(), strict=True):
            member = _member(name, content, pax)
            pieces += member
            position += sum(map(len, member))
    pieces.append(end_marker(position))
    offsets[-1] = pairs_sentinel(position) if paired else position
    return b"".join(pieces), offsets


def encode_sample(sample: Sample, number: int = 0) -> tuple[bytes, list[int]]:
    """Encode one sample of an archive that is written sample by sample and grouped by key.

    Args:
        sample: A sample of at least one member; the contents are bytes.
        number: Its number in the archive, for messages.

    Returns:
        Its members with their headers, and the offset of each member in these bytes.

    Raises:
        RecordError: As in `encode_tar`, except that equal keys of neighbouring samples are not detected.
    """
    names = _names(number, sample)
    _require_readable([sample], [names], "key", first=number)
    pieces: list[bytes] = []
    starts: list[int] = []
    position = 0
    for name, content in zip(names, sample.values(), strict=True):
        member = _member(name, content)
        starts.append(position)
        pieces += member
        position += sum(map(len, member))
    return b"".join(pieces), starts


def encode_pair(sample: Sample, number: int = 0) -> bytes:
    """Encode one sample of an archive of pairs that is written sample by sample, without pax headers where possible.

    Args:
        sample: A sample of two members; the contents are bytes.
        number: Its number in the archive, for messages.

    Raises:
        RecordError: As in `encode_tar`, except that equal keys of neighbouring samples are not detected.
    """
    names = _names(number, sample)
    _require_readable([sample], [names], "pairs", first=number)
    return b"".join(
        piece for name, content in zip(names, sample.values(), strict=True) for piece in _member(name, content, False)
    )


def pairs_sentinel(position: int) -> int:
    """Return the sentinel that lhotse writes for an archive of pairs whose last member ends at `position`."""
    whole = position + len(end_marker(position))
    return min(whole, -(-(position + BLOCK) // _RECORD) * _RECORD)


def end_marker(position: int) -> bytes:
    """Return the zeros after a last member that ends at `position`: 2 blocks, padded to a multiple of 20."""
    end = position + 2 * BLOCK
    return bytes(-(-end // _RECORD) * _RECORD - position)


def _member(name: str, content: bytes, pax: bool = True) -> tuple[bytes, bytes, bytes]:
    return _header(name, len(content), pax), content, bytes(padded(len(content)) - len(content))


def _names(position: int, sample: Sample) -> list[str]:
    if not isinstance(sample, Mapping) or not isinstance(getattr(sample, "key", None), str):
        raise _error(position, f"is {type(sample).__name__}", "expected a Sample with a key")
    if not sample:
        raise _error(position, f"({sample.key!r}) has no member", "expected at least one")
    parts = sample.key.split("/")
    if not parts[0] or not parts[-1] or ".." in parts or "\0" in sample.key:
        raise _error(position, f"has the key {sample.key!r}", "expected a relative path without '..'")
    for extension, content in sample.items():
        if not isinstance(extension, str) or not extension or "/" in extension or "\0" in extension:
            raise _error(position, f"({sample.key!r}) has the extension {extension!r}", "expected one such as 'json'")
        if not isinstance(content, bytes | bytearray | memoryview):
            raise _error(
                position, f"({sample.key!r}) has {type(content).__name__} under {extension!r}", "expected bytes"
            )
    return [f"{sample.key}.{extension}" for extension in sample]


def _require_readable(samples: Sequence[Sample], names: list[list[str]], group: Grouping, *, first: int = 0) -> None:
    """Raise unless a reader groups and names the samples, numbered from `first` on, in the same way."""
    for position in range(1, len(samples)):
        if samples[position].key == samples[position - 1].key:
            raise _error(position, f"has the key of the one before, {samples[position].key!r}", "expected another key")
    rules: list[Grouping] = ["key", "auto"] if group == "auto" else [group]
    for position, sample in enumerate(samples):
        if group == "pairs" and len(sample) != 2:
            raise _error(first + position, f"({sample.key!r}) has {len(sample)} members", "expected a pair")
        for rule in rules:
            named = name_sample(names[position], rule)
            if named != (sample.key, list(sample)):
                raise _error(
                    first + position,
                    f"({sample.key!r}: {', '.join(sample)}) would be read back as {named}",
                    "expected a key without a dot in its last part, unless all samples are pairs",
                )


def _error(position: int, found: str, expected: str) -> RecordError:
    return RecordError(f"output sample {position} {found}; {expected}. Change what the function returns")


def _header(name: str, size: int, pax: bool) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    if not pax:
        with contextlib.suppress(ValueError):  # no room for the name, or for the size
            return info.tobuf(tarfile.USTAR_FORMAT, "utf-8", "surrogateescape")
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
