"""Signatures of earlier deduplications. With ``--against``, a later deduplication compares its documents with them.

The signatures are run files of the sources of the earlier job, here called signed files. The later job reads them with
its own run files, in the same buckets, so it uses the partition of the earlier job.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ledgerbeam.errors import ChangedSourceError, SourceNotFoundError, StorageError, UsageError
from ledgerbeam.io.exchange.slices import Partition
from ledgerbeam.io.storage.client import map_ahead
from ledgerbeam.ledger import LedgerStore, Source
from ledgerbeam.ledger.model.rows import SourceRow
from ledgerbeam.ledger.opening import open_store
from ledgerbeam.pipelines.console.run_progress import count
from ledgerbeam.pipelines.exchange.buckets import RunWriter
from ledgerbeam.pipelines.exchange.stages import stages_of
from ledgerbeam.pipelines.outputs.recorded import OutputFolder, count_lost
from ledgerbeam.sources.listing import stat_source

_AT_ONCE = 16


class EarlierSignatures(NamedTuple):
    """The signatures of an earlier deduplication."""

    ledger: str  # URL of its ledger, as the user gave it
    writer: RunWriter  # the job that signed the documents
    partition: Partition

    def require(self, partition: Partition) -> None:
        """Raise UsageError if the signatures have another partition."""
        if self.partition != partition:
            expected, found = (one.parameters()["partition"] for one in (partition, self.partition))
            raise UsageError(
                f"--against {self.ledger}: expected the same buckets of signatures as in the other ledgers, "
                f"{expected}, found {found}; run the deduplications one after the other, each --against the earlier "
                "ones, or run all again with new outputs and with a --bucket-bytes that is larger than their sources"
            )

    def require_apart(self, stores: Iterable[LedgerStore], storage_options: Mapping[str, Any]) -> None:
        """Raise UsageError if signatures are missing or changed, or if the later job also reads a signed file."""
        if lost := count_lost(OutputFolder(self.writer.folder, dict(storage_options)), self.writer.store):
            raise UsageError(
                f"--against {self.ledger}: missing or changed {count(lost, 'file')} of its signatures in "
                f"{self.writer.folder}; to write the signatures again, run: ledgerbeam ledger forget "
                f"{shlex.quote(self.writer.store.url)} '*', then the command of that ledger"
            )
        both = sorted({url for store in stores for url in _urls(store)}.intersection(self.urls()))
        if both:
            raise UsageError(
                f"--against {self.ledger}: this job also has {count(len(both), 'source')} of that ledger, such as "
                f"{both[0]}. Its records would be duplicates of themselves: leave such sources out of the patterns"
            )

    def require_texts(self, expected: Mapping[str, Any]) -> None:
        """Raise UsageError for other parameters than `expected`: --verify reads the texts of both jobs alike."""
        parameters = self.writer.job.parameters
        if other := {name for name, value in expected.items() if parameters.get(name) != value}:
            name = min(other)
            raise UsageError(
                f"--against {self.ledger}: --verify reads the texts of both ledgers in the same way, but {name} is "
                f"{expected[name]} in this job and {parameters.get(name)} in that ledger; give the --near and --group "
                "of that ledger, or leave --verify out"
            )

    def urls(self) -> Iterable[str]:
        """Return the URLs of the signed files."""
        return _urls(self.writer.store)

    def sources(
        self, may_have: Callable[[str], bool], has: Callable[[str], bool], storage_options: Mapping[str, Any]
    ) -> Iterator[Source]:
        """Yield the signed files to read, by their URLs: those that `may_have` documents to compare.

        A missing or changed file raises an error only if it certainly `has` such documents.
        """
        wanted = [row for row in _rows(self.writer.store) if any(map(may_have, _urls_of(row)))]
        looks = map_ahead(lambda row: _looked_at(row, dict(storage_options)), wanted, _AT_ONCE, _AT_ONCE)
        for row, found in zip(wanted, looks, strict=True):
            if isinstance(found, list):
                yield from (source for source in found if may_have(source.url))
            elif any(map(has, _urls_of(row))):
                raise type(found)(
                    f"{found}: --verify must read it, because {self.ledger} has signatures of its records; restore "
                    "the file, run the command of that ledger again, or leave --verify out"
                )


def _looked_at(row: SourceRow, options: dict[str, Any]) -> list[Source] | StorageError:
    """Return the files of a source, or the error if they are missing or changed."""
    try:
        found = [Source(one.url, one.size, one.version) for one in (stat_source(url, options) for url in _urls_of(row))]
    except SourceNotFoundError:
        return SourceNotFoundError(f"{row.url}: {_what(row)} is gone")
    whole = Source.pack(found) if row.member_urls else found[0]
    return found if whole.id == row.source_id else ChangedSourceError(f"{row.url}: {_what(row)} has changed")


def _what(row: SourceRow) -> str:
    return f"this or another one of {count(len(row.member_urls), 'packed file')}" if row.member_urls else "the file"


def _rows(store: LedgerStore) -> Iterator[SourceRow]:
    gone = store.gone_ids()
    return (row for row in store.sources() if row.source_id not in gone)


def _urls_of(row: SourceRow) -> tuple[str, ...]:
    return row.member_urls or (row.url,)


def _urls(store: LedgerStore) -> Iterator[str]:
    return (url for row in _rows(store) for url in _urls_of(row))


def earlier_signatures(
    ledgers: Sequence[str], minhash: Any, below: str, storage_options: Mapping[str, Any]
) -> list[EarlierSignatures]:
    """Return the signatures of `ledgers`. UsageError: they do not fit the later job, whose ledger is `below`."""
    found = []
    for url in ledgers:
        options = dict(storage_options)
        whole = open_store(url, options, create=False, read_only=True).job()
        if whole is None or whole.pipeline != "near":
            kind = "an empty ledger" if whole is None else f"the ledger of a job {whole.pipeline!r}"
            raise UsageError(f"--against {url}: expected the ledger of a dedup --near, found {kind}")
        if below.startswith(f"{url}/"):
            raise UsageError(f"--against {url}: this is the ledger of this job; give the ledger of an earlier one")
        store = open_store(f"{url}/{stages_of(whole)[0]}", options, create=False, read_only=True)
        job = store.job()
        partition = None if job is None else Partition.recorded(job.parameters)
        if job is None or partition is None or not store.status()["complete"]:
            raise UsageError(
                f"--against {url}: some of its sources have no signatures yet; run the command of that ledger again"
            )
        if job.parameters.get("minhash") != minhash:
            raise UsageError(
                f"--against {url}: expected signatures made with {minhash}, found {job.parameters.get('minhash')}; "
                "give the --minhash and --ngram of that ledger"
            )
        folder = str(job.parameters.get("output"))
        found.append(EarlierSignatures(url, RunWriter(job, folder, store, is_earlier=True), partition))
    return found
