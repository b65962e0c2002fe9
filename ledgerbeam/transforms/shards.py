"""What a task's records become: the files of one shard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from ledgerbeam.errors import RecordError
from ledgerbeam.io import FORMATS, Sample, encode_jsonl, encode_tar, index_bytes
from ledgerbeam.io.jsonl.lines import JsonLines
from ledgerbeam.io.megatron import encode_documents, encode_part
from ledgerbeam.io.shar.cuts import field_kinds, sample_cut
from ledgerbeam.io.shar.rows import CUTS, split_cut

__all__ = ["DocumentShards", "FormatShards", "SharShards", "ShardEncoder", "ShardFile", "TokenShards"]


class ShardFile(NamedTuple):
    """One file of a shard.

    Attributes:
        ending: What its name ends with, after the name of the task.
        data: Its content.
        records: How many it holds; 0 for an index.
        nulled: How many numbers that JSON does not have were written in it as null.
    """

    ending: str
    data: bytes
    records: int
    nulled: int = 0


class ShardEncoder(Protocol):
    """Encodes the records of a task. Picklable; a pure function of the records."""

    def encode(self, records: Any) -> list[ShardFile]:
        """Gives the files of the shard, in the order in which they are published: each index after its data.

        Raises:
            RecordError: A record that cannot be encoded.
        """


@dataclass(frozen=True)
class FormatShards:
    """Shards of a format that has an index of offsets.

    Attributes:
        to: Name of the format: ``jsonl`` or ``tar``.
    """

    to: str

    def encode(self, records: Sequence[Any]) -> list[ShardFile]:
        """Gives the file and its index; of samples of two members, too, that of Energon, which cannot use lhotse's."""
        kind = FORMATS[self.to]
        try:
            data, offsets = kind.encode(records, group="key" if kind.name == "tar" and _are_plain(records) else "auto")
        except RecordError:  # keys with a dot, found before anything was encoded: they can be read as pairs only
            data, offsets = kind.encode(records)
        index = ShardFile(f"{kind.suffix}.idx", index_bytes(offsets), 0)
        nulled = records.nulled if isinstance(records, JsonLines) else 0
        return [ShardFile(kind.suffix, data, len(offsets) - 1, nulled), index]


def _are_plain(samples: Sequence[Any]) -> bool:
    """Tells whether samples have two members each, which are read alike as pairs and by key if their keys allow."""
    return all(len(sample) == 2 and not any("." in extension for extension in sample) for sample in samples)


@dataclass(frozen=True)
class SharShards:
    """Shards of a Shar dataset: fields first, then the cuts, each with its index.

    Attributes:
        fields: Name of each field, and the extension of the members that it is made of.
    """

    fields: tuple[tuple[str, str], ...]

    def encode(self, records: Sequence[Any]) -> list[ShardFile]:
        """Gives the files of the shard.

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


@dataclass(frozen=True)
class DocumentShards:
    """Megatron datasets of `Document` records.

    Attributes:
        dtype: Name of the tokens' dtype.
    """

    dtype: str

    def encode(self, records: Sequence[Any]) -> list[ShardFile]:
        """Gives the two files of a dataset."""
        return _files("", encode_documents(records, self.dtype), len(records))


@dataclass(frozen=True)
class TokenShards:
    """Megatron datasets of tokenized text, one for each key.

    Attributes:
        suffixes: What the name of each key's dataset ends with.
        dtype: Name of the tokens' dtype.
        eod: Token that ends documents; None for none.
    """

    suffixes: tuple[str, ...]
    dtype: str
    eod: int | None

    def encode(self, records: Sequence[Any]) -> list[ShardFile]:
        """Gives the files of a dataset for each key.

        Args:
            records: For each key its documents, each of them its sequences.
        """
        return [
            file
            for suffix, documents in zip(self.suffixes, records, strict=True)
            for file in _files(suffix, encode_part(documents, self.dtype, eod=self.eod), len(documents))
        ]


def _indexed(ending: str, kind: str, values: Sequence[Any]) -> list[ShardFile]:
    data, offsets = encode_tar(values, group="pairs", pax=False) if kind == "tar" else encode_jsonl(values)
    ending = f"{ending}.{kind}"
    return [ShardFile(ending, data, len(values)), ShardFile(f"{ending}.idx", index_bytes(offsets), 0)]


def _files(suffix: str, encoded: tuple[bytes, bytes], records: int) -> list[ShardFile]:
    data, index = encoded
    return [ShardFile(f"{suffix}.bin", data, records), ShardFile(f"{suffix}.idx", index, 0)]
