"""Records that share an n-gram of words with evaluation sets. Words are those of `minhash`.

An n-gram of an evaluation set is found by its hash, and then compared word by word.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ledgerbeam import stats
from ledgerbeam.errors import LedgerbeamError, RecordError, UsageError
from ledgerbeam.io import Sample
from ledgerbeam.io.any_source import open_any
from ledgerbeam.io.formats.format import json_value
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.tar.sample import text_or_json
from ledgerbeam.ledger import FailedTask, NoneTask, Task
from ledgerbeam.sources.forms import PlacedPart, PlacedRecords
from ledgerbeam.sources.listed import RemainingRecords
from ledgerbeam.transforms.dedup.minhash import MinHash, hash_words, spaced
from ledgerbeam.transforms.exchange.keys import field_of
from ledgerbeam.transforms.mapping.unchanged import KeepPlaced
from ledgerbeam.user_code.guards import failed_by, message_of
from ledgerbeam.user_code.objects import require_unchanged

if TYPE_CHECKING:
    import pyarrow as pa

CONTAMINATED = "contaminated"  # drop reason of a record that shares an n-gram with an evaluation set
WITHOUT_TEXT = "records without a text"  # statistic
_RECORDS = 512  # number of records whose n-grams are hashed together
_TEXTS = 4096  # number of texts of an evaluation set that are hashed together
_SPARSE = 16  # least number of places for each hash in the table of a `_Hashes`


class Match(NamedTuple):
    """What a text has in common with evaluation sets."""

    name: str  # of the set that has the first common n-gram
    ngram: str  # words of the first common n-gram, separated by spaces
    share: float  # share of the n-grams of the text that are common


class _Hashes:
    """Different hashes, ascending. A table of their lowest bits finds most other hashes at once."""

    def __init__(self, hashes: NDArray[Any]) -> None:
        self._hashes = hashes
        self._mask = hashes.dtype.type((1 << (_SPARSE * len(hashes)).bit_length()) - 1)
        self._table = np.zeros(int(self._mask) + 1, np.bool_)
        self._table[hashes & self._mask] = True

    def find(self, some: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the places of the hashes in `some` that are here, and their places here."""
        places = np.flatnonzero(self._table[some & self._mask])
        found = np.minimum(np.searchsorted(self._hashes, some[places]), len(self._hashes) - 1)
        equal = self._hashes[found] == some[places]
        return places[equal], found[equal]


class EvaluationSets:
    """The n-grams of evaluation sets: each file is a set, and each text in its records has n-grams.

    Args:
        urls: The files, of any format that `ledgerbeam.open` reads.
        ngram: Number of words in an n-gram. Texts with fewer words have none.

    Raises:
        UsageError: No text of a file has so many words; also the errors of reading a file.
    """

    def __init__(self, urls: Sequence[str], ngram: int, options: Options | None = None) -> None:
        self._grams = MinHash(1, 1, ngram)
        self.ngram = ngram
        names = [url.rstrip("/").rpartition("/")[2] for url in urls]
        self.names = names if len(set(names)) == len(names) else list(urls)
        self.short: dict[str, int] = {}  # number of texts without n-grams, by file
        self._texts: list[bytes] = []  # words of each text, separated by spaces
        hashes, places = [np.zeros(0, np.uint64)], [np.zeros((0, 3), np.int64)]  # places: set, text, first word
        for number, url in enumerate(urls):
            before, short = len(self._texts), 0
            for texts in _texts_of(url, options):
                found, positions, kept = self._of(texts)
                short += len(texts) - len(kept)
                first = len(self._texts)
                self._texts += [spaced(texts[place]) for place in kept]
                hashes.append(found)
                places.append(np.c_[np.full(len(found), number), positions[:, 0] + first, positions[:, 1]])
            if len(self._texts) == before:
                raise UsageError(
                    f"--against {url}: expected texts of at least {ngram} words, found none; give a smaller --ngram"
                )
            if short:
                self.short[url] = short
        unique, first_places = np.unique(np.concatenate(hashes), return_index=True)
        self._hashes = _Hashes(unique)
        self._places = np.concatenate(places)[first_places]

    def matches(self, texts: Sequence[str]) -> list[Match | None]:
        """Return what each text has in common with the sets; None for a text that shares no n-gram."""
        found, positions, kept = self._of(texts)
        matched: list[Match | None] = [None] * len(texts)
        hits: dict[int, list[tuple[int, int]]] = {}  # for each text, first words and n-grams of the sets
        for gram, equal in zip(*map(np.ndarray.tolist, self._hashes.find(found)), strict=True):
            hits.setdefault(int(positions[gram, 0]), []).append((int(positions[gram, 1]), equal))
        totals = np.bincount(positions[:, 0], minlength=len(kept)) if len(kept) else ()
        for text, grams in hits.items():
            words = spaced(texts[kept[text]]).split()
            common = [(start, gram) for start, gram in grams if self._is_equal(words, start, gram)]
            if common:
                start, gram = common[0]
                name = self.names[int(self._places[gram, 0])]
                ngram = b" ".join(words[start : start + self.ngram]).decode()
                matched[kept[text]] = Match(name, ngram, len(common) / int(totals[text]))
        return matched

    def _of(self, texts: Sequence[str]) -> tuple[NDArray[np.uint64], NDArray[np.int64], list[int]]:
        """Return the n-grams of texts: their hashes, the text and first word of each, and the texts that have any.

        Texts are numbered among those that have n-grams.
        """
        words, counts = hash_words(texts)
        kept = np.flatnonzero(counts >= self.ngram)
        wanted = np.repeat(counts >= self.ngram, counts)
        hashes, sizes = self._grams.grams_of(words[wanted], counts[kept])
        starts = np.cumsum(sizes) - sizes
        firsts = np.arange(len(hashes)) - np.repeat(starts, sizes)
        return hashes, np.c_[np.repeat(np.arange(len(kept)), sizes), firsts], kept.tolist()

    def _is_equal(self, words: list[bytes], start: int, gram: int) -> bool:
        _, text, first = self._places[gram].tolist()
        other = self._texts[text].split()[first : first + self.ngram]
        return words[start : start + self.ngram] == other


def _texts_of(url: str, options: Options | None) -> Iterator[list[str]]:
    texts: list[str] = []
    opened: Any = open_any(url, storage_options=options)
    with closing(opened) if hasattr(opened, "close") else nullcontext():
        for record in opened:
            texts += _strings(record)
            if len(texts) >= _TEXTS:
                yield texts
                texts = []
    if texts:
        yield texts


def _strings(value: Any) -> Iterator[str]:
    """Yield all texts in a record."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Sample):
        for extension, content in value.items():
            yield from _strings(text_or_json(extension, content))
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _strings(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _strings(one)
    elif not isinstance(value, int | float | bytes | None) and (plain := json_value(value)) is not value:
        yield from _strings(plain)


@dataclass(frozen=True)
class DecontaminateRecords:
    """A function of one task, for `ProcessTask`, that drops or marks records which share an n-gram with a set."""

    against: Mapping[str, str]  # checksums of the files of evaluation sets, by URL
    ngram: int  # number of words in an n-gram
    field: str  # field with the text of a record, a.b for a nested value
    mark: bool  # whether to return columns for each record in place of the other records
    keep: KeepPlaced  # writes the other records
    storage_options: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)

    def set_up(self) -> None:
        """Read the evaluation sets. ChangedSourceError: one has changed since the job started."""
        _ = self._sets

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_sets"}

    @cached_property
    def _sets(self) -> EvaluationSets:
        require_unchanged(self.against, self.storage_options)
        return EvaluationSets(list(self.against), self.ngram, self.storage_options)

    def __call__(self, task: Task) -> Task | NoneTask | FailedTask:
        """Return the task with the records that share no n-gram, or with its columns."""
        records: PlacedRecords = task.records
        if isinstance(records, list):  # of shards of Shar
            numbers = np.arange(task.start, task.start + len(records), dtype=np.uint64)
            records = PlacedRecords([PlacedPart(task.source.url, numbers, records)])
        try:
            found = [[*self._matches(part)] for part in records.parts]
        except LedgerbeamError as error:
            return failed_by(error, task, message_of(error))
        if self.mark:
            return task.replace(records=_table(task, zip(records.parts, found, strict=True)))
        masks = [np.array([match is None for match in matches], np.bool_) for matches in found]
        parts = [part.some(mask) for part, mask in zip(records.parts, masks, strict=True)]
        dropped = len(records) - sum(map(len, parts))
        return self.keep(task.replace(records=RemainingRecords(PlacedRecords(parts), dropped)))

    def _matches(self, part: PlacedPart) -> Iterator[Match | None]:
        field, texts = field_of(self.field), list[str]()
        for record in part.records():
            value = field(record)
            texts.append(value.decode(errors="ignore") if isinstance(value, bytes) else "" if value is None else value)
            if value is None:
                stats.count(WITHOUT_TEXT)
            if not isinstance(texts[-1], str):
                raise RecordError(
                    f"{part.url}: expected text in the field {self.field!r}, found {type(value).__name__}"
                )
            if len(texts) == _RECORDS:
                yield from self._sets.matches(texts)
                texts = []
        yield from self._sets.matches(texts)


def contamination_columns() -> pa.Schema:
    """Return the schema of the columns: null for a record that shares no n-gram."""
    import pyarrow as pa  # noqa: PLC0415 - only jobs of columns import it

    names = ("contaminated_by", "contaminated_ngram", "contaminated_share")
    return pa.schema([*zip(names, (pa.string(), pa.string(), pa.float64()), strict=True)])


def _table(task: Task, found: Iterable[tuple[PlacedPart, Sequence[Match | None]]]) -> Any:
    """Return a row for each record of a task, also for blank lines."""
    import pyarrow as pa  # noqa: PLC0415 - only jobs of columns import it

    rows: list[Match | None] = [None] * (task.stop - task.start)
    for part, matches in found:
        for number, match in zip(part.numbers.tolist(), matches, strict=True):
            rows[number - task.start] = match
    schema = contamination_columns()
    columns = [pa.array([row and row[place] for row in rows], kind) for place, kind in enumerate(schema.types)]
    return pa.table(columns, schema)
