"""Megatron datasets as a format: a record is a document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ledgerbeam.errors import NotIndexableError, SourceError
from ledgerbeam.io.compression.streams import Stream
from ledgerbeam.io.datasets.megatron.documents import Document, DocumentOffsets, MegatronDocuments, encode_documents
from ledgerbeam.io.datasets.megatron.writer import encode_part
from ledgerbeam.io.formats.format import Reader, ShardFile, StreamedRecords, StreamSpan
from ledgerbeam.io.index.file import IndexFile, Offsets
from ledgerbeam.io.index.location import IndexLocation
from ledgerbeam.io.index.reader import RawRecord
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.stat import FileInfo


@dataclass(frozen=True)
class MegatronFormat:
    """Megatron datasets. The `.idx` is a part of the dataset: it is beside the `.bin` and cannot be built from it.

    Attributes:
        dtype: Name of the dtype of written tokens.
    """

    name = "megatron"
    suffixes = (".bin",)
    is_indexable = False
    is_streamable = False
    ends_at_newlines = False

    dtype: str = "int32"

    def index_file(self, url: str, location: IndexLocation, options: Options | None = None) -> IndexFile:
        """Return the index of a dataset, unopened. It is always beside the `.bin`."""
        del location
        return DocumentOffsets(url, options)

    def build_index(self, url: str, options: Options | None = None, *, listed: FileInfo | None = None) -> Offsets:
        """Raise NotIndexableError."""
        del options, listed
        raise NotIndexableError(
            f"{url}: the .idx of a Megatron dataset cannot be built from its .bin, which contains only tokens; "
            "copy it too, or write the dataset again"
        )

    def check_index(self, index: IndexFile, source: FileInfo, *, deep: bool = False) -> None:
        """Raise IndexNotFoundError or IndexMismatchError if the index does not fit the `.bin`."""
        DocumentOffsets(index.source, index.options).check(source.size, deep=deep)

    def open(
        self,
        url: str,
        index: IndexFile | str | None = None,
        options: Options | None = None,
        *,
        check: bool = True,
        listed: FileInfo | None = None,
    ) -> Reader:
        """Open a dataset for random access, through the index beside it; see `OffsetFormat`."""
        as_listed = index.listed if isinstance(index, DocumentOffsets) else None
        return MegatronDocuments(url, options, check=check, listed=listed, index_listed=as_listed)

    def scan(self, stream: Stream) -> StreamedRecords:
        """Raise NotIndexableError."""
        raise NotIndexableError(f"{stream.url}: a Megatron dataset is not read compressed; decompress it")

    def split(self, data: bytes, url: str, span: StreamSpan | None = None) -> list[Any]:
        """Raise SourceError: only the index has the ends of documents."""
        del data, span
        raise SourceError(f"{url}: a source of megatron cannot be read without its .idx; leave --pack out")

    def split_raw(self, data: bytes, url: str, span: StreamSpan | None = None) -> list[RawRecord]:
        """Raise SourceError, as `split`."""
        self.split(data, url, span)
        return []

    def encode(self, records: Sequence[Document]) -> list[ShardFile]:
        """Encode documents as the two files of a dataset."""
        data, index = encode_documents(records, self.dtype)
        return [ShardFile(".bin", data, len(records)), ShardFile(".idx", index, 0)]


@dataclass(frozen=True)
class TokenShards:
    """Megatron datasets of tokenized text, one for each key.

    Attributes:
        suffixes: Suffix of the dataset's name, by key.
        dtype: Name of the tokens' dtype.
        eod: Token that ends documents; None for no such token.
    """

    suffixes: Mapping[str, str]
    dtype: str
    eod: int | None

    def encode(self, records: Sequence[Any]) -> list[ShardFile]:
        """Return the files of a dataset for each key.

        Args:
            records: Records with a document, a list of sequences, for each key.
        """
        return [
            file
            for key, suffix in self.suffixes.items()
            for file in self._files(suffix, [record[key] for record in records])
        ]

    def _files(self, suffix: str, documents: Sequence[Any]) -> list[ShardFile]:
        data, index = encode_part(documents, self.dtype, eod=self.eod)
        return [ShardFile(f"{suffix}.bin", data, len(documents)), ShardFile(f"{suffix}.idx", index, 0)]
