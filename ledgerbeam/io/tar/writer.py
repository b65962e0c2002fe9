"""Write samples as a tar archive, one by one or at once, with the index of the archive.

The bytes depend only on the samples.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import tarfile
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

from ledgerbeam._base.lazy import np
from ledgerbeam.errors import RecordError
from ledgerbeam.io.index.file import Offsets, index_beside, write_index
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.publish import publish
from ledgerbeam.io.storage.urls import canonical_url
from ledgerbeam.io.tar.grouping import Grouping, are_only_pairs, name_sample
from ledgerbeam.io.tar.headers import BLOCK, padded
from ledgerbeam.io.tar.sample import Sample, take_sample

_RECORD = 20 * BLOCK


def encode_tar(samples: Sequence[Sample], *, group: Grouping = "auto", pax: bool = True) -> tuple[bytes, Offsets]:
    """Return samples as a whole archive, and the `N + 1` offsets that `build_tar_index` would find in it.

    Members are named `<key>.<extension>`, in the order of the mapping, with mode 0644, owner 0 and time 0. Headers are
    ustar, with a pax header before members whose name is longer than 100 bytes or not ASCII. tarfile, webdataset and
    lhotse can read the archive (lhotse's indexed reader only without pax headers).

    Args:
        samples: Samples of at least one member, whose contents are bytes; or `TarSamples`, which are already encoded.
        group: The rule by which a reader will group the members.
        pax: Whether names that need it get a pax header. If false, they are written to the ustar fields if they fit,
            where lhotse's indexed reader finds them.

    Raises:
        RecordError: A sample has no members, a content is not bytes, or a key is empty, absolute, contains `..` or
            equals the key of the previous sample. Or a reader would find other samples, keys or extensions.
    """
    encoded = encoded_samples(samples, pax=pax)
    return encoded.data, encoded.offsets(group)


def encoded_samples(samples: Sequence[Sample], *, pax: bool = True) -> TarSamples:
    """Return samples encoded as an archive; see `encode_tar`."""
    if isinstance(samples, TarSamples):
        return samples
    builder = TarBuilder(pax=pax)
    for sample in samples:
        builder.add(sample)
    return builder.finish()


class TarSamples(Sequence[Sample]):
    """Samples that are encoded as a whole archive. A sample is decoded each time that it is accessed."""

    def __init__(self, data: bytes, starts: Offsets, outlines: list[_Outline]) -> None:
        self.data = data
        self.starts = starts  # the first header of each sample, and the end of the last member
        self.outlines = outlines

    def offsets(self, group: Grouping) -> Offsets:
        """Return the `N + 1` offsets that `build_tar_index` would find.

        RecordError: a reader that groups the members in this way would find other samples; see `encode_tar`.
        """
        names = [[f"{key}.{extension}" for extension in extensions] for key, extensions in self.outlines]
        paired = group == "pairs" or (group == "auto" and are_only_pairs([name for some in names for name in some]))
        _require_readable(self.outlines, names, "pairs" if paired else group)
        offsets = self.starts.copy()
        if paired:
            offsets[-1] = pairs_sentinel(int(offsets[-1]))
        return offsets

    def __len__(self) -> int:
        return len(self.outlines)

    def __getitem__(self, item: Any) -> Any:
        found = range(len(self))[item]
        if not isinstance(found, int):
            return [self[number] for number in found]
        start, stop = self.starts[found : found + 2].tolist()
        key, extensions = self.outlines[found]
        rule: Grouping = "pairs" if len(extensions) == 2 else "key"
        taken = take_sample(self.data, 0, start, stop, url="the samples", group=rule).sample
        return Sample(key, zip(extensions, taken.values(), strict=True))


class TarBuilder:
    """Encodes samples one after the other as an archive, without keeping them; see `encode_tar` for `pax`."""

    def __init__(self, *, pax: bool = True) -> None:
        self._pax = pax
        self._data = io.BytesIO()
        self._starts = array("Q", [0])
        self._outlines: list[_Outline] = []

    def add(self, sample: Sample) -> None:
        """Add a sample. RecordError: the sample cannot be written to an archive; then nothing is added."""
        names = _names(len(self._outlines), sample)
        for name, content in zip(names, sample.values(), strict=True):
            self._data.writelines(_member(name, content, self._pax))
        self._starts.append(self._data.tell())
        self._outlines.append(_Outline(sample.key, tuple(sample)))

    def finish(self) -> TarSamples:
        """End the archive, and return it."""
        self._data.write(end_marker(self._starts[-1]))
        return TarSamples(self._data.getvalue(), np.array(self._starts, np.uint64), self._outlines)


class _Outline(NamedTuple):
    key: str
    extensions: tuple[str, ...]


def _encode_members(sample: Sample, number: int, group: Grouping, *, pax: bool = True) -> list[bytes]:
    """Return the members of one sample as bytes. RecordError as in `encode_tar`; `number` is for its message."""
    names = _names(number, sample)
    _require_readable([_Outline(sample.key, tuple(sample))], [names], group, first=number)
    return [b"".join(_member(name, content, pax)) for name, content in zip(names, sample.values(), strict=True)]


def encode_pair(sample: Sample, number: int = 0) -> bytes:
    """Encode one sample as a pair of members, without pax headers where possible. `number` is for messages."""
    return b"".join(_encode_members(sample, number, "pairs", pax=False))


def pairs_sentinel(position: int) -> int:
    """Return the sentinel that lhotse writes for an archive of pairs whose last member ends at `position`."""
    whole = position + len(end_marker(position))
    return min(whole, -(-(position + BLOCK) // _RECORD) * _RECORD)


def end_marker(position: int) -> bytes:
    """Return the zeros after a last member that ends at `position`: 2 blocks, padded to a multiple of 20 blocks."""
    end = position + 2 * BLOCK
    return bytes(-(-end // _RECORD) * _RECORD - position)


def _member(name: str, content: bytes, pax: bool) -> tuple[bytes, bytes, bytes]:
    info, header = tarfile.TarInfo(name), b""
    info.size = len(content)
    if not pax:
        with contextlib.suppress(ValueError):  # no room for the name, or for the size
            header = info.tobuf(tarfile.USTAR_FORMAT, "utf-8", "surrogateescape")
    header = header or info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    return header, content, bytes(padded(len(content)) - len(content))


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


def _require_readable(outlines: Sequence[_Outline], names: list[list[str]], group: Grouping, *, first: int = 0) -> None:
    """Raise RecordError unless a reader finds the same samples. They are numbered from `first` on."""
    for position in range(1, len(outlines)):
        if outlines[position].key == outlines[position - 1].key:
            found = f"has the key of the sample before, {outlines[position].key!r}, and would be read as a part of it"
            raise _error(position, found, "expected another key", "Give each sample its own key, in a function")
    rules: list[Grouping] = ["key", "auto"] if group == "auto" else [group]
    for position, (key, extensions) in enumerate(outlines):
        if group == "pairs" and len(extensions) != 2:
            raise _error(first + position, f"({key!r}) has {len(extensions)} members", "expected a pair")
        for rule in rules:
            named = name_sample(names[position], rule)
            if named == (key, [extension.lower() for extension in extensions]) != (key, list(extensions)):
                raise _error(
                    first + position,
                    f"({key!r}) has the extensions {', '.join(extensions)}",
                    "expected lower case, since webdataset reads them so",
                )
            if named != (key, list(extensions)):
                raise _error(
                    first + position,
                    f"({key!r}: {', '.join(extensions)}) would be read back as {named}",
                    "expected a key without a dot in its last part: webdataset reads the text after it as extension",
                )


def _error(position: int, found: str, expected: str, remedy: str = "Change what the function returns") -> RecordError:
    return RecordError(f"output sample {position} {found}; {expected}. {remedy}")


class TarWriter:
    """Writes one archive, grouped by key, and `<url>.idx`.

    Use it as a context manager. At the end of the `with` block, the archive is published, then the index. If the block
    raises, neither is. The bytes equal those of `encode_tar`. Memory: one sample, and 8 bytes for each sample written.
    """

    def __init__(self, url: str, options: Options | None = None, *, md5: bool = False) -> None:
        self.url = canonical_url(url)
        self.count = 0  # samples so far
        self.size = 0  # bytes so far; at the end the size of the archive
        self.md5: str | None = None  # of the complete archive in hexadecimal, if requested
        self._options = options
        self._digest = hashlib.md5(usedforsecurity=False) if md5 else None
        self._starts = array("Q")
        self._key: str | None = None
        self._stack = contextlib.ExitStack()
        self._file = self._stack.enter_context(publish(self.url, options))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.abandon()
            return
        with self._stack:
            end = self.size
            self._write(end_marker(end))
        write_index(index_beside(self.url), np.array([*self._starts, end], np.uint64), self._options)
        self.md5 = None if self._digest is None else self._digest.hexdigest()

    def abandon(self) -> None:
        """Remove the partial archive. Nothing is published."""
        error = RuntimeError(f"{self.url}: abandoned")
        self._stack.__exit__(RuntimeError, error, None)  # so that `publish` removes the partial file

    def add(self, sample: Sample) -> list[int]:
        """Write a sample, and return the offset of the header of each member.

        Raises:
            RecordError: Readers would group or name the sample differently (see `encode_tar`), or it has the key of
                the previous sample. Nothing of the sample was written.
            DiskFullError: No space is left; also StorageError.
        """
        try:
            members = _encode_members(sample, self.count, "key")
        except RecordError as error:
            raise RecordError(f"{self.url}: {error}") from error
        if sample.key == self._key:
            raise RecordError(
                f"{self.url}: sample {self.count} ({sample.key!r}) has the key of the sample before; use another"
            )
        starts = []
        for member in members:
            starts.append(self.size)
            self._write(member)
        self._starts.append(starts[0])
        self.count += 1
        self._key = sample.key
        return starts

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self.size += len(data)
        if self._digest is not None:
            self._digest.update(data)
