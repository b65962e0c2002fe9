"""Write Shar folders: shards of cuts and shards of their fields, each with its index in the same pass.

Cuts of lhotse are converted with the methods that lhotse's own writer calls.
"""

from __future__ import annotations

import contextlib
import gzip
from array import array
from collections.abc import Mapping
from typing import Any, BinaryIO, Self

import numpy as np
import orjson

from ledgerbeam.errors import RecordError, SourceNotFoundError, UsageError
from ledgerbeam.io.datasets.audio import AUDIO_FORMATS, Audio
from ledgerbeam.io.datasets.shar.payloads import FieldForm, Frames, kind_of, with_payloads
from ledgerbeam.io.datasets.shar.reader import CUTS, FieldKind, check_fields, split_cut
from ledgerbeam.io.index.file import index_beside, write_index
from ledgerbeam.io.json_values import dumps
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.publish import publish
from ledgerbeam.io.storage.stat import stat
from ledgerbeam.io.storage.urls import canonical_url
from ledgerbeam.io.tar.writer import encode_pair, end_marker, pairs_sentinel

_TYPES = ("MonoCut", "MultiCut")


def _cut_mapping(cut: Any, forms: Mapping[str, FieldForm], number: int) -> Any:
    """Return a cut of lhotse as a mapping; return other values unchanged.

    Audio and arrays of its fields are trimmed to the cut, so the new cut starts at 0, as in lhotse's writer.
    """
    if isinstance(cut, Mapping) or not callable(getattr(cut, "to_dict", None)):
        return cut
    row = dict(cut.to_dict())
    place = f"cut {number} ({row.get('id')!r})"
    if row.get("type") not in _TYPES:
        raise RecordError(f"{place}: expected a {' or '.join(_TYPES)}, found {type(cut).__name__}; split it into these")
    custom = dict(row.pop("custom", None) or {})
    for field, form in forms.items():
        if kind_of(form) == "jsonl":
            continue
        manifest = getattr(cut, "recording", None) if field == "recording" else (cut.custom or {}).get(field)
        row.pop(field, None)
        custom.pop(field, None)
        if manifest is not None:
            row[field] = _payload(cut, field, form, manifest, place)
    return {**row, "start": 0, **({"custom": custom} if custom else {})}


def _payload(cut: Any, field: str, form: FieldForm, manifest: Any, place: str) -> Any:
    if form in AUDIO_FORMATS:
        samples = cut.load_audio() if field == "recording" else cut.load_custom(field)
        return Audio(samples, manifest.sampling_rate)
    if form != "numpy":
        raise RecordError(f"{place}: field {field!r}: expected an audio format or 'numpy', found {form!r}")
    values = cut.load_custom(field)
    shift = getattr(manifest, "frame_shift", None)
    return values if shift is None else Frames(values, shift, manifest.temporal_dim)


SHARD_SIZE = 1000  # default number of cuts in a shard, as in lhotse
_LEVEL = 6  # compression level of gzip, the default of its command line


class SharWriter:
    """Writes cuts to `cuts.000000.jsonl` and their fields to `<field>.000000.tar` or `.jsonl`, each with its index.

    Use it as a context manager, or call `close`. A shard appears when it is full, the last one when the writer is
    closed. Fields appear first, then their indexes, cuts last: if the cuts of a shard exist, its other files exist too.
    If the body raises, or the writer is never closed, the full shards stay, and the unfinished one is not written.
    Memory: one cut, and 8 bytes for each cut and field of the current shard.

    Args:
        folder: A path, or a URL of an object store.
        fields: Form of each field. `tar`: payloads with a manifest each. `jsonl`: JSON values. `wav`, `flac`, `mp3`,
            `opus`: audio as arrays, encoded in this format. `numpy`: arrays. The writer makes the manifests of arrays.
        shard_size: Number of cuts in a shard.
        start: Number of the first shard.
        compress_jsonl: Whether to write JSONL as `.jsonl.gz`, without an index. Such a folder can only be streamed.
        create_index: Whether each uncompressed shard gets an index.

    Attributes:
        url: The canonical URL of the folder.
        count: Number of cuts written.

    Raises:
        UsageError: A field has an invalid name, or a number is out of range.
    """

    def __init__(
        self,
        folder: str,
        fields: Mapping[str, FieldForm] | None = None,
        options: Options | None = None,
        *,
        shard_size: int = SHARD_SIZE,
        start: int = 0,
        compress_jsonl: bool = False,
        create_index: bool = True,
    ) -> None:
        self.url = canonical_url(folder).rstrip("/")
        self.count = 0
        self._forms = dict(fields or {})
        self._fields = {field: kind_of(form) for field, form in self._forms.items()}
        check_fields(self._fields, self.url)
        if shard_size < 1 or start < 0:
            raise UsageError(
                f"{self.url}: expected shard_size of at least 1 and start of at least 0, found "
                f"shard_size={shard_size}, start={start}"
            )
        self._options = options
        self._shard_size = shard_size
        self._number = start
        self._suffixes = {"tar": ".tar", "jsonl": ".jsonl.gz" if compress_jsonl else ".jsonl"}
        self._create_index = create_index
        self._open: _Shard | None = None
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._is_closed = True
        self._end(complete=error is None)

    def close(self) -> None:
        """Write the remaining cuts as the last shard. A second call does nothing."""
        self.__exit__(None, None, None)

    def _end(self, *, complete: bool) -> None:
        shard, self._open = self._open, None
        if shard is not None:
            shard.end(complete=complete)

    def write(self, cut: Any) -> None:
        """Write a cut with its fields.

        Args:
            cut: A `MonoCut` or `MultiCut` of lhotse, whose fields are loaded, or a mapping as `SharReader` returns it.
                A `tar` field is a mapping of the payload's extension to its bytes, and `json` to its manifest, as an
                object or as bytes; a field may be absent. An audio field is an `Audio`, a pair of samples and sampling
                rate, or the bytes of a WAV or FLAC file. A `numpy` field is an array or `Frames`. Both may also have
                the form of a `tar` field. A cut with audio and neither `type` nor `duration` gets the length of its
                audio.

        Raises:
            RecordError: The cut has no ID, a field has another kind, or JSON cannot hold a value. Nothing of the cut
                was written, and the writer can still be used.
            DiskFullError: No space is left; also StorageError.
            UsageError: The writer is closed, or a plain shard has the name of a compressed one.
        """
        if self._is_closed:
            raise UsageError(
                f"{self.url}: this writer is closed; write more cuts with SharWriter(..., start={self._number})"
            )
        try:
            taken = _cut_mapping(cut, self._forms, self.count)
            row, parts = split_cut(with_payloads(taken, self._forms, self.count), self._fields, self.count)
            pieces = {
                field: encode_pair(parts[field], self.count) if kind == "tar" else self._line(parts[field])
                for field, kind in self._fields.items()
            }
            pieces[CUTS] = self._line(row)
        except RecordError as error:
            raise RecordError(f"{self.url}: {error}") from error
        if self._open is not None and self._open.count >= self._shard_size:
            self._end(complete=True)
        if self._open is None:
            kinds: dict[str, FieldKind] = {**self._fields, CUTS: "jsonl"}
            places = {
                field: f"{self.url}/{field}.{self._number:06d}{self._suffixes[kind]}" for field, kind in kinds.items()
            }
            self._open = _Shard(places, self._options, create_index=self._create_index)
            self._number += 1
        self._open.add(pieces)
        self.count += 1

    def _line(self, row: Mapping[str, Any]) -> bytes:
        try:
            return dumps(row, orjson.OPT_APPEND_NEWLINE, None)  # None: bytes are refused, since payloads are fields
        except orjson.JSONEncodeError as error:
            raise RecordError(
                f"cut {self.count}: it cannot be written as JSON: {error}; add values with payloads to `fields`"
            ) from error


class _Shard:
    """The files of the current shard by field, the cuts last."""

    def __init__(self, places: Mapping[str, str], options: Options | None, *, create_index: bool) -> None:
        self.count = 0
        self._options = options
        self._create_index = create_index
        self._stacks: dict[str, contextlib.ExitStack] = {}
        self._files: dict[str, BinaryIO] = {}
        self._places = places
        self._starts = {field: array("Q", [0]) for field in places}
        try:
            for field, url in places.items():
                if url.endswith(".gz"):
                    _require_no_plain(url, options)
                self._stacks[field] = contextlib.ExitStack()
                self._files[field] = self._stacks[field].enter_context(publish(url, options))
                if url.endswith(".gz"):
                    file = gzip.GzipFile("", "wb", _LEVEL, self._files[field], mtime=0)  # equal bytes in each run
                    self._files[field] = self._stacks[field].enter_context(file)  # type: ignore[assignment]
        except BaseException:
            self.end(complete=False)
            raise

    def add(self, pieces: Mapping[str, bytes]) -> None:
        for field, starts in self._starts.items():
            self._files[field].write(pieces[field])
            starts.append(starts[-1] + len(pieces[field]))
        self.count += 1

    def end(self, *, complete: bool) -> None:
        """If `complete`, publish the files, each followed by its index; else discard their content."""
        try:
            for field in self._places if complete else ():
                self._publish(field)
        finally:
            abandoned = RuntimeError("abandoned")
            for stack in self._stacks.values():  # those of published files are empty
                stack.__exit__(RuntimeError, abandoned, None)

    def _publish(self, field: str) -> None:
        url, starts = self._places[field], self._starts[field]
        with self._stacks[field]:
            if url.endswith(".tar"):
                end = starts[-1]
                self._files[field].write(end_marker(end))
                starts[-1] = pairs_sentinel(end)
        if self._create_index and not url.endswith(".gz"):
            write_index(index_beside(url), np.array(starts, np.uint64), self._options)


def _require_no_plain(url: str, options: Options | None) -> None:
    """Refuse to write a compressed shard beside a plain one of the same name, which readers prefer."""
    plain = url.removesuffix(".gz")
    try:
        stat(plain, options)
    except SourceNotFoundError:
        return
    raise UsageError(f"{plain}: this plain shard would hide {url} from readers; remove it and its index")
