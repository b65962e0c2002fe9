"""Shar as what jobs write: shards of several files, fields beside their cuts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ledgerbeam.io.datasets.shar.cuts import field_kinds, sample_cut
from ledgerbeam.io.datasets.shar.rows import CUTS, split_cut
from ledgerbeam.io.formats.format import ShardFile
from ledgerbeam.io.index.file import index_bytes
from ledgerbeam.io.lines.jsonl_reader import encode_jsonl
from ledgerbeam.io.tar.encode import encode_tar
from ledgerbeam.io.tar.sample import Sample


@dataclass(frozen=True)
class SharFormat:
    """Shards of a Shar dataset: fields first, then the cuts, each with its index.

    Attributes:
        fields: Name of each field, and the extension of the members that it is made of.
    """

    fields: tuple[tuple[str, str], ...] = ()

    def encode(self, records: Sequence[Any]) -> list[ShardFile]:
        """Return the files of a shard.

        Args:
            records: Samples, or cuts as `SharWriter` takes them.
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
