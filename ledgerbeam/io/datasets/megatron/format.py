"""Megatron datasets as a format: a record is a document."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any, Literal

from ledgerbeam._base.lazy import DTypeLike, NDArray, np
from ledgerbeam.errors import NotIndexableError, RecordError, SourceError
from ledgerbeam.io.compression.streams import Stream
from ledgerbeam.io.datasets.megatron.index import MegatronIndex
from ledgerbeam.io.datasets.megatron.reader import MegatronReader
from ledgerbeam.io.datasets.megatron.writer import MegatronBuilder, encode_part
from ledgerbeam.io.formats.base import IndexedFormat
from ledgerbeam.io.formats.format import Reader, ShardFile, StreamedRecords, StreamSpan
from ledgerbeam.io.index.file import IndexFile, IndexLocation, Offsets
from ledgerbeam.io.index.reader import NumberedRecords, RawRecord
from ledgerbeam.io.json_values import loads
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.stat import FileInfo, stat
from ledgerbeam.io.tar.sample import KEY, Sample


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """A document: consecutive sequences of tokens.

    Attributes:
        tokens: Tokens of all sequences: an array of shape `(sum(lengths),)`, or a list.
        lengths: Length of each sequence, in tokens.
        modes: Mode of each sequence (see `megatron`), from -128 to 127; None in a dataset without modes.
    """

    tokens: NDArray[Any] | Sequence[int]
    lengths: Sequence[int]
    modes: Sequence[int] | None = None

    def as_json(self) -> dict[str, Any]:
        """Return plain values: `tokens`; `lengths` unless there is one sequence; and `modes` if there are any."""
        tokens = self.tokens
        value: dict[str, Any] = {"tokens": tokens.tolist() if isinstance(tokens, np.ndarray) else list(tokens)}
        if len(self.lengths) != 1:
            value["lengths"] = list(self.lengths)
        if self.modes is not None:
            value["modes"] = list(self.modes)
        return value


@dataclass(frozen=True)
class MegatronFormat(IndexedFormat):
    """Megatron datasets. The `.idx` is a part of the dataset: it is beside the `.bin` and cannot be built from it.

    Attributes:
        dtype: Name of the dtype of written tokens.
    """

    name = "megatron"
    suffixes = (".bin",)
    is_indexable = False
    is_streamable = False

    dtype: str = "int32"

    def index_file(self, url: str, location: IndexLocation, options: Options | None = None) -> IndexFile:
        del location
        return DocumentOffsets(url, options)

    def build_index(self, url: str, options: Options | None = None, *, listed: FileInfo | None = None) -> Offsets:
        del options, listed
        raise NotIndexableError(
            f"{url}: the .idx of a Megatron dataset cannot be built from its .bin, which contains only tokens; "
            "copy the .idx too, or write the dataset again"
        )

    def check_index(self, index: IndexFile, source: FileInfo, *, deep: bool = False) -> None:
        DocumentOffsets(index.source, index.options).check(source.size, deep=deep)

    def _reader(self, url: str, index: Any, options: Options | None, **how: Any) -> Reader:
        as_listed = index.listed if isinstance(index, DocumentOffsets) else None
        return MegatronDocuments(url, options, index_listed=as_listed, **how)

    def scan(self, stream: Stream) -> StreamedRecords:
        raise NotIndexableError(f"{stream.url}: a compressed Megatron dataset cannot be read; decompress it")

    def split(self, data: bytes, url: str, span: StreamSpan | None = None) -> list[Any]:
        """Raise SourceError: only the index shows where documents end, the bytes of the `.bin` do not."""
        del data, span
        raise SourceError(f"{url}: --pack reads sources without their .idx, but Megatron's need it; leave --pack out")

    def split_raw(self, data: bytes, url: str, span: StreamSpan | None = None) -> list[RawRecord]:
        """Raise SourceError, as `split`."""
        self.split(data, url, span)
        return []

    def encode(self, records: Sequence[Document]) -> list[ShardFile]:
        data, index = encode_documents(records, self.dtype)
        return [ShardFile(".bin", data, len(records)), ShardFile(".idx", index, 0)]


@dataclass(frozen=True)
class TokenShards:
    """Encodes tokenized text as Megatron datasets, one for each key (field of the records with text)."""

    suffixes: Mapping[str, str]  # suffix of the dataset's name, by key
    dtype: str  # name of the tokens' dtype
    eod: int | None  # token that ends documents; None for no such token

    def encode(self, records: Sequence[Any]) -> list[ShardFile]:
        """Return the files of one dataset for each key. A record has a document, a list of sequences, for each key."""
        files: list[ShardFile] = []
        for key, suffix in self.suffixes.items():
            data, index = encode_part([record[key] for record in records], self.dtype, eod=self.eod)
            files += [ShardFile(f"{suffix}.bin", data, len(records)), ShardFile(f"{suffix}.idx", index, 0)]
        return files


class DocumentOffsets(IndexFile):
    """The `.idx` of a Megatron dataset as an index of documents: the offset of each document in the `.bin`."""

    __slots__ = ("_index", "listed")

    def __init__(self, url: str, options: Options | None = None, listed: FileInfo | None = None) -> None:
        self._index = MegatronIndex(url, options, listed=listed)
        super().__init__(self._index.url, options, source=self._index.prefix + ".bin")
        self.listed = listed

    def __reduce__(self) -> tuple[Any, ...]:
        return DocumentOffsets, (self.source, self.options, self.listed)

    def as_listed(self, listed: FileInfo) -> DocumentOffsets:
        return DocumentOffsets(self.source, self.options, listed)

    @property
    def count(self) -> int:
        return self._index.layout.documents

    def load(self) -> Offsets:
        end = stat(self.source, self.options).size
        self._index.load()
        self._index.check_all()
        return np.append(self._index.pointers, end)[self._index.documents].astype(np.uint64)

    def slice(self, start: int, stop: int) -> Offsets:
        return self.load()[start : stop + 1]

    def check(self, size: int, *, deep: bool = False) -> None:
        """Check the first and last entries of the index against a `.bin` of `size` bytes; with `deep`, every entry."""
        self._index.check_ends(size)
        if deep:
            self._index.check_all()

    def close(self) -> None:
        self._index.close()
        super().close()


class MegatronDocuments(NumberedRecords[Document]):
    """Random access to the documents of a dataset, as `Document`. The arguments are those of `MegatronReader`.

    Deterministic, picklable, safe to share between threads and to use after a fork. In `read_many`, documents next to
    each other share a request. Reads raise IndexMismatchError if a document has sequences that do not exist, or the
    `.bin` does not contain a sequence.
    """

    is_indexed: Literal[True] = True
    _together = 1024

    def __init__(
        self,
        url: str,
        options: Options | None = None,
        *,
        check: bool = True,
        listed: FileInfo | None = None,
        index_listed: FileInfo | None = None,
    ) -> None:
        self._reader = MegatronReader(url, options, check=check, listed=listed, index_listed=index_listed)
        self.url = self._reader.url
        self._offsets = DocumentOffsets(self._reader.url, options, index_listed)

    def __repr__(self) -> str:
        return f"MegatronDocuments({self.url!r})"

    def __len__(self) -> int:
        return self._reader.document_count

    def _read_single(self, record: int) -> Document:
        return self.read_span(record, record + 1)[0]  # does not load the index

    def _read(self, records: list[int]) -> list[Document]:
        edges, modes = self._reader.document_indices, self._reader.sequence_modes
        bounds = [(int(edges[number]), int(edges[number + 1])) for number in records]
        for begin, end in bounds:
            if not 0 <= begin <= end <= len(self._reader):
                raise self._reader.index.mismatch(
                    f"expected documents in sequences [0, {len(self._reader)}), found a document in [{begin}, {end})"
                )
        sequences = self._reader.read_many([at for begin, end in bounds for at in range(begin, end)])
        return self._documents(sequences, bounds, modes)

    def raw(self, index: int) -> bytes:
        return b"".join(tokens.tobytes() for tokens in self._reader.document(index))

    def read_span(self, start: int, stop: int) -> list[Document]:
        """Read the documents `[start, stop)` with one request for the tokens. IndexMismatchError if one is missing."""
        if start == stop:
            return []
        index = self._reader.index
        if stop > len(self):
            raise index.mismatch(f"expected at least {stop} documents, found {len(self)}")
        first = index.document_bounds(start)[0]
        ends = index.document_ends(start, stop)
        if first < 0:
            raise index.mismatch(f"expected document {start} to begin at sequence 0 or after it, found {first}")
        index.check_document_ends(ends, start, first)
        sequences = self._reader.read_span(first, int(ends[-1]))
        modes = index.rows(first, int(ends[-1])).modes
        edges = [0, *(ends - first).tolist()]
        return self._documents(sequences, pairwise(edges), modes)

    def _documents(
        self, sequences: Iterable[NDArray[Any]], bounds: Iterable[tuple[int, int]], modes: NDArray[np.int8] | None
    ) -> list[Document]:
        """Make documents of the sequences in these bounds, which follow each other. The bounds count in `modes`."""
        rest, made = iter(sequences), []
        for begin, end in bounds:
            own = list(islice(rest, end - begin))
            tokens = np.concatenate(own) if own else np.empty(0, self._reader.dtype)
            made.append(Document(tokens, list(map(len, own)), None if modes is None else modes[begin:end].tolist()))
        return made

    def read_raw(self, start: int, stop: int) -> list[RawRecord]:
        offsets = [] if start == stop else self._offsets.slice(start, stop).tolist()
        return [
            RawRecord(self.url, number, begin, end, np.asarray(document.tokens).tobytes())
            for number, (begin, end), document in zip(
                range(start, stop), pairwise(offsets), self.read_span(start, stop), strict=True
            )
        ]

    def close(self) -> None:
        self._reader.close()
        self._offsets.close()


def encode_documents(documents: Iterable[Document], dtype: DTypeLike, *, name: str = "part") -> tuple[bytes, bytes]:
    """Encode documents as the two files of a dataset. Their sequences are not changed.

    Args:
        documents: Documents that all have modes, or all have none.
        name: Name of the dataset, for messages.

    Returns:
        The bytes of the `.bin` and of the `.idx`.

    Raises:
        RecordError: A token does not fit the dtype, lengths do not add up to the tokens, or only some documents have
            modes.
        UsageError: The format cannot hold the dtype.
    """
    data, index = io.BytesIO(), io.BytesIO()
    builder: MegatronBuilder | None = None
    for number, document in enumerate(documents):
        multimodal = document.modes is not None
        if builder is None:
            builder = MegatronBuilder(data, dtype, multimodal=multimodal, name=name)
        if builder.multimodal != multimodal:
            raise RecordError(f"{name}: document {number}: expected modes in all documents, or in none")
        builder.add_document(document.tokens, document.lengths, document.modes)
    (builder or MegatronBuilder(data, dtype, name=name)).write_index(index)
    return data.getvalue(), index.getvalue()


def to_document(record: Any) -> list[Document]:
    """Return a list of one document, from `tokens` of a record or of the `json` of a sample. RecordError: no tokens."""
    if isinstance(record, Document):
        return [record]
    value = loads(record["json"]) if isinstance(record, Sample) and "json" in record else record
    if isinstance(value, Mapping) and KEY in value and "json" in value:
        value = value["json"]
    tokens = value.get("tokens") if isinstance(value, Mapping) else None
    if not isinstance(tokens, list | np.ndarray):
        raise RecordError(
            'expected {"tokens": [...]}, with "lengths" for several sequences, found no list under "tokens"; '
            "make tokens of text with ledgerbeam tokenize"
        )
    lengths, modes = value.get("lengths", [len(tokens)]), value.get("modes")
    for name, part in (("lengths", lengths), ("modes", modes)):
        if part is not None and not isinstance(part, list):
            raise RecordError(f"expected a list under {name!r}, found {type(part).__name__}")
    return [Document(tokens, lengths, modes)]
