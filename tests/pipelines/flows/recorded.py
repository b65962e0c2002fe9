"""Ledgers of the steps of a flow as runs leave them, written without running a job: for quick tests."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ledgerbeam
from ledgerbeam.ledger import Output, Source
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.ledger.model.identity import content_checksum
from ledgerbeam.ledger.model.rows import Failure, Leaf
from ledgerbeam.pipelines.exchange.jobs import GatherJob
from ledgerbeam.pipelines.flows.step import FlowRunOptions, PreparedStep
from ledgerbeam.pipelines.jobs.claim import OpenedJob, open_job
from ledgerbeam.pipelines.jobs.listing import listed_pages
from ledgerbeam.pipelines.jobs.spec import JobSpec

LINE = b'{"n": 1}\n'


def prepared(flow: ledgerbeam.Flow, step: str) -> PreparedStep:
    """Return a step with its call."""
    return next(one for one in flow.prepared((), FlowRunOptions()) if one.name == step)


def record(
    flow: ledgerbeam.Flow,
    step: str,
    made: Mapping[str, Sequence[str]] | None = None,
    *,
    line: bytes = LINE,
    failed: Iterable[str] = (),
    open_: Iterable[str] = (),
) -> None:
    """Have the ledger of a step of one job hold what a run leaves that has listed its sources.

    Args:
        flow: The flow.
        step: The name of the step; those that it reads are recorded.
        made: Of a source, by the first letter of its name, the routes to which it has a shard; the main dataset is the
            empty name. None for one shard of the main dataset of each.
        line: What each shard holds.
        failed: First letters of sources that have failed.
        open_: First letters of sources that are open.
    """
    job = prepared(flow, step).call.job
    opened = open_job(job, "restart", None)
    with_work = {*failed, *open_}
    run = _begin(opened, sources := _listed(job))
    opened.store.forget_sources([source.id for source in sources])
    for source in sources:
        name = source.url.rpartition("/")[2][0]
        if name in with_work:
            continue
        routes = [""] if made is None else made.get(name, ())
        outputs = [_shard(job, source, route, line) for route in routes]
        read = max(1, len(outputs))
        dropped = {} if outputs else {"None": 1}
        counts = RecordCounts(read, len(outputs), dropped, {}, dict.fromkeys(routes, 1))
        opened.store.commit([Leaf(source.id, (), "published", tuple(outputs), len(outputs), len(line), counts=counts)])
    failures = [source for source in sources if source.url.rpartition("/")[2][0] in failed]
    opened.store.commit([], [Failure(source.id, (), source.url, "ValueError", "seven") for source in failures])
    opened.store.end_run(run, "done", tidied=True)
    opened.store.close()


def record_scatter(flow: ledgerbeam.Flow, step: str) -> None:
    """Have the ledger of the first stage of a step of several hold its sources as complete, and stop there."""
    call = prepared(flow, step).call
    whole: Any = call.job
    opened = open_job(whole, "restart", None)
    decided: Any = opened.job
    assert isinstance(decided, GatherJob)
    for job in decided.scatters():
        scatter = open_job(job, "restart", None)
        run = _begin(scatter, sources := _listed(job))
        for source in sources:
            scatter.store.commit([Leaf(source.id, (), "filtered")])
        scatter.store.end_run(run, "done", tidied=True)
        scatter.store.close()
    opened.store.close()


def record_gather(flow: ledgerbeam.Flow, step: str) -> None:
    """Have the ledger of the last stage of a step of several hold a bucket as complete."""
    job = prepared(flow, step).call.job
    opened = open_job(job, "accept", None)
    bucket = Source("bucket://0", 1, "1")
    run = _begin(opened, [bucket])
    opened.store.commit([Leaf(bucket.id, (), "published", (_shard(job, bucket, "", LINE),), 1, len(LINE))])
    opened.store.end_run(run, "done", tidied=True)
    opened.store.close()


def _listed(job: JobSpec) -> list[Source]:
    pages = listed_pages(job, lambda _: None)
    return [Source(*row) for page in pages for row in zip(page.urls, page.sizes, page.versions, strict=True)]


def _begin(opened: OpenedJob, sources: Sequence[Source]) -> str:
    store = opened.store
    token = f"{time.time_ns()}"
    run = store.begin_run({"pid": 1, "command": [opened.job.command], "token": token})
    if opened.owner is not None:
        opened.owner.claim(store, token)
    store.register(sources)
    known = {one for ids in store.source_ids() for one in ids}
    gone = known - {source.id for source in sources}
    store.note_listing(run, listed=len(sources), finished=True, gone=gone)
    return run


def _shard(job: JobSpec, source: Source, route: str, line: bytes) -> Output:
    stem = source.url.rpartition("/")[2].replace(":", "")
    name = f"{f'{route}/' if route else ''}{stem}-0000000000.jsonl"
    path = Path(str(job.output)) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(line)
    return Output(name, len(line), content_checksum([line]), 1, 0, route=route)
