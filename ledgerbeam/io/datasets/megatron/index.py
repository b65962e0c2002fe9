"""The index of a Megatron dataset in a store: its arrays, whole or in parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam.errors import IndexMismatchError, IndexNotFoundError, SourceNotFoundError
from ledgerbeam.io.datasets.megatron.layout import HEAD_BYTES, Layout, dataset_prefix, parse_layout
from ledgerbeam.io.datasets.megatron.tokens import map_file
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.stat import FileInfo, stat

BLOCK = 1 << 20
"""How many sequences or documents are handled at a time."""

_REMOTE_HEAD = 64 * 1024  # holds all of a small index
_REQUEST = 8 * 1024 * 1024
_AHEAD = 4

Bytes: TypeAlias = bytes | memoryview


class IndexRows(NamedTuple):
    """Consecutive sequences as an index describes them.

    Attributes:
        lengths: In tokens, i32, shape `(n,)`.
        pointers: Where they begin in the `.bin`, in bytes, i64, shape `(n,)`.
        modes: i8, shape `(n,)`; None when the dataset has none.
    """

    lengths: NDArray[np.int32]
    pointers: NDArray[np.int64]
    modes: NDArray[np.int8] | None

    def part(self, start: int, stop: int) -> IndexRows:
        """Return the sequences `[start, stop)` of these."""
        modes = None if self.modes is None else self.modes[start:stop]
        return IndexRows(self.lengths[start:stop], self.pointers[start:stop], modes)


def stat_index(prefix: str, options: Options | None = None) -> FileInfo:
    """Return the properties of the `.idx` of a dataset.

    Args:
        prefix: Of the dataset, as `dataset_prefix` returns it.
        options: Storage options.

    Raises:
        IndexNotFoundError: There is no such file; also StorageError as in `stat`.
    """
    url = prefix + ".idx"
    try:
        return stat(url, options)
    except SourceNotFoundError as error:
        raise IndexNotFoundError(
            f"{prefix}.bin has no index: expected {url}. Copy it too, or write the dataset again"
        ) from error


class MegatronIndex:
    """The `.idx` of a dataset. Nothing is read before it is asked for.

    A local index is mapped, so that processes share its memory; of a remote one `load` takes all, everything else only
    what it needs. May be pickled, shared by threads and used after a fork.

    Args:
        prefix: What the names of the dataset's two files begin with.
        options: Storage options.
        trailing: Take a file that goes on after its arrays, as Megatron does.
        listed: Its listed properties; see `RangeReader`.
    """

    def __init__(
        self, prefix: str, options: Options | None = None, *, trailing: bool = False, listed: FileInfo | None = None
    ) -> None:
        self.prefix = dataset_prefix(prefix)
        self.url = self.prefix + ".idx"
        self.options = options
        self.trailing = trailing
        self._reader = RangeReader(self.url, options, listed=listed)
        self._head = b""
        self._layout: Layout | None = None
        self._content: Bytes | None = None

    def __repr__(self) -> str:
        return f"MegatronIndex({self.prefix!r})"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_head": b"", "_content": None}

    @property
    def layout(self) -> Layout:
        """What the header says; read once.

        Raises:
            IndexNotFoundError: There is no such file.
            IndexMismatchError: It is no Megatron index, or cut off.
        """
        if self._layout is None:
            size = (self._reader.listed or stat_index(self.prefix, self.options)).size
            wanted = HEAD_BYTES if self._reader.local_path is not None else _REMOTE_HEAD
            self._head = self._reader.read(0, min(size, wanted))
            self._layout = parse_layout(self._head[:HEAD_BYTES], size, self.url, trailing=self.trailing)
        return self._layout

    def load(self) -> Bytes:
        """Take all of the index: maps it when it is local, else reads it in pieces, some side by side."""
        content = self._content
        if content is None:
            size, path = self.layout.size, self._reader.local_path
            if path is not None:
                content = map_file(path)
                if len(content) < size:  # cut since its header was read
                    raise self.mismatch(f"expected an index of {size} bytes, found {len(content)}")
            else:
                content = self._head if len(self._head) >= size else self._fetch(size)
            self._content = content
        return content

    def _fetch(self, size: int) -> memoryview:
        content, start = bytearray(size), 0
        for piece in self._reader.blocks(_REQUEST, _AHEAD, stop=size):
            content[start : start + len(piece)] = piece
            start += len(piece)
        return memoryview(content).toreadonly()

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Length of each sequence in tokens: i32, shape `(N,)`, read-only."""
        return np.frombuffer(self.load(), "<i4", self.layout.sequences, self.layout.lengths_at)

    @property
    def pointers(self) -> NDArray[np.int64]:
        """Where each sequence begins in the `.bin`, in bytes: i64, shape `(N,)`, read-only."""
        return np.frombuffer(self.load(), "<i8", self.layout.sequences, self.layout.pointers_at)

    @property
    def documents(self) -> NDArray[np.int64]:
        """Where documents begin and end: i64, shape `(documents + 1,)`; in fairseq each sequence is a document."""
        if self.layout.fairseq:
            return np.arange(self.layout.sequences + 1)
        return np.frombuffer(self.load(), "<i8", self.layout.entries, self.layout.documents_at)

    @property
    def modes(self) -> NDArray[np.int8] | None:
        """Mode of each sequence: i8, shape `(N,)`, read-only; None when the dataset has none."""
        if not self.layout.modes:
            return None
        return np.frombuffer(self.load(), "i1", self.layout.sequences, self.layout.modes_at)

    def entries(self) -> tuple[Sequence[int], Sequence[int]]:
        """Return lengths and pointers of all sequences as plain numbers, the quickest to look up one by one.

        Pointers are taken as unsigned, so that a negative one lies past the end of any file.
        """
        content, layout = memoryview(self.load()), self.layout
        return (
            content[layout.lengths_at : layout.pointers_at].cast("i"),
            content[layout.pointers_at : layout.documents_at].cast("Q"),
        )

    def rows(self, start: int, stop: int) -> IndexRows:
        """Return the sequences `[start, stop)`: of a remote index that is not loaded, by ranged reads of that part.

        Args:
            start: First sequence, `0 <= start`.
            stop: End of them, exclusive, `start <= stop <= N`.
        """
        layout = self.layout
        arrays = [(layout.lengths_at, 4), (layout.pointers_at, 8), *[(layout.modes_at, 1)] * layout.modes]
        lengths, pointers, *modes = self._read([(at + width * start, at + width * stop) for at, width in arrays])
        return IndexRows(
            np.frombuffer(lengths, "<i4"),
            np.frombuffer(pointers, "<i8"),
            np.frombuffer(modes[0], "i1") if modes else None,
        )

    def document_ends(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return where the documents `[start, stop)` end, as numbers of sequences: i64, shape `(stop - start,)`."""
        if self.layout.fairseq:
            return np.arange(start + 1, stop + 1)
        at = self.layout.documents_at + 8
        return np.frombuffer(self._read([(at + 8 * start, at + 8 * stop)])[0], "<i8")

    def document_bounds(self, number: int) -> tuple[int, int]:
        """Return the first sequence of a document and the end of the last."""
        if self.layout.fairseq:
            return number, number + 1
        at = self.layout.documents_at + 8 * number
        start, stop = np.frombuffer(self._read([(at, at + 16)])[0], "<i8").tolist()
        return start, stop

    def _read(self, spans: Sequence[tuple[int, int]]) -> Sequence[Bytes]:
        """Return bytes of the index from what is at hand, else with as few requests as can be."""
        if self._content is None and self._reader.local_path is None and len(self._head) < self.layout.size:
            starts, stops = zip(*spans, strict=True)
            return self._reader.read_many(starts, stops)
        content = memoryview(self.load())
        return [content[start:stop] for start, stop in spans]

    def check_ends(self, size: int) -> None:
        """Check by the first and last entries that the index can be that of a `.bin` of `size` bytes.

        Raises:
            IndexMismatchError: The documents do not go from the first sequence to the last, or the sequences do not
                begin and end where the `.bin` does.
        """
        self.check_documents_end()
        layout = self.layout
        begin = end = 0
        if layout.sequences:
            last = layout.sequences - 1
            spans = [
                (layout.lengths_at + 4 * last, layout.lengths_at + 4 * last + 4),
                (layout.pointers_at, layout.pointers_at + 8),
                (layout.pointers_at + 8 * last, layout.pointers_at + 8 * last + 8),
            ]
            length, begin, end = (int.from_bytes(part, "little", signed=True) for part in self._read(spans))
            end += length * layout.dtype.itemsize
        if (begin, end) != (0, size):
            raise self.mismatch(f"expected its sequences to fill bytes [0, {size}), found [{begin}, {end})")

    def check_documents_end(self) -> None:
        """Check that the documents begin at sequence 0 and end at N.

        Raises:
            IndexMismatchError: They do not.
        """
        layout = self.layout
        if layout.fairseq:
            return
        edges = (layout.documents_at, layout.modes_at - 8)
        first, last = (int.from_bytes(part, "little") for part in self._read([(at, at + 8) for at in edges]))
        if (first, last) != (0, layout.sequences):
            raise self.mismatch(
                f"expected documents from sequence 0 to {layout.sequences}, found them from {first} to {last}"
            )

    def check_all(self) -> None:
        """Check every entry, a block at a time: lengths, pointers without gaps, documents in order.

        Raises:
            IndexMismatchError: One of them cannot be.
        """
        layout = self.layout
        place = 0
        for start in range(0, layout.sequences, BLOCK):
            place = self.check_rows(self.rows(start, min(start + BLOCK, layout.sequences)), start, place)
        document = 0
        for start in range(0, layout.documents, BLOCK):
            ends = self.document_ends(start, min(start + BLOCK, layout.documents))
            document = self.check_document_ends(ends, start, document)

    def check_rows(self, rows: IndexRows, first: int, place: int) -> int:
        """Check that sequences have lengths and follow each other without gaps.

        Args:
            rows: Some of them, at least one.
            first: Number of the first.
            place: Where it must begin in the `.bin`, in bytes.

        Returns:
            Where the last ends.
        """
        ends = place + np.cumsum(rows.lengths, dtype=np.int64) * self.layout.dtype.itemsize
        wrong = rows.lengths < 0
        wrong[0] |= rows.pointers[0] != place
        wrong[1:] |= rows.pointers[1:] != ends[:-1]
        if wrong.any():
            at = int(wrong.argmax())
            begin = place if at == 0 else int(ends[at - 1])
            raise self.mismatch(
                f"expected sequence {first + at} at byte {begin}, found {rows.lengths[at]} tokens at byte "
                f"{rows.pointers[at]}"
            )
        return int(ends[-1])

    def check_document_ends(self, ends: NDArray[np.int64], first: int, before: int) -> int:
        """Check that documents end in order.

        Args:
            ends: Where some of them end, at least one.
            first: Number of the first.
            before: Where the document before it ends.

        Returns:
            Where the last ends.
        """
        wrong = np.diff(ends, prepend=before) < 0
        if wrong.any():
            at = int(wrong.argmax())
            least = before if at == 0 else int(ends[at - 1])
            raise self.mismatch(
                f"expected document {first + at} to end at sequence {least} or after it, found {ends[at]}"
            )
        return int(ends[-1])

    def mismatch(self, what: str) -> IndexMismatchError:
        """Return an error that names index, data and remedy."""
        return IndexMismatchError(
            f"{self.url} does not fit {self.prefix}.bin: {what}; copy both files again, or write the dataset again"
        )

    def close(self) -> None:
        """Let go of the arrays; a later read opens the file again."""
        self._head, self._content = b"", None
        self._reader.close()
