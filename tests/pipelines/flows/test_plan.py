"""What a run of a flow would do and why, and which steps are begun: judged by ledgers alone, without running a job."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import ledgerbeam
from ledgerbeam.errors import SourceNotFoundError
from ledgerbeam.ledger import Output, Source
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.ledger.model.identity import content_checksum
from ledgerbeam.ledger.model.rows import Failure, Leaf
from ledgerbeam.pipelines.cli.cli import main
from ledgerbeam.pipelines.console.reporter import Reporter
from ledgerbeam.pipelines.exchange.jobs import GatherJob
from ledgerbeam.pipelines.flows.run import FlowRun, run_steps
from ledgerbeam.pipelines.flows.step import FlowRunOptions
from ledgerbeam.pipelines.jobs.claim import OpenedJob, open_job
from ledgerbeam.pipelines.jobs.listing import listed_pages
from ledgerbeam.pipelines.jobs.spec import JobSpec
from tests.pipelines.flows.test_run import flow_of, folder, marked, names, planned, put

__all__ = ["folder"]

LINE = b'{"n": 1}\n'


def call_of(flow: ledgerbeam.Flow, step: str) -> Any:
    return next(one.call for one in flow.prepared((), FlowRunOptions()) if one.name == step)


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

    The steps that it reads are recorded. Sources are told by the first letter of their names. `made` has the routes to
    which a source has a shard of one `line`; the main dataset is the empty name. None is one such shard of each.
    """
    job = call_of(flow, step).job
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
    opened = open_job(call_of(flow, step).job, "restart", None)
    assert isinstance(opened.job, GatherJob)
    for job in opened.job.scatters():
        scatter = open_job(job, "restart", None)
        run = _begin(scatter, sources := _listed(job))
        for source in sources:
            scatter.store.commit([Leaf(source.id, (), "filtered")])
        scatter.store.end_run(run, "done", tidied=True)
        scatter.store.close()
    opened.store.close()


def record_gather(flow: ledgerbeam.Flow, step: str) -> None:
    """Have the ledger of the last stage of a step of several hold a bucket as complete."""
    job = call_of(flow, step).job
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


def chain(mark: str = "x", **options: Any) -> ledgerbeam.Flow:
    return flow_of(
        first={"map": marked(mark), "sources": "in/*.jsonl", **options},
        second={"convert": True, "from": "first"},
        third={"convert": True, "from": "second"},
    )


def fork() -> ledgerbeam.Flow:
    """A step that routes, one that reads the main dataset, one that reads a route, and one apart."""
    return flow_of(
        first={"map": marked("x"), "sources": "in/*.jsonl"},
        main={"convert": True, "from": "first"},
        odd={"convert": True, "from": "first/odd"},
        apart={"convert": True, "sources": "in/*.jsonl"},
    )


def staged(**of_sort: Any) -> ledgerbeam.Flow:
    ordered = {"sort": True, "sources": "in/*.jsonl", "by": "n", **of_sort}
    return flow_of(ordered=ordered, after={"convert": True, "from": "ordered"})


def finished(flow: ledgerbeam.Flow) -> ledgerbeam.Flow:
    for name in flow.steps:
        record(flow, name)
    return flow


def run(flow: ledgerbeam.Flow) -> FlowRun:
    how = FlowRunOptions()
    return run_steps(flow.title, flow.prepared((), how), how, Reporter(quiet=True))


def test_with_nothing_there_all_is_new_and_nothing_is_written(folder: Path) -> None:
    plan = chain().plan()
    assert planned(chain()) == {"first": {"new": 4}, "second": {"upstream": 4}, "third": {"upstream": 4}}
    assert [step.is_estimate for step in plan.steps.values()] == [False, True, True]
    assert not plan.is_complete
    assert not any(step.is_complete for step in plan.steps.values())
    assert not (folder / "flow").exists()


def test_what_is_done_is_complete_and_stays(folder: Path) -> None:
    plan = finished(chain()).plan()
    assert plan.is_complete
    assert str(plan).splitlines()[2] == "third: nothing to do, 4 sources complete"
    assert planned(chain()) == {name: {"complete": 4} for name in ("first", "second", "third")}


def test_sources_that_are_new_changed_or_gone_run_and_so_does_what_follows(folder: Path) -> None:
    finished(chain())
    put(folder, "b", 5)
    put(folder, "e")
    (folder / "in" / "c.jsonl").unlink()
    follows = {"complete": 2, "upstream": 2, "withdrawn": 1}
    assert planned(chain()) == {
        "first": {"complete": 2, "changed": 1, "new": 1, "withdrawn": 1},
        "second": follows,
        "third": follows,
    }
    assert not chain().plan().is_complete


def test_a_source_that_only_goes_leaves_work(folder: Path) -> None:
    finished(chain())
    (folder / "in" / "c.jsonl").unlink()
    assert planned(chain()) == {name: {"complete": 3, "withdrawn": 1} for name in ("first", "second", "third")}
    assert not chain().plan().is_complete


def test_outputs_that_were_written_again_run_what_reads_them_by_content_alone(folder: Path) -> None:
    finished(chain())
    put(folder, "b", 5)
    record(chain(), "first")
    assert planned(chain())["second"] == {"complete": 4}, "the same bytes came of it"
    record(chain(), "first", line=b'{"n": 2}\n')
    assert planned(chain()) == {"first": {"complete": 4}, "second": {"upstream": 4}, "third": {"upstream": 4}}


def test_another_function_or_option_runs_its_step_and_what_follows(folder: Path) -> None:
    finished(chain())
    for flow, why in ((chain("y"), "code"), (chain(nan="null"), "options")):
        assert planned(flow) == {"first": {why: 4}, "second": {"upstream": 4}, "third": {"upstream": 4}}
        differences = {name: bool(step.differences) for name, step in flow.plan().steps.items()}
        assert differences == {"first": True, "second": False, "third": False}


def test_a_step_before_is_not_run_by_what_changes_behind_it(folder: Path) -> None:
    finished(chain())
    flow = flow_of(
        first={"map": marked("x"), "sources": "in/*.jsonl"},
        second={"convert": True, "from": "first", "task_bytes": 100},
        third={"convert": True, "from": "second"},
    )
    assert planned(flow) == {"first": {"complete": 4}, "second": {"options": 4}, "third": {"upstream": 4}}


def test_an_output_that_is_lost_is_written_again(folder: Path) -> None:
    finished(chain())
    next((folder / "flow" / "second" / "output").glob("b*.jsonl")).unlink()
    assert planned(chain()) == {
        "first": {"complete": 4},
        "second": {"complete": 3, "lost": 1},
        "third": {"complete": 3, "upstream": 1},
    }


def test_what_failed_and_what_is_open_is_told_apart(folder: Path) -> None:
    record(chain(), "first", failed="b", open_="cd")
    assert planned(chain(), "first") == {"first": {"complete": 1, "failed": 1, "open": 2}}
    assert not chain().plan("first").is_complete


def test_only_steps_that_are_named_and_what_they_read(folder: Path) -> None:
    assert [*planned(chain(), "second")] == ["first", "second"]
    assert [*planned(fork(), "odd", "apart")] == ["first", "odd", "apart"]


def test_a_route_is_read_by_the_step_that_names_it_alone(folder: Path) -> None:
    flow = fork()
    record(flow, "first", {"a": [""], "b": ["", "odd"], "c": ["odd"]})
    assert planned(flow) == {
        "first": {"complete": 4},
        "main": {"upstream": 2},
        "odd": {"upstream": 2},
        "apart": {"new": 4},
    }
    record(flow, "main")
    record(flow, "odd")
    record(flow, "first", {"a": [""], "b": [""], "c": ["odd"]})
    assert planned(flow)["main"] == {"complete": 2}
    assert planned(flow)["odd"] == {"complete": 1, "withdrawn": 1}


@pytest.mark.parametrize("made", [{}, {name: ["odd"] for name in "abcd"}], ids=["nothing", "routes alone"])
def test_steps_behind_one_that_keeps_nothing_are_complete_with_nothing(folder: Path, made: Any) -> None:
    finished(chain())
    record(chain(), "first", made)
    assert planned(chain()) == {"first": {"complete": 4}, "second": {"withdrawn": 4}, "third": {"withdrawn": 4}}
    done = run(chain())
    assert done.complete
    assert done.tasks == 0
    for step in ("second", "third"):
        assert [*(folder / "flow" / step / "output").rglob("*.jsonl*")] == []
    assert chain().plan().is_complete
    assert run(chain()).complete


def test_a_first_run_behind_a_step_that_keeps_nothing_is_complete(folder: Path) -> None:
    record(chain(), "first", {})
    assert not chain().plan().is_complete, "the steps behind it have not run"
    assert run(chain()).complete
    assert chain().plan().is_complete


def test_an_exchange_that_stopped_between_its_stages_is_not_done(folder: Path) -> None:
    record_scatter(staged(), "ordered")
    plan = staged().plan()
    assert planned(staged())["ordered"] == {"open": 4}
    assert not plan.steps["ordered"].is_complete
    assert "4 sources to do (4 open)" in str(plan)
    record_gather(staged(), "ordered")
    assert planned(staged())["ordered"] == {"complete": 4}
    assert staged().plan().steps["ordered"].is_complete
    put(folder, "b", 5)
    record_scatter(staged(), "ordered")
    assert planned(staged())["ordered"] == {"open": 4}, "the last stage has not read what was scattered again"
    assert not staged().plan().steps["ordered"].is_complete
    assert planned(staged())["after"] == {"upstream": 1}


def test_what_an_exchange_makes_is_made_again_if_one_source_runs(folder: Path) -> None:
    record_scatter(staged(), "ordered")
    record_gather(staged(), "ordered")
    record(staged(), "after")
    assert staged().plan().is_complete
    put(folder, "e")
    assert planned(staged()) == {"ordered": {"complete": 4, "new": 1}, "after": {"upstream": 1}}
    (folder / "in" / "e.jsonl").unlink()
    (folder / "in" / "a.jsonl").unlink()
    assert planned(staged()) == {"ordered": {"complete": 3, "withdrawn": 1}, "after": {"upstream": 1}}
    put(folder, "a")
    assert planned(staged(descending=True)) == {"ordered": {"changed": 1, "options": 3}, "after": {"upstream": 1}}


def test_a_dataset_that_is_not_made_yet_is_work(folder: Path) -> None:
    """A run that is killed before it has published what all shards make, with every source complete."""
    flow = flow_of(first={"convert": True, "sources": "in/*.jsonl", "to": "webdataset"})
    record(flow, "first")
    assert not flow.plan().is_complete
    assert str(flow.plan()) == "first: no source to do, last run not finished, 4 sources complete"


def test_a_step_is_not_begun_if_what_it_reads_ended_with_an_error(folder: Path) -> None:
    """Its sources were complete before, and it would be done with what is out of date."""
    finished(chain())
    for path in (folder / "in").iterdir():
        path.unlink()
    with pytest.raises(SourceNotFoundError, match="step first"):
        chain().plan()
    done = run(chain())
    assert [*done.errors] == ["first"]
    assert {*done.left} == {"second", "third"}
    assert done.steps == {}
    assert not done.complete
    with pytest.raises(SourceNotFoundError, match="step first"):
        done.raise_for_failures()
    assert names(folder, "first") == names(folder, "second") == [*"abcd"], "an empty listing withdraws nothing"


def test_a_step_is_not_begun_if_what_it_reads_is_not_complete(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = '[steps.{}]\nconvert = true\n{}\nto = "jsonl"\nworkers = 1\n'
    steps = [
        text.format("bad", 'sources = "nowhere/*.jsonl"'),
        text.format("after", 'from = "bad"'),
        text.format("later", 'from = ["apart", "after"]'),
        text.format("apart", 'sources = "in/*.jsonl"'),
    ]
    (folder / "flow.toml").write_text(f'root = "flow"\n{"".join(steps)}')
    record(ledgerbeam.Flow.from_file("flow.toml"), "apart")
    assert main(["run", "flow.toml", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert "nowhere" in found["steps"]["bad"]["error"]
    assert "complete step bad" in found["steps"]["after"]["left"]
    assert "complete step after" in found["steps"]["later"]["left"]
    assert found["steps"]["apart"]["complete"]
    assert not found["complete"]


def test_a_step_is_not_begun_if_tasks_of_what_it_reads_failed(folder: Path) -> None:
    """What it reads is complete but for these, and it would be done without them."""

    def refuse(record: dict[str, Any]) -> Any:
        raise ValueError(record["of"])

    done = run(flow_of(bad={"map": refuse, "sources": "in/a.jsonl"}, after={"convert": True, "from": "bad"}))
    assert not done["bad"].complete
    assert "complete step bad" in done.left["after"]
    assert done.errors == {}


def test_times_of_files_decide_nothing_behind_the_first_step(folder: Path) -> None:
    finished(chain())
    for path in (folder / "flow" / "first" / "output").glob("*.jsonl"):
        os.utime(path, (time.time() + 9, time.time() + 9))
    assert planned(chain())["second"] == {"complete": 4}
