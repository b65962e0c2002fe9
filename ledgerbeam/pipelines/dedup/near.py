"""Jobs of ``ledgerbeam dedup --near`` after the jobs of `pairs`: find the documents to drop, and filter the files.

    cluster   clusters of connected documents; one of each stays         ledger NEAR/cluster
    near      the files without the other documents, or columns          ledger NEAR

If there are more pairs than one process can cluster, more jobs of `pairs` run before `cluster`.

With ``--verify``, connected documents are only candidates, and another exchange decides:

    texts     the n-grams of the candidates, read again                  ledger NEAR/texts
    verify    documents that share a band and enough n-grams             ledger NEAR/verify
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from ledgerbeam.io import Options, ShardEncoder
from ledgerbeam.io.exchange.forest import PAIRS_BYTES
from ledgerbeam.io.exchange.slices import NO_MERGES, Partition
from ledgerbeam.io.listing.left_out import OwnFiles
from ledgerbeam.ledger import Job, Source, Task, merged_statistics
from ledgerbeam.ledger.model.faults import fault_point
from ledgerbeam.ledger.model.job import Json
from ledgerbeam.pipelines.dedup.earlier import EarlierSignatures, earlier_signatures
from ledgerbeam.pipelines.dedup.exact import DecideJob, DedupJob, FilesWithLists, ListedJob, hash_encoder
from ledgerbeam.pipelines.dedup.pairs import PART_BYTES, STARS_FOLDER, LabelsJob, NearChoice, PairsJob, rounds_from
from ledgerbeam.pipelines.exchange.jobs import (
    RUNS_FOLDER,
    BucketsJob,
    BucketsOf,
    RunsJob,
    ScatterJob,
    as_run,
)
from ledgerbeam.pipelines.exchange.partition import partition_parameters, preference, score_of
from ledgerbeam.pipelines.exchange.stages import CLUSTER, LABELS, PAIRS, STARS, TEXTS, VERIFY, stage_ledger
from ledgerbeam.pipelines.jobs.sources import Listing
from ledgerbeam.pipelines.jobs.spec import FinishedStage
from ledgerbeam.sources.listed import ChosenSources, FileLists, ListedSources, WithEarlierFiles, bucket_of
from ledgerbeam.transforms.dedup.duplicates import FindCandidates, FindClusters, TreeReader, joined_trees
from ledgerbeam.transforms.dedup.stars import member_trees
from ledgerbeam.transforms.dedup.verify import CollectGrams, VerifiedTrees

SIGNATURES_FOLDER = "_signatures"  # folder for the signatures in an output folder
COMPARED_BYTES = 1 << 26  # approximate bytes of the n-grams of a bucket part, which has at least one whole cluster


@dataclass(frozen=True, kw_only=True)
class _NearDecideJob(DecideJob):
    """Finds the documents to drop."""

    near: NearChoice
    signatures: str  # folder of the signatures

    def writer_values(self) -> dict[str, Any]:
        """Return the fields of the job whose run files this job reads, without its ledger and its partition."""
        places = {"output": self.first_folder}
        return {**places, **as_run(self, "files", "key", "near", "signatures", "prefer", "max_slices", "own")}

    def places(self) -> dict[str, list[str]]:
        return {**super().places(), "--against": list(self.near.against)}


@dataclass(frozen=True, kw_only=True)
class ClusterJob(_NearDecideJob):
    """Finds the documents to drop: all but one of each cluster."""

    command = "cluster"

    in_rounds: bool = False  # whether rounds find the clusters, for many pairs. It does not affect outputs.

    def decided_partition(self, say: Callable[[str], None]) -> Partition:  # noqa: ARG002
        """Return a partition with one bucket: one task clusters all pairs."""
        return Partition(1)

    @property
    def first_folder(self) -> str:
        return f"{self.output}/{STARS_FOLDER if self.in_rounds else RUNS_FOLDER}"

    def first_writers(self) -> dict[str, RunsJob]:
        """Return the job before this one: it finds pairs, or after rounds the cluster of each document."""
        return {LABELS: self._labels()} if self.in_rounds else {PAIRS: self._labels().pairs()}

    def _labels(self) -> LabelsJob:
        folder = f"{self.output}/{STARS_FOLDER}"
        values = {**self.writer_values(), "output": f"{folder}/{LABELS}"}
        return LabelsJob(
            **values,
            bucket_bytes=self.bucket_bytes,
            partition=self.partition,
            shard_bytes=min(PART_BYTES, self.near.cluster_bytes),
            cluster=self.ledger,
            pairs_folder=f"{self.output}/{RUNS_FOLDER}",
            folder=folder,
            ledger=stage_ledger(self.ledger, LABELS),
        )

    def after(self, before: Sequence[FinishedStage]) -> Self | None:
        """Return a copy that finds the clusters in rounds, if the pairs are too many for one process; else None.

        The run files of the rounds have as many buckets as the signatures.
        """
        if self.in_rounds:
            return None
        pairs = before[-1]
        size = merged_statistics(pairs.store, PAIRS_BYTES).get(PAIRS_BYTES)
        if size is None or size.value() <= self.near.cluster_bytes:
            return None
        if not isinstance(pairs.job, PairsJob):
            raise AssertionError("expected a job that writes pairs before the clusters")
        partition = dataclasses.replace(pairs.job.cut, merges=NO_MERGES)
        return dataclasses.replace(self, in_rounds=True, partition=partition)

    def unused(self) -> Iterator[str]:
        if not self.in_rounds:
            yield from (f"{self.ledger}/{name}" for name in (LABELS, STARS))
            yield from rounds_from(self.ledger, 1)

    def spent(self, read: BucketsJob) -> list[str]:  # noqa: ARG002 - nothing is merged
        return [f"{self.output}/{name}" for name in (RUNS_FOLDER, STARS_FOLDER)]

    def identity(self) -> Job:
        """Return the parameters of the outputs. They are equal for clusters found in rounds and by one process."""
        if not self.in_rounds:
            return super().identity()
        return dataclasses.replace(self, in_rounds=False).identity()

    def sources(self) -> BucketsOf:
        """Return the buckets. Without rounds, all pairs are in one bucket, which one task reads."""
        found = super().sources()
        return dataclasses.replace(found, task_bytes=PART_BYTES, within_keys=True) if self.in_rounds else found

    def trees(self) -> TreeReader:
        """Return the function that finds the clusters in a part of a bucket."""
        return member_trees if self.in_rounds else joined_trees

    def work(self) -> Callable[[Task], Any]:
        return FindClusters(self.trees(), self.mark)


@dataclass(frozen=True, kw_only=True)
class CandidatesJob(ClusterJob):
    """Finds candidates: documents that share a band with another document."""

    command = "candidates"

    def work(self) -> Callable[[Task], Any]:
        return FindCandidates(self.trees())


@dataclass(frozen=True, kw_only=True)
class _CandidateFiles(FilesWithLists):
    """The candidates of files."""

    earlier: str = ""  # URL of the file that names earlier jobs' files; empty if there are none

    def listing(self, own: OwnFiles, options: Options) -> Listing:  # type: ignore[override]
        files = super().listing(own, options)
        if not self.earlier:
            return files
        return WithEarlierFiles(files, self.earlier, self.tables.state, dict(options or {}))


@dataclass(frozen=True, kw_only=True)
class TextsJob(ListedJob, RunsJob):
    """Writes the n-grams of candidates, by connected group."""

    command = "texts"
    keeps_shards = False  # the n-grams are removed after the comparison

    to: str = "run"
    near: NearChoice
    signatures: str
    partition: Partition | None = None  # partition of the candidates into buckets; None until it is set
    cluster: str = ""  # ledger of the stage before
    own: OwnFiles = field(default_factory=OwnFiles)

    @property
    def reader(self) -> type[ListedSources]:
        return ChosenSources

    def decide(self) -> CandidatesJob:
        return CandidatesJob(**self.decide_values(self.cluster), near=self.near, signatures=self.signatures)

    def scatters(self) -> list[ScatterJob]:
        return self.decide().scatters()

    def sources(self) -> _CandidateFiles:
        earlier = f"{self.work_folder}/earlier.json" if self.near.against else ""
        return _CandidateFiles(**vars(super().sources()), earlier=earlier)

    def _earlier(self) -> list[EarlierSignatures]:
        minhash = self.near.parameters(self.key)["minhash"]
        return earlier_signatures(self.near.against, minhash, self.ledger, self.storage_options)

    def earlier_urls(self) -> Collection[str]:
        return frozenset(url for one in self._earlier() for url in one.urls())

    def earlier_listed(self) -> Collection[str] | None:
        listing = self.listing()
        if not isinstance(listing, WithEarlierFiles):
            return ()
        found = listing.earlier()
        return None if found is None else frozenset(found.urls)

    def list_earlier(self) -> bool:
        if not self.near.against:
            return False
        fault_point("exchange.earlier")
        opened = self.sources().opened(self.storage_options)
        versions = opened.buckets.versions()

        def may_have(url: str) -> bool:
            return bool(versions[bucket_of(url, len(versions))])

        def has(url: str) -> bool:
            return len(FileLists(opened, Source(url, 0, "")).by_url[url].numbers) > 0

        found = [source for one in self._earlier() for source in one.sources(may_have, has, self.storage_options)]
        listing = self.listing()
        if isinstance(listing, WithEarlierFiles):
            listing.write(found)
        return True

    def shaping(self) -> dict[str, Json]:
        near = {**self.near.parameters(self.key), **self.near.compared(), "moves": "n-grams"}
        chosen = {**preference(self.prefer), **partition_parameters(self.partition)}
        return {**self.files.parameters(), **near, **chosen}

    def work(self) -> Callable[[Task], Any]:
        base = self.files.base
        return CollectGrams(self.key.keys(base), self.near.minhash(), score_of(self.prefer, base))

    def encoder(self) -> ShardEncoder:
        return hash_encoder(self.partition, self.output)

    def _own_files(self) -> OwnFiles:
        return self.own


@dataclass(frozen=True, kw_only=True)
class VerifyJob(_NearDecideJob):
    """Finds the documents to drop, among documents that share a band and enough n-grams."""

    command = "verify"

    shard_bytes: int = COMPARED_BYTES
    earlier: str = ""  # folder of the ledgers of earlier stages; empty for the folder of its own ledger

    def first_writers(self) -> dict[str, RunsJob]:
        stages = self.earlier or self.ledger
        texts = TextsJob(
            **self.writer_values(),
            bucket_bytes=self.sizes.bucket_bytes,
            partition=self.partition,
            ledger=stage_ledger(stages, TEXTS),
            cluster=stage_ledger(stages, CLUSTER),
        )
        return {TEXTS: texts}

    def parameters(self) -> dict[str, Json]:
        return {**super().parameters(), **self.near.verified()}

    def work(self) -> Callable[[Task], Any]:
        if self.near.verify is None:
            raise AssertionError("expected a share to verify")
        trees = VerifiedTrees(self.near.minhash(), self.near.verify, self.prefer is not None)
        return FindClusters(trees, self.mark)


@dataclass(frozen=True, kw_only=True)
class NearJob(DedupJob):
    """Writes the files without near duplicates, or columns that mark them."""

    command = "near"

    near: NearChoice

    def decide(self) -> DecideJob:
        folder = f"{self.output}/{SIGNATURES_FOLDER}"
        near: dict[str, Any] = {"near": self.near, "signatures": folder, "mark": self.mark}
        if self.near.verify is None:
            return ClusterJob(**self.decide_values(stage_ledger(self.ledger, CLUSTER)), **near)
        return VerifyJob(**self.decide_values(stage_ledger(self.ledger, VERIFY)), **near, earlier=self.ledger)

    def places(self) -> dict[str, list[str]]:
        return {**super().places(), "--against": list(self.near.against)}

    def parameters(self) -> dict[str, Json]:
        near = {**self.near.parameters(self.key), **self.near.compared(), **self.near.verified()}
        return {**super().parameters(), **near}
