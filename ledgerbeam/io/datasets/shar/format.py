"""Shar as a format: the shards that jobs write, and folders that are opened as one source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from ledgerbeam.io.datasets.shar.cuts import VERSION, field_kinds, sample_cut
from ledgerbeam.io.datasets.shar.reader import CUTS, SharReader, find_shar, split_cut, stream_shar
from ledgerbeam.io.datasets.shar.samples import holds_shards
from ledgerbeam.io.formats.format import Format, Reader, ShardFile
from ledgerbeam.io.index.file import index_bytes
from ledgerbeam.io.lines.jsonl_reader import encode_jsonl
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.tar.format import TarFormat
from ledgerbeam.io.tar.sample import Sample
from ledgerbeam.io.tar.writer import encode_tar


@dataclass(frozen=True)
class SharFormat:
    """Shards of a Shar dataset: fields first, then the cuts, each with its index.

    Attributes:
        fields: Name of each field, and the extension of its member.
    """

    fields: tuple[tuple[str, str], ...] = ()

    def parameters(self) -> dict[str, Any]:
        """Return the parameters of a job that shape its outputs."""
        return {"fields": ",".join("=".join(field) for field in self.fields), "cuts": VERSION}

    def encode(self, records: Sequence[Any]) -> list[ShardFile]:
        """Return the files of a shard.

        Args:
            records: Samples, or cuts in the form that `SharWriter` takes.
        """
        fields = dict(self.fields)
        kinds = field_kinds(fields)
        rows: dict[str, list[Any]] = {field: [] for field in (*kinds, CUTS)}
        for number, record in enumerate(records):
            cut = sample_cut(record, fields) if isinstance(record, Sample) else record
            row, parts = split_cut(cut, kinds, number)
            for field, part in {**parts, CUTS: row}.items():
                rows[field].append(part)
        return [
            file for field, values in rows.items() for file in _indexed(f".{field}", kinds.get(field, "jsonl"), values)
        ]


def _indexed(ending: str, kind: str, values: Sequence[Any]) -> list[ShardFile]:
    data, offsets = encode_tar(values, group="pairs", pax=False) if kind == "tar" else encode_jsonl(values)
    ending = f"{ending}.{kind}"
    return [ShardFile(ending, data, len(values)), ShardFile(f"{ending}.idx", index_bytes(offsets), 0)]


class SharFolder:
    """Folders of Shar datasets as sources of `ledgerbeam.open`: a `FolderKind`."""

    def holds(self, url: str, options: Options | None) -> bool:
        """Return whether a folder holds cuts of a Shar dataset."""
        return holds_shards(url, options)

    def open(self, url: str, options: Options | None) -> Reader:
        """Open a dataset for random access; see `SharReader`."""
        return SharReader(url, options=options)

    def stream(self, url: str, options: Options | None) -> Callable[[], Iterator[Any]]:
        """List the shards of a dataset. Return a function that reads its cuts in order; see `stream_shar`."""
        return partial(stream_shar, find_shar(url, options, streamed=True), options)

    def files_to_index(self, url: str, options: Options | None) -> list[tuple[str, Format]]:
        """Return all shards with their format."""
        pairs = TarFormat("pairs")
        return [(shard, pairs) for shard in chain.from_iterable(find_shar(url, options).values())]
