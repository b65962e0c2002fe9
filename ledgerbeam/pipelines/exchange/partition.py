"""Partitions of an exchange into buckets: parameters set before it starts. A cut is a key at which a bucket starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from ledgerbeam._base.disk import size_text
from ledgerbeam.errors import LedgerbeamError, UsageError
from ledgerbeam.io import recognize
from ledgerbeam.io.exchange.order import KeyOrder, Nulls, Scheme
from ledgerbeam.io.exchange.run_file import BLOCK_BYTES, Cuts
from ledgerbeam.io.exchange.slices import MOST_MERGES, MOST_SLICES, Partition, plan_merges
from ledgerbeam.io.json_values import loads
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.ledger import LedgerStore, Source, merged_statistics
from ledgerbeam.ledger.model.job import Json
from ledgerbeam.pipelines.console.run_progress import count
from ledgerbeam.pipelines.jobs.sources import ListedFiles, Packer, listed_files
from ledgerbeam.sources.kind import current_file
from ledgerbeam.transforms.exchange.keys import WITHOUT_KEY, RecordKeys
from ledgerbeam.user_code.guards import no_exit
from ledgerbeam.user_code.loading import Reference
from ledgerbeam.user_code.objects import close_objects

# The sample from which cuts between buckets are taken, spread over all sources.
SAMPLES_A_BUCKET, MOST_SAMPLES, LEAST_SAMPLES, SAMPLE_SOURCES, SAMPLE_BYTES = 40, 20_000, 1_000, 256, 64 * 2**20
LINE_BYTES, MOST_LINE = 16 * 1024, 64 * 2**20  # number of bytes that are read to find a line: first attempt and maximum
LEAST_BLOCK, BLOCKS_A_SHARD = 1024, 32

LARGER = "--task-bytes {0} --shard-bytes {0}, and --pack for small sources, or a larger --max-slices"
CUT_BYTES = 64  # maximum size of a cut, in bytes. Longer keys are shortened.
VERSION = 2  # version of keys and run files. A job of another version cannot be continued.


@dataclass(frozen=True)
class KeyChoice:
    """The key that orders the records of an exchange."""

    scheme: Scheme  # see `io.exchange.order.Scheme`
    fields: tuple[str, ...] = ()  # names of the fields of the key
    # ``module:function`` that returns the key of a record, or the function itself, instead of fields.
    function: Reference | None = None
    # Hashes of the code of the function, in groups by name; see `UserFunction`.
    made_of: dict[str, dict[str, str]] = field(default_factory=dict)
    descending: bool = False  # whether the greatest key comes first
    nulls: Nulls = "last"  # position of null
    seed: int = 0  # seed of a shuffle

    def __str__(self) -> str:
        return ",".join(self.fields) if self.function is None else str(self.function)

    def parameters(self) -> dict[str, Json]:
        """Return the parameters that affect the outputs."""
        shaping: dict[str, Json] = {"order": self.scheme, "exchange": VERSION}
        if self.scheme in ("key", "hash", "match", "digest"):
            shaping |= {"by": str(self), **self.made_of}
        if self.scheme == "key":
            shaping |= {"descending": self.descending, "nulls": self.nulls}
        return shaping | ({"seed": self.seed} if self.scheme == "shuffle" else {})

    def doubts(self, names: Sequence[str], store: LedgerStore) -> Iterator[str]:
        """Yield a warning if no record has the key. `store` is the ledger of the job that has computed the keys."""
        keyless = merged_statistics(store, WITHOUT_KEY).get(WITHOUT_KEY)
        records = store.status()["records"]
        keyed = sum(records["written"].values()) + records["dropped"].get(WITHOUT_KEY, 0)
        if keyless is not None and keyless.value() == keyed:
            yield (
                f"{', '.join(names)}: none of {count(keyed, 'record')} has a key: {self} is missing, null or empty in "
                "each; if the name is wrong, give the right name and --on-job-change=restart"
            )

    def keys(self, base: str | None) -> RecordKeys:
        """Return the function that computes keys."""
        order = KeyOrder(self.descending, self.nulls)
        return RecordKeys(self.scheme, self.fields, self.function, order, self.seed, base)


def preference(prefer: KeyChoice | None) -> dict[str, Json]:
    """Return the parameters of the score that orders records with equal keys; empty without a score."""
    return {} if prefer is None else {"prefer": prefer.parameters()}


def score_of(prefer: KeyChoice | None, base: str | None) -> RecordKeys | None:
    """Return the function that computes the score; None without a score."""
    return None if prefer is None else prefer.keys(base)


def partition_parameters(partition: Partition | None) -> dict[str, Json]:
    """Return the parameters of a partition; empty until it is set."""
    return {} if partition is None else partition.parameters()


def decided(partition: Partition | None) -> Partition:
    """Return the partition of a job whose ledger is open: opening sets it, so it is not None."""
    if partition is None:
        raise AssertionError("expected a partition: it is set when the job is opened")
    return partition


class ScatteringJob(Protocol):
    """A job that writes the buckets of an exchange, such as `ScatterJob`: a protocol."""

    @property
    def key(self) -> KeyChoice: ...
    @property
    def files(self) -> ListedFiles: ...
    @property
    def storage_options(self) -> dict[str, Any]: ...
    def packer(self) -> Packer | None: ...
    def pages(self) -> Iterator[Page]: ...


class PartitionLimits(NamedTuple):
    """The sizes of an exchange."""

    bucket_bytes: int  # size of a bucket
    shard_bytes: int  # size of a shard, which is a part of a bucket
    buckets: int | None = None  # number of buckets, instead of these sizes; None to compute it
    slices: int = MOST_SLICES  # maximum number of slices of run files that a stage reads
    merges: int = MOST_MERGES  # maximum number of merges of run files

    def of(self, total: int) -> PartitionLimits:
        """Return the sizes for sources of `total` bytes. A given number of buckets determines the other sizes."""
        if self.buckets is None:
            return self
        size = max(1, -(-total // self.buckets))
        return self._replace(bucket_bytes=size, shard_bytes=size)


def decide_partition(
    scatters: Sequence[ScatteringJob], limits: PartitionLimits, say: Callable[[str], None], larger: str = LARGER
) -> Partition:
    """Return the partition of an exchange, with its number of rounds. It depends only on the sources and the options.

    `scatters` has several jobs only if keys start with a hash. `larger` is the remedy that an error names for too many
    slices, with ``{0}`` for a size.
    """
    listed = [(scatter, list(scatter.pages())) for scatter in scatters]
    total = sum(sum(page.sizes) for _, pages in listed for page in pages)
    tasks = sum(sum(map(scatter.files.expected_tasks, _sources(scatter, pages))) for scatter, pages in listed)
    scatter, pages = listed[0]
    limits = limits.of(total)
    buckets = limits.buckets or max(1, -(-total // limits.bucket_bytes))
    block_bytes = max(LEAST_BLOCK, min(BLOCK_BYTES, limits.shard_bytes // BLOCKS_A_SHARD))
    if scatter.key.scheme in ("hash", "match", "digest", "content", "shuffle"):
        partition = Partition(buckets, block_bytes=block_bytes)
    elif scatter.key.scheme == "place":
        partition = Partition.of_cuts(_cuts_between_sources(scatter, pages, limits.bucket_bytes), block_bytes)
    else:
        cuts = _sampled_cuts(scatter, pages, buckets)
        say(f"buckets: {len(cuts) + 1:,}, cut by a sample of the keys")
        partition = Partition.of_cuts(cuts, block_bytes)
    parts = max(buckets, -(-total // limits.shard_bytes))
    merges = plan_merges(tasks, partition.buckets, parts, limits.slices, len(scatters))
    if merges is None or merges.number > limits.merges:
        raise UsageError(_too_many(scatter, limits, total, tasks * parts, larger))
    if merges.number:
        say(f"rounds: {merges.number + 1:,}, because one round would read {tasks * parts:,} slices of run files")
    return replace(partition, merges=merges)


def _sources(scatter: ScatteringJob, pages: Sequence[Page]) -> Iterator[Source]:
    packer, files = scatter.packer(), listed_files(pages)
    return iter(files if packer is None else packer(files))


def _too_many(scatter: ScatteringJob, limits: PartitionLimits, total: int, requests: int, larger: str) -> str:
    size = max(limits.shard_bytes, scatter.files.task_bytes)
    while (-(-total // size)) ** 2 > limits.slices and size < total:
        size *= 2
    rounds = "more rounds do not help" if limits.merges else "an exchange of two pipelines has only one round"
    return (
        f"this exchange of {count(total, 'byte')} would read {requests:,} slices of run files in one round. At most "
        f"{limits.slices:,} are allowed, and {rounds}; give larger tasks and shards, such as "
        f"{larger.format(size_text(size))}"
    )


def _sampled_cuts(scatter: ScatteringJob, pages: Sequence[Page], buckets: int) -> Cuts:
    """Return cuts that divide a sample of the keys evenly; fewer cuts if many keys are equal."""
    if buckets == 1:
        return []
    number = min(MOST_SAMPLES, max(LEAST_SAMPLES, SAMPLES_A_BUCKET * buckets))
    found = sorted(_sampled_keys(scatter, pages, number))
    cuts: list[bytes] = []
    for bucket in range(1, buckets if found else 0):
        cut = found[bucket * len(found) // buckets][:CUT_BYTES]
        if cut > (cuts[-1] if cuts else found[0][:CUT_BYTES]):
            cuts.append(cut)
    return cuts


def _cuts_between_sources(scatter: ScatteringJob, pages: Sequence[Page], bucket_bytes: int) -> Cuts:
    """Return cuts between sources, by the position of their first record. A source larger than a bucket has its own."""
    keys = scatter.key.keys(scatter.files.base)
    sources = sorted(_sources(scatter, pages), key=lambda source: source.url.encode("utf-8", "surrogateescape"))
    cuts: list[bytes] = []
    held = 0
    for source in sources:
        if held and held + source.size > bucket_bytes:
            cuts.append(keys.place_key(source.url, 0))
            held = 0
        held += source.size
    return sorted(cuts)


def _sampled_keys(scatter: ScatteringJob, pages: Sequence[Page], number: int) -> Iterator[bytes]:
    from ledgerbeam.pipelines.preview.sample import sample_places  # noqa: PLC0415 - uses jobs

    keys = scatter.key.keys(scatter.files.base)
    rows = [row for page in pages for row in zip(page.urls, page.sizes, page.versions, strict=True)]
    if len(rows) > SAMPLE_SOURCES:
        rows = [rows[position] for position, _ in sample_places((size for _, size, _ in rows), SAMPLE_SOURCES)]
    try:
        for position, shares in sample_places((size for _, size, _ in rows), number):
            # The source's task reports records that cannot be read or have no key.
            with suppress(LedgerbeamError):
                for record in _records_of(scatter, Source(*rows[position]), shares):
                    with suppress(LedgerbeamError):
                        with no_exit():
                            key = keys.key(record)
                        yield key
    finally:
        close_objects()


def _records_of(scatter: ScatteringJob, source: Source, shares: list[float]) -> Iterator[Any]:
    """Yield records from all over a source: of plain JSONL at positions `shares`, from 0 to 1, else about as many."""
    from ledgerbeam.pipelines.preview.sample import sampled_records  # noqa: PLC0415 - uses jobs

    if recognize(source.url).format.name == "jsonl" and recognize(source.url).compression is None:
        for line in _lines_at(source, shares, scatter.storage_options):
            with suppress(ValueError):
                yield loads(line)
        return
    page = Page([source.url], [source.size], [source.version])
    opened = replace(scatter.files, form="records").opened(scatter.storage_options)  # without positions
    for one in sampled_records(opened, [page], len(shares), most_bytes=SAMPLE_BYTES):
        if not one.error:
            yield from one.records


def _lines_at(source: Source, shares: list[float], options: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the first line that starts after each position of a source, or at position 0. No index is read."""
    places = sorted({int(share * source.size) for share in shares})
    starts = np.array(places, np.int64)
    stops = np.minimum(starts + LINE_BYTES, source.size)
    with RangeReader(source.url, dict(options), listed=current_file(source, options)) as reader:
        for start, data in zip(places, reader.read_many(starts, stops), strict=True):
            size, found = LINE_BYTES, data
            while True:
                begin = 0 if start == 0 else found.find(b"\n") + 1
                end = found.find(b"\n", begin)
                at_end = start + len(found) >= source.size
                if (begin or not start) and (end >= 0 or at_end):
                    yield found[begin : end if end >= 0 else len(found)]
                    break
                if at_end or size > MOST_LINE:
                    break
                size *= 8
                found = reader.read_near(start, start + size)
