"""Run files between two stages: their buckets, tables that list the slices of each bucket, and their removal."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple, Self

import orjson

from ledgerbeam._base.names import ASIDE
from ledgerbeam.errors import ScatterIncompleteError, SourceNotFoundError
from ledgerbeam.io import publish_bytes
from ledgerbeam.io.exchange.run_file import SUFFIX, task_mark
from ledgerbeam.io.exchange.slices import EARLIER, RUNS, SLICES, Partition, RunFile, RunLayout, SliceTables, SomeUrls
from ledgerbeam.io.listing.left_out import MARKS_FOLDER
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.io.storage.files import read_bytes
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.io.storage.publish import remove_stale_temporaries
from ledgerbeam.io.storage.stat import stat
from ledgerbeam.ledger import Job, LedgerStore, Output
from ledgerbeam.ledger.model.faults import fault_point
from ledgerbeam.ledger.model.identity import source_ids
from ledgerbeam.pipelines.jobs.shard_job import shard_form
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.pipelines.outputs.recorded import remove_below, require_own_folder
from ledgerbeam.sources.buckets import bucket_page


@dataclass(frozen=True)
class FoundBuckets:
    """The buckets of run files. Before a merge: for each group of run files, ranges of buckets."""

    names: list[str]  # name of each bucket
    sizes: list[int]  # size of the records of each bucket, in bytes
    versions: list[str]  # version of each bucket; empty for a bucket without records

    def page(self) -> Page:
        """Return the buckets as sources."""
        return bucket_page(self.sizes, self.versions, self.names)


class RunWriter(NamedTuple):
    """A job that has written run files."""

    job: Job  # the parameters of the job
    folder: str
    store: LedgerStore
    as_read: bool = True  # whether the records are unchanged records of its sources, with their positions
    is_earlier: bool = False  # whether it is an earlier job: its run files are elsewhere, and are only compared
    earlier_urls: Collection[str] = ()  # URLs of its sources from earlier jobs, whose records are only compared


class Reading(NamedTuple):
    """Parameters of reading run files."""

    folder: str  # folder that contains all of them
    listing_url: str  # URL of the file that names the buckets
    storage_options: dict[str, Any]
    partition: Partition
    level: int = 0  # number of earlier merges
    merges: bool = False  # whether the job merges the run files once more

    @property
    def fan(self) -> int | None:
        """Approximate number of run files that a task merges; None if a task reads a bucket from all run files."""
        return self.partition.merges.fan if self.merges else None


class RunFiles:
    """The run files of complete jobs, in the groups that are read together."""

    def __init__(self, reading: Reading, layout: RunLayout, digest: blake2b) -> None:
        self.reading = reading
        self._layout = layout
        self.state = digest.hexdigest()  # hash of the names and contents of all run files

    @classmethod
    def written(cls, writers: Sequence[RunWriter], reading: Reading) -> Self:
        """Return the run files of jobs, in the order of jobs, sources and records.

        Run files of missing sources are left out, because outputs contain only listed records. Raises
        ScatterIncompleteError if some sources of a job are not complete.
        """
        urls: list[str] = []
        runs: list[RunFile] = []
        digest = blake2b(digest_size=16, person=b"lb.exchange")
        earlier = sum(writer.is_earlier for writer in writers)  # earlier jobs come first
        for side, writer in enumerate(writers, -earlier):
            store = writer.store
            digest.update(writer.job.fingerprint.encode())
            mark = EARLIER if writer.is_earlier else ""
            below = f"{mark}{writer.folder}/".removeprefix(f"{reading.folder}/")
            gone = store.gone_ids()
            members = {row.source_id: row.member_urls for row in store.sources() if row.member_urls}
            for row in store.outputs():
                if row.complete and row.source_id not in gone and row.output.route not in ASIDE:
                    name, output = f"{below}{row.output.name}", row.output
                    # Records made by a function have no other position than the one in the run file.
                    of = members.get(row.source_id, (row.url,)) if writer.as_read else (f"{reading.folder}/{name}",)
                    urls += (f"{EARLIER if mark or url in writer.earlier_urls else ''}{url}" for url in of)
                    some, task = SomeUrls(urls, len(urls) - len(of), len(urls)), task_mark(row.source_id, output.first)
                    runs.append(RunFile(name, output.size, some, side, task))
                    _add_output(digest, name, output)
            _require_complete(writer)
        return cls(reading, RunLayout.of_one(runs, reading.partition.inner(0)[0].stop, reading.fan), digest)

    def merged(self, store: LedgerStore, fingerprint: str, reading: Reading) -> Self:
        """Return the run files into which a job with this ledger and fingerprint has merged these run files."""
        found = self.known()
        if found is None:
            raise AssertionError("expected known buckets: the run files were complete")
        page = found.page()
        outputs: dict[bytes, list[Output]] = {}
        for row in store.outputs():
            outputs.setdefault(row.source_id, []).append(row.output)
        ids = source_ids(page.urls, page.sizes, page.versions)
        made = [sorted(outputs.get(source_id, ()), key=lambda one: one.first) for source_id in ids]
        digest = blake2b(fingerprint.encode(), digest_size=16, person=b"lb.exchange")
        for output in (one for some in made for one in some):
            _add_output(digest, output.name, output)
        files = [
            [(output.name, output.size, task_mark(source_id, output.first)) for output in some]
            for source_id, some in zip(ids, made, strict=True)
        ]
        layout = self._layout.merged(files, reading.partition.inner(reading.level), reading.fan)
        return type(self)(reading, layout, digest)

    def __len__(self) -> int:
        return len(self._layout.runs)

    @property
    def size(self) -> int:
        """Total size in bytes."""
        return sum(run.size for run in self._layout.runs)

    def known(self) -> FoundBuckets | None:
        """Return the buckets that `tabulate` has stored for these run files; else None."""
        found = self._stored()
        try:
            buckets = FoundBuckets(found["names"], found["sizes"], found["versions"])
            if found["of"] == self.state and _fits(buckets, list(self._layout.cells)):
                return buckets
        except (KeyError, TypeError):  # incomplete: made again
            pass
        return None

    def _stored(self) -> Mapping[str, Any]:
        """Return the content of the file that `tabulate` wrote last; empty if the file is missing or damaged."""
        url = self.reading.listing_url
        require_own_folder(url.rpartition("/")[0])
        try:
            found = orjson.loads(read_bytes(url, self.reading.storage_options))
        except (SourceNotFoundError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _earlier_states(self) -> set[str]:
        """Return the hashes of earlier run files whose tables may still be in the folder."""
        stored = self._stored()
        earlier = stored.get("earlier")
        states = [*(earlier if isinstance(earlier, list) else ()), stored.get("of")]
        return {state for state in states if _is_table(f"{state}{RUNS}")} - {self.state}

    def are_tabulated(self) -> bool:
        """Return whether the tables of slices exist."""
        place = self._tables.place
        try:
            for ending in (RUNS, SLICES):
                stat(f"{place}{ending}", self.reading.storage_options)
        except SourceNotFoundError:
            return False
        return True

    def tabulate(self) -> FoundBuckets:
        """Find the slices of each bucket, store them in tables for workers and later runs, and return the buckets."""
        remove_stale_temporaries(self.reading.folder)  # of a launcher that was killed here, so outside of any run
        rows = self._tables.write(self._layout)
        fault_point("exchange.tabulated")
        found = FoundBuckets(list(self._layout.cells), [row.size for row in rows], [row.version for row in rows])
        stored = {"of": self.state, "names": found.names, "sizes": found.sizes, "versions": found.versions}
        stored["earlier"] = list(self._earlier_states())
        publish_bytes(self.reading.listing_url, orjson.dumps(stored), self.reading.storage_options)
        return found

    def remove_tables(self, ledger: str) -> None:
        """Remove the tables of slices, including tables of earlier run files.

        Tables of the next stage stay: they may be in the same folder, and another launcher may use them.
        """
        names = [f"{state}{ending}" for state in [self.state, *self._earlier_states()] for ending in (RUNS, SLICES)]
        remove_below(self.reading.folder, names, self.reading.storage_options, ledger=ledger)

    @property
    def _tables(self) -> SliceTables:
        return SliceTables(self.reading.folder, self.state, self.reading.storage_options)


def _fits(buckets: FoundBuckets, names: Sequence[str]) -> bool:
    """Return whether stored buckets have exactly these names, each with a valid size and version."""
    return (
        buckets.names == names
        and len(buckets.sizes) == len(buckets.versions) == len(names)
        and all(type(size) is int and size >= 0 for size in buckets.sizes)
        and all(type(version) is str for version in buckets.versions)
    )


def _require_complete(writer: RunWriter) -> None:
    """Raise ScatterIncompleteError if a job is not complete, also if it was restarted while its outputs were read."""
    status = writer.store.status()
    if not status["complete"]:
        left = status["sources"]
        raise ScatterIncompleteError(
            f"{writer.folder}: run files are missing: expected every source of {writer.store.url} complete, found "
            f"{left['complete']:,} complete, {left['open']:,} open, {left['failed']:,} failed; run the command, or the "
            "pipeline with Scatter, again"
        )


def _add_output(digest: blake2b, name: str, output: Output) -> None:
    digest.update(f"\n{name}\t{output.checksum}".encode("utf-8", "surrogateescape"))


def are_complete(buckets: FoundBuckets, store: LedgerStore) -> bool:
    """Return whether all of these buckets are complete in a ledger."""
    page = buckets.page()
    return all(store.completed_mask(source_ids(page.urls, page.sizes, page.versions)))


def remove_internal(folders: Iterable[str], job: JobSpec, writers: Collection[str]) -> None:
    """Remove run files and tables that are no longer needed, from folders of a job.

    `writers` are the IDs of the ledgers that wrote the files. Run files are removed only from folders that these
    ledgers, and no others, have marked.
    """
    for url in folders:
        folder = ObjectFolder(url, job.storage_options)
        names = folder.names("")
        marks = list(filter(_is_mark, names))
        owners: dict[str, set[str]] = {}
        for mark in marks:
            place, _, ledger = mark.removesuffix(".json").rpartition(f"{MARKS_FOLDER}/")
            owners.setdefault(place, set()).add(ledger)
        own = {place for place, ledgers in owners.items() if ledgers.issubset(writers)}
        found = [name for name in names if _is_table(name) and _nearest(name, owners) in own | {None}]
        runs = (name for name in names if name.endswith(SUFFIX) and _has_run_form(name))  # rejected records stay
        found += (name for name in runs if _nearest(name, owners) in own)
        spent = [mark for mark in marks if mark.rpartition(f"{MARKS_FOLDER}/")[0] in own]
        for some in (found, spent):  # marks last, so that an interrupted removal is resumed
            remove_below(folder.url, some, job.storage_options, ledger=job.ledger, prune=True)


_is_table = re.compile(rf"(?:.*/)?[0-9a-f]{{32}}(?:{re.escape(RUNS)}|{re.escape(SLICES)})", re.DOTALL).fullmatch
_has_run_form = re.compile(rf"(?:{shard_form('run')})\Z").search
_is_mark = re.compile(rf"(?:.*/)?{MARKS_FOLDER}/[0-9a-f]{{32}}\.json", re.DOTALL).fullmatch


def _nearest(name: str, owners: Collection[str]) -> str | None:
    """Return the innermost folder of `owners` that contains a file, empty for the root; None for no folder."""
    place = name
    while place:
        place = place.rstrip("/").rpartition("/")[0]
        place = f"{place}/" if place else ""
        if place in owners:
            return place
    return None
