"""A job that goes to its workers comes there as it was, without secrets in the file that carries it."""

from __future__ import annotations

import dataclasses

from ledgerbeam.io.exchange.slices import Merges, Partition
from ledgerbeam.pipelines.datasets.megatron import MergedParts, TokenizeJob
from ledgerbeam.pipelines.datasets.packs import PackJob
from ledgerbeam.pipelines.dedup.exact import DedupJob
from ledgerbeam.pipelines.dedup.lines import LinesJob
from ledgerbeam.pipelines.dedup.near import NearJob, TextsJob
from ledgerbeam.pipelines.dedup.pairs import LabelsJob, NearChoice, PairsJob
from ledgerbeam.pipelines.exchange.commands import GroupJob, JoinJob, RepartitionJob, ShuffleJob, SortJob, SplitJob
from ledgerbeam.pipelines.exchange.partition import KeyChoice
from ledgerbeam.pipelines.jobs.map import AnnotateJob, MapJob, MappedFunction
from ledgerbeam.pipelines.jobs.one_stage import (
    ConvertJob,
    DatasetParts,
    DecontaminateJob,
    IndexJob,
    MaterializeJob,
    SelectJob,
)
from ledgerbeam.pipelines.jobs.pipeline import GatheredRuns, PipelineJob, ScatterChoice
from ledgerbeam.pipelines.jobs.sources import GraphPasses, ListedFiles
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.pipelines.outputs.columns import ColumnLayout
from ledgerbeam.pipelines.runners.job_files import KINDS, dump_job, job_class, load_job
from ledgerbeam.sources.where import NeededColumns, Where
from ledgerbeam.user_code.loading import PickledObject
from tests.cases import each

OPTIONS = {"key": "an id", "secret": "hunter2"}
FILES = ListedFiles(patterns=("/in/*.jsonl", "s3://b/\udce9.jsonl"), base="/in/", pack_bytes=100)
SELECTED = ListedFiles(
    patterns=("/in/*.jsonl",), beside=(NeededColumns("/scores", ("n",)),), where=Where("n > 3", ("n",))
)
PARTS = MergedParts("/out/d", ("_a_document", "_b_document"), "int32", drop=True)
WORDS = {"output": "/out", "storage_options": OPTIONS, "ledger": "/L", "workers": 3, "log_level": "info"}
PASSES = GraphPasses(reference="m:g", made_of={"module": {}}, epochs=3)
TRAVELLING = PickledObject("__main__:f", "AAAA")

BY_KEY = KeyChoice("key", ("a", "b.c"), descending=True, nulls="first")
BY_FUNCTION = KeyChoice("key", function=TRAVELLING, made_of={"code": {"f": "ab"}})
NAMED = MappedFunction("f", "m:f", {"module": {"m": "ab"}}, {"limit": 1.5}, 8, batch_matters=True)
GIVEN = MappedFunction("f 2", TRAVELLING, {"code": {"f": "ab"}})
CUT = Partition.of_cuts([b"a", b"b"])
TWICE = dataclasses.replace(CUT, merges=Merges(2, 3))
SORT = SortJob(files=FILES, key=BY_KEY, partition=CUT, to="jsonl", state="ab", **WORDS)  # type: ignore[arg-type]

DEDUP = DedupJob(files=FILES, key=KeyChoice("content"), prefer=BY_KEY, to="jsonl", state="ab", **WORDS)  # type: ignore[arg-type]

JOIN = JoinJob(
    files=FILES,
    key=BY_FUNCTION,
    right=ListedFiles(patterns=("/right/*.jsonl",), columns=("a",)),
    right_key=BY_KEY,
    how="left",
    under="of",
    partition=CUT,
    to="jsonl",
    **WORDS,  # type: ignore[arg-type]
)

AGAINST = NearChoice(14, 8, 5, against=("/A", "/B"))
NEAR = NearJob(files=FILES, key=BY_FUNCTION, prefer=BY_KEY, near=AGAINST, to="jsonl", **WORDS)  # type: ignore[arg-type]
PAIRS = NEAR.decide().first_writers()["pairs"]
assert isinstance(PAIRS, PairsJob)
CLUSTERED = dataclasses.replace(NEAR.decide(), in_rounds=True, partition=Partition(9))  # type: ignore[call-arg]
LABELS = CLUSTERED.first_writers()["labels"]
assert isinstance(LABELS, LabelsJob)

LINES = LinesJob(files=FILES, key=KeyChoice("digest", ("text",)), to="parquet", mark=True, **WORDS)  # type: ignore[arg-type]

SCATTER = ScatterChoice(key=BY_FUNCTION, cuts=("ab", "cd"), as_read=False)
GATHERED = GatheredRuns(
    runs="/runs", ledger="/S", scattered={"scatter": {"by": "a"}, "task_bytes": 9}, state="ab", task_bytes=7
)
VERIFIED = NearJob(files=FILES, key=BY_KEY, prefer=BY_FUNCTION, near=NearChoice(14, 8, 5, 0.8), to="jsonl", **WORDS)  # type: ignore[arg-type]
TEXTS = VERIFIED.decide().first_writers()["texts"]
assert isinstance(TEXTS, TextsJob)

SPECS: list[JobSpec] = [
    VERIFIED,
    VERIFIED.decide(),
    TEXTS,
    TEXTS.decide(),
    NEAR,
    NEAR.decide(),
    PAIRS,
    PAIRS.scatter(),
    CLUSTERED,
    LABELS,
    LABELS.stars(),
    LABELS.turn(1),
    LABELS.turn(2),
    JOIN,
    JOIN.sides()["right"],
    DEDUP,
    SplitJob(files=FILES, key=BY_KEY, parts=(("a", 98), ("b", 2)), to="jsonl", **WORDS),  # type: ignore[arg-type]
    DEDUP.decide(),
    DEDUP.decide().scatter(),
    LINES,
    LINES.decide(),
    LINES.decide().scatter(),
    SORT,
    SORT.scatter(),
    dataclasses.replace(SORT, partition=TWICE).scatter(),
    dataclasses.replace(JOIN, partition=TWICE).merge(1),
    GroupJob(files=FILES, key=BY_FUNCTION, partition=Partition(3), function="m:f", made_of={}, to="jsonl", **WORDS),  # type: ignore[arg-type]
    SortJob(files=FILES, key=BY_FUNCTION, partition=CUT, to="tar", **WORDS).scatter(),  # type: ignore[arg-type]
    ShuffleJob(files=FILES, key=KeyChoice("shuffle", seed=7), partition=Partition(9), to="tar", **WORDS),  # type: ignore[arg-type]
    RepartitionJob(files=FILES, key=KeyChoice("place"), partition=CUT, to="text", shard_bytes=9, **WORDS),  # type: ignore[arg-type]
    IndexJob(files=ListedFiles(sources_from="/list"), run="000001", run_dir="/L/run/000001"),
    MapJob(files=FILES, functions=(NAMED,), to="jsonl", nan="null", **WORDS),  # type: ignore[arg-type]
    MapJob(files=FILES, functions=(NAMED, GIVEN), to="jsonl", style="datasets", keep_dropped=True, **WORDS),  # type: ignore[arg-type]
    AnnotateJob(files=FILES, functions=(NAMED,), to="parquet", layout=ColumnLayout(), published="columns", **WORDS),  # type: ignore[arg-type]
    DecontaminateJob(files=FILES, against={"/quiz.jsonl": "ab"}, ngram=13, field="text", to="jsonl", **WORDS),  # type: ignore[arg-type]
    SelectJob(files=SELECTED, to="jsonl", **WORDS),  # type: ignore[arg-type]
    ConvertJob(files=FILES, to="megatron", dataset=DatasetParts(**dataclasses.asdict(PARTS)), **WORDS),  # type: ignore[arg-type]
    ConvertJob(files=FILES, to="shar", fields=(("recording", "wav"), ("label", "cls")), **WORDS),  # type: ignore[arg-type]
    MaterializeJob(passes=PASSES, to="tar", published="lit", **WORDS),  # type: ignore[arg-type]
    TokenizeJob(files=FILES, tokenizer="bytes", checksum="bytes", keys=("a", "b"), eod=None, dataset=PARTS, **WORDS),  # type: ignore[arg-type]
    PackJob(files=FILES, length=64, eod=7, weight=0.5, **WORDS),  # type: ignore[arg-type]
    PipelineJob(name="own", to="jsonl", files=FILES, functions={"f": "ab"}, whole="w", chain="c", **WORDS),  # type: ignore[arg-type]
    PipelineJob(name="own", to="run", files=FILES, scatter=SCATTER, partition=CUT, whole="w", chain="c", **WORDS),  # type: ignore[arg-type]
    PipelineJob(name="own", to="jsonl", gathered=GATHERED, whole="w", chain="c", **WORDS),  # type: ignore[arg-type]
    PipelineJob(name="own", to="x", passes=PASSES, whole="w", chain="c", rest="r", **WORDS),  # type: ignore[arg-type]
]


@each("job", SPECS, ids=lambda job: f"{job.command} {getattr(job, 'to', '')}")
def test_a_job_survives_json(job: JobSpec) -> None:
    data = dump_job(job)
    assert b"hunter2" not in data
    loaded = load_job(data, dict(job.storage_options))
    assert loaded == job
    assert loaded.identity().fingerprint == job.identity().fingerprint
    assert load_job(data, {}) == dataclasses.replace(job, storage_options={})


def test_every_kind_of_job_is_here() -> None:
    known = {command: job_class(command) for commands in KINDS.values() for command in commands}
    assert {job.command: type(job) for job in SPECS} == known


@each("job", SPECS, ids=lambda job: f"{job.command} {getattr(job, 'to', '')}")
def test_no_module_of_ours_is_in_the_identity_of_a_job(job: JobSpec) -> None:
    assert "ledgerbeam" not in str(job.identity().as_dict())


def test_how_a_job_runs_is_not_in_its_identity() -> None:
    job = next(job for job in SPECS if isinstance(job, MapJob))
    other = dataclasses.replace(job, workers=1, log_level="debug", storage_options={}, run="000009", ledger="/M")
    assert other.identity() == job.identity()
    assert dataclasses.replace(job, output="/elsewhere").identity() != job.identity()
