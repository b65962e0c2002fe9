"""The course of a call that is an exchange: which stages do what, what is told of them, and what stays between them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import ledgerbeam
from ledgerbeam.errors import ChangedSourceError, LedgerbeamError, RunFileError, SourceNotFoundError, UsageError
from ledgerbeam.ledger import LedgerStore, Source
from ledgerbeam.ledger.model.rows import Failure, Leaf
from ledgerbeam.ledger.opening import open_local_store
from ledgerbeam.pipelines.dedup.exact import ListsRead
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.pipelines.runners.stage_loop import StageLoop
from tests.pipelines.exchanges.in_process import HereWaves, Told, marking, prepared
from tests.pipelines.exchanges.stages import gone_in, marks_in, write_jsonl

PASSED_OVER = "passed over, since their names are not those of sources: 1 file, such as {}/in/README"


def key(record: dict[str, Any]) -> Any:
    if record["k"] == 3 and not Path("works").exists():
        raise ValueError("it does not work")
    return record["k"]


def counted(key: Any, records: Iterator[Any]) -> dict[str, Any]:
    if key == 3 and not Path("works").exists():
        raise ValueError("it does not work")
    return {"k": key, "n": sum(1 for _ in records)}


HOW: dict[str, Any] = {"to": "jsonl", "output": "out", "ledger": "L", "workers": 1}
NEAR: dict[str, Any] = {"near": "text", "ngram": 2, "minhash": "4x2", **HOW}

sort = partial(ledgerbeam.sort, ["in/*"], by="k", **HOW)
in_rounds = partial(sort, max_slices=8, shard_bytes=150)
join = partial(ledgerbeam.join, ["in/*"], ["right/*"], by="k", **HOW)
group = partial(ledgerbeam.group, counted, ["in/*"], by="k", **HOW)
dedup = partial(ledgerbeam.dedup, ["in/*"], by="k", **HOW)
near = partial(ledgerbeam.dedup, ["in/*"], **NEAR)


def write(name: str, *keys: int) -> None:
    rows = [{"k": key, "of": name, "text": f"a b c d e f {key % 3}"} for key in keys]
    write_jsonl(Path("in") / f"{name}.jsonl", rows)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in "abc":
        write(name, 4, 1, 0, 2)
    write_jsonl(tmp_path / "right" / "r.jsonl", [{"k": 1, "m": 1}])
    (tmp_path / "in" / "README").touch()
    return tmp_path


@dataclass(frozen=True)
class Ran:
    """What a call has done."""

    result: ledgerbeam.Result
    told: Told
    waves: list[str]  # ledgers of the stages of which tasks were done, below that of the call

    @property
    def stages(self) -> dict[str, Any]:
        """How each stage has ended."""
        return dict(self.result.summary["stages"])

    @property
    def tasks(self) -> dict[str, int]:
        """How many tasks of each stage were done."""
        return {name: stage["done"]["tasks"] for name, stage in self.stages.items()}


def run(call: Callable[..., Any], waves: HereWaves | None = None, **values: Any) -> Ran:
    told, waves = Told(), waves or HereWaves()
    result = prepared(call, **values).result(told, waves)
    assert told.result is result
    return Ran(result, told, [os.path.relpath(ledger, result.ledger) for ledger in waves.started])


def records(output: str = "out") -> list[Any]:
    return [json.loads(line) for path in sorted(Path(output).glob("*.jsonl")) for line in path.read_text().splitlines()]


def keys() -> list[int]:
    return [row["k"] for row in records()]


def internal() -> set[str]:
    """Return the folders of run files, lists and tables that are left."""
    return {path.name for path in Path("out").glob("_*")} - {"_ledgerbeam"}


@pytest.fixture
def store() -> Iterator[Callable[[str], LedgerStore]]:
    """Opens the ledger of a stage."""
    opened: list[LedgerStore] = []

    def one(name: str) -> LedgerStore:
        opened.append(open_local_store(str(Path("L").resolve() / name), create=False))
        return opened[-1]

    yield one
    for found in opened:
        found.close()


def test_each_stage_is_told_once_with_what_it_has_before_and_what_it_reads(folder: Path) -> None:
    ran = run(sort, keep_runs=True)
    runs = [path.stat().st_size for path in folder.rglob("*.run")]
    assert ran.told.said == [
        "buckets: 1, cut by a sample of the keys",
        f"ledger: {folder / 'L'} (new)",
        "scatter: new",
        PASSED_OVER.format(folder),
        f"3 run files of {sum(runs):,} bytes -> 1 bucket",
        "gather: new",
    ]
    assert ran.told.warned == []
    assert (ran.waves, keys()) == (["scatter", "."], sorted([0, 1, 2, 4] * 3))
    again = run(sort, keep_runs=True)
    assert again.told.said == [
        f"ledger: {folder / 'L'} (resuming: scatter 3 of 3 tasks, gather 1 of 1)",
        "scatter: complete, 3 of 3 tasks done",
        PASSED_OVER.format(folder),
        "gather: complete, 1 of 1 tasks done",
    ]
    assert (again.waves, again.result.tasks, again.result.complete) == ([], 0, True)
    assert len(list(folder.rglob("*.run"))) == 3


def test_the_result_has_each_stage_and_the_sum_of_all(folder: Path) -> None:
    result = run(sort).result
    stages = result.summary["stages"]
    scatter, gather = stages.values()
    assert list(stages) == ["scatter", "gather"]
    assert [stage["ledger"] for stage in stages.values()] == [str(folder / "L/scatter"), str(folder / "L")]
    assert scatter["sources"] == {"complete": 3, "open": 0, "failed": 0}
    assert gather["sources"] == {"complete": 1, "open": 0, "failed": 0}
    for stage, tasks in ((scatter, 3), (gather, 1)):
        assert stage["complete"] is True
        assert (stage["tasks"], stage["skipped"]) == ({"done": tasks, "failed": 0}, 0)
        assert (stage["done"]["tasks"], stage["records"]["read"], stage["done"]["records"]["read"]) == (tasks, 12, 12)
        assert stage["bytes"] == stage["done"]["bytes"] > 0
        assert stage["seconds"] == round(stage["seconds"], 3) > 0
    assert result.summary["sources"] == scatter["sources"], "what the user has given"
    assert (result.tasks, result.summary["tasks"], result.sources) == (4, {"done": 4, "failed": 0}, 3)
    assert result.seconds == pytest.approx(sum(stage["seconds"] for stage in stages.values()), abs=0.01)
    assert (result.command, result.ledger, result.output) == ("sort", str(folder / "L"), str(folder / "out"))
    again = run(sort).result
    assert (again.summary["skipped"], again.sources, again.summary["stages"]["gather"]["skipped"]) == (3, 0, 1)


def test_a_ledger_that_nobody_has_named_is_told_as_it_is_reached_from_here(folder: Path) -> None:
    ran = run(sort, ledger=None)
    (line,) = (line for line in ran.told.said if line.startswith("ledger: "))
    assert line == f"ledger: {Path(str(ran.result.ledger)).relative_to(folder)} (new)"


def test_what_is_passed_over_is_counted_once_for_each_of_the_patterns(folder: Path) -> None:
    (folder / "right" / "NOTES").touch()
    for call, number in ((join, 2), (partial(dedup, output="other", ledger="M"), 1)):
        assert run(call).result.summary["passed_over"] == number


def test_what_a_runner_that_lists_for_itself_has_passed_over_is_not_known() -> None:
    run(sort)
    for runner, passed_over in ((None, 1), ("BundleBasedDirectRunner", None)):
        options = [] if runner is None else [f"--runner={runner}"]
        call = prepared(sort)
        result = StageLoop(call.job, call.how, Told(), options, HereWaves()).run()
        assert result.summary["passed_over"] == passed_over


def test_a_deduplication_tells_of_its_stages_and_leaves_nothing_of_them(folder: Path) -> None:
    ran = run(dedup)
    told = [line.partition(" ")[0] for line in ran.told.said]
    assert told == ["ledger:", "scatter:", "passed", "3", "decide:", "passed", "dedup:"]
    assert ran.told.said[0] == f"ledger: {folder / 'L'} (new)"
    assert ran.tasks == {"scatter": 3, "decide": 1, "dedup": 3}
    assert (ran.result.command, ran.result.ledger, ran.result.summary["tasks"]["done"]) == (
        "dedup",
        str(folder / "L"),
        7,
    )
    assert (keys(), internal()) == ([4, 1, 0, 2], set())
    again = run(dedup)
    assert (again.waves, again.result.complete) == ([], True)


def test_marks_have_the_stages_of_a_deduplication_and_their_folder_is_their_own(folder: Path) -> None:
    ran = run(marking(dedup))
    assert (ran.result.command, ran.tasks) == ("dedup", {"scatter": 3, "decide": 1, "dedup": 3})
    first, *others = (str(folder / "in" / f"{name}.jsonl") for name in "abc")
    assert gone_in(marks_in(folder / "out")) == {(url, n): (first, n) for url in others for n in range(4)}
    (mark,) = folder.glob("out/_ledgerbeam/*.json")
    assert json.loads(mark.read_text())["url"] == str(folder / "L")
    again = run(marking(dedup))
    assert (again.waves, again.result.complete) == ([], True)


def test_stages_that_merge_run_files_are_told_and_leave_nothing(store: Callable[[str], LedgerStore]) -> None:
    for name in "abc":
        write(name, 0, 2, 4, 1, 3, 0)
    ran = run(in_rounds)
    merged = [name for name in ran.stages if name.startswith("merge-")]
    assert list(ran.stages) == ["scatter", *merged, "gather"]
    assert merged == [f"merge-{number}" for number in range(1, len(merged) + 1)]
    assert len(merged) > 1
    lines = [line.rpartition(" ")[2] for line in ran.told.said if "run files of" in line]
    assert lines == [*["merges"] * len(merged), "buckets"]
    assert (keys(), internal()) == (sorted([0, 0, 1, 2, 3, 4] * 3), set())
    again = run(in_rounds)
    assert (again.waves, list(again.stages)) == ([], ["scatter", *merged, "gather"])
    run(in_rounds)
    fewer = run(partial(sort, on_job_change="restart"))
    assert list(fewer.stages) == ["scatter", "gather"]
    for name in merged:
        known = {one for page in store(name).source_ids() for one in page}
        assert store(name).gone_ids() == known != set()
        listed = [one["listed"] for one in store(name).runs()]
        assert listed == [len(known), len(known), 0]


def test_clusters_that_are_found_in_rounds_take_their_stages_once(folder: Path) -> None:
    ran = run(near, cluster_bytes=1)
    names = ["scatter", "pairs", "stars", "round-1", "labels", "cluster", "dedup"]
    assert (list(ran.stages), stages_told(ran)) == (names, names)
    assert internal() == {"_signatures"}
    assert {path.suffix for path in folder.glob("out/_signatures/*")} == {".run", ""}, "the tables go"
    assert len(records()) == 1
    again = run(near, cluster_bytes=1)
    assert (again.waves, again.result.tasks, list(again.stages), stages_told(again)) == ([], 0, names, names)


def stages_told(ran: Ran) -> list[str]:
    """Return the names of stages in what was told, in the order of that."""
    found = (line.partition(": ") for line in ran.told.said)
    return [name for name, _, state in found if name != "ledger" and state.startswith(("new", "resuming", "complete"))]


def test_marks_of_clusters_are_those_that_were_found_in_rounds(folder: Path) -> None:
    texts = [" ".join(f"{number % 9}{letter}" for letter in "abcd") for number in range(18)]
    write_jsonl(folder / "in" / "d.jsonl", [{"text": text} for text in texts])
    marked = marking(near, bucket_bytes=200)
    assert run(marked, cluster_bytes=1).tasks["cluster"] > 1
    found = marks_in(folder / "out")
    assert "round-1" not in run(marked, cluster_bytes="1G").stages
    assert marks_in(folder / "out") == found
    assert len(gone_in(found)) == 20


class Failing(HereWaves):
    """Waves in which the first task of a stage fails."""

    def __init__(self, command: str) -> None:
        super().__init__()
        self.command = command

    def work(self, job: JobSpec, sources: Iterable[Any]) -> None:
        if job.command == self.command:
            first, *sources = sources
            store = open_local_store(job.ledger, create=False)
            store.commit([], [Failure(first.source.id, (), "task", "ValueError", "no")])
            store.close()
        super().work(job, sources)


def test_rounds_begin_only_once_all_pairs_are_known() -> None:
    for number in range(8):
        write(f"{number}", *range(number, number + 3))
    ran = run(partial(near, cluster_bytes=1, bucket_bytes=300), Failing("pairs"))
    assert ran.result.complete is False
    assert stages_told(ran) == ["scatter", "pairs"]
    assert ran.tasks["pairs"] > 0


@pytest.mark.parametrize(
    ("call", "place", "then", "found"),
    [
        (sort, "out", {"scatter": 1, "gather": 1}, sorted([0, 1, 2, 4] * 2 + [3, 5])),
        (dedup, "out/_drops", {"scatter": 1, "decide": 1, "dedup": 3}, [4, 1, 0, 2, 3, 5]),
    ],
)
def test_nothing_is_gathered_before_all_is_scattered_and_the_next_run_goes_on(
    folder: Path, call: Callable[..., Any], place: str, then: dict[str, int], found: list[int]
) -> None:
    write("b", 3, 5)
    by_function = partial(call, by=key)
    ran = run(by_function)
    assert (ran.result.complete, list(ran.stages), ran.tasks) == (False, ["scatter"], {"scatter": 2})
    assert ran.told.warned[0] == f"{folder / place}: nothing is written there before the first stage is complete"
    assert ran.result.ledger == str(folder / "L")
    assert not records()
    Path("works").touch()
    assert run(by_function).tasks == then
    assert keys() == found


def test_a_key_that_no_record_has_is_told_by_the_run_that_has_looked_for_it() -> None:
    by_other = partial(sort, by="other")
    (line,) = run(by_other).told.warned
    assert "none of 12 records has a key: other is missing" in line
    assert run(by_other).told.warned == []


@pytest.mark.parametrize(("side", "stages"), [("in/b", ["right", "left"]), ("right/r", ["right"])])
def test_a_join_ends_with_the_side_that_fails(folder: Path, side: str, stages: list[str]) -> None:
    write_jsonl(folder / f"{side}.jsonl", [{"k": 3, "m": 1}])
    by_function = partial(join, by=key)
    ran = run(by_function)
    assert (ran.result.complete, list(ran.stages), ran.waves, records()) == (False, stages, stages, [])
    (line, *_) = ran.told.warned
    assert line == f"{folder / 'out'}: nothing is written there before the first stage is complete"
    assert ran.result.summary["sources"]["failed"] == 1


@pytest.mark.parametrize("patterns", [(["in/*"], ["none/*"]), (["none/*"], ["right/*"])])
def test_a_pattern_that_matches_nothing_any_more_ends_a_join_before_any_side(patterns: tuple[list[str], ...]) -> None:
    run(join)
    write("d", 7)
    write_jsonl(Path("right/s.jsonl"), [{"k": 7, "m": 1}])
    waves = HereWaves()
    with pytest.raises(SourceNotFoundError, match="nothing matches"):
        run(partial(ledgerbeam.join, *patterns, by="k", **HOW), waves)
    assert waves.started == []


def test_only_what_has_failed_for_a_reason_is_done(folder: Path) -> None:
    write("b", 3, 5)
    by_function = partial(sort, by=key)
    run(by_function)
    with pytest.raises(UsageError, match="no failure has such a reason"):
        run(by_function, only_failed="RecordError")
    Path("works").touch()
    write("d", 7)
    ran = run(by_function, only_failed="*FunctionError*")
    assert (ran.tasks, ran.result.complete) == ({"scatter": 1}, False)
    assert ran.told.warned[-1].startswith("1 source left open, because this run selected only some")
    assert len(ran.result.warnings) == 1
    assert run(by_function).tasks == {"scatter": 1, "gather": 1}


@pytest.mark.parametrize("stage", ["scatter", "gather"])
def test_what_has_failed_is_done_by_the_same_call_after_one_that_was_broken_off(folder: Path, stage: str) -> None:
    def broken(_: JobSpec) -> None:
        raise OSError("broken")

    write("b", 3, 5)
    only_failed = partial(sort, by=key, only_failed="*FunctionError*")
    run(partial(sort, by=key))
    Path("works").touch()
    with pytest.raises(LedgerbeamError, match="broken"):
        run(only_failed, Beside("scatter" if stage == "scatter" else "sort", broken))
    for _ in range(2):  # the second has nothing to do
        assert run(only_failed).result.complete
    assert keys() == sorted([0, 1, 2, 4] * 2 + [3, 5])


def test_what_fails_in_the_last_stage_keeps_the_run_files(folder: Path) -> None:
    write("b", 3, 5)
    ran = run(group)
    assert (ran.result.complete, ran.tasks) == (False, {"scatter": 3, "gather": 0})
    assert internal() == {"_runs"}
    Path("works").touch()
    assert run(group).tasks == {"scatter": 0, "gather": 1}
    assert internal() == set()


@pytest.mark.parametrize("debug", [True, False])
def test_the_traceback_of_a_stage_is_shown_to_who_asks_for_it(debug: bool) -> None:
    def fail(_: JobSpec) -> None:
        raise ZeroDivisionError("of what?")

    with pytest.raises(LedgerbeamError, match=r"ZeroDivisionError: of what\?") as caught:
        run(sort, Beside("scatter", fail), debug=debug)
    assert ("Traceback" in str(caught.value)) is debug


@pytest.mark.parametrize("call", [partial(sort, by="text"), near])
def test_a_call_that_is_only_looked_at_holds_to_what_was_decided(call: Callable[..., Any]) -> None:
    of_many = partial(call, bucket_bytes=300)
    run(of_many)
    for number in range(9):
        write(f"{number}", *range(50))
    told = Told()
    found = prepared(of_many, dry_run=True).result(told)
    assert (found.summary["new"], found.summary["differences"], found.summary["sources"]["complete"]) == (False, [], 3)
    assert [line for line in told.said if line.startswith("buckets")] == []


def test_run_files_that_are_gone_are_made_again_before_they_are_read(folder: Path) -> None:
    run(sort, keep_runs=True)
    min(folder.rglob("*.run")).unlink()
    again = run(sort, keep_runs=True)
    assert (again.waves, again.told.warned) == ([], []), "nobody reads it"
    write("d", 9)
    ran = run(sort, keep_runs=True)
    assert ran.told.warned == ["1 run file must be written again (a complete job removes them), from the sources"]
    assert ran.waves == ["scatter", "scatter", "."]
    assert ran.result.tasks == 3
    assert keys() == sorted([0, 1, 2, 4] * 3 + [9])


def _swap(one: Path, other: Path) -> None:
    kept = one.rename(one.with_name("kept"))
    other.rename(one)
    kept.rename(other)


def test_a_run_file_in_the_place_of_another_is_told_and_written_again(folder: Path) -> None:
    write("b", 4, 1, 7, 8)
    a, b = (folder / f"out/_drops/_runs/{name}.jsonl-0000000000.run" for name in "ab")
    with pytest.raises(RunFileError, match=r"a\.jsonl.*: another task has written it: .* delete this file and run"):
        run(dedup, Beside("scatter", lambda _: _swap(a, b)))
    a.unlink()
    with pytest.raises(RunFileError, match=r"b\.jsonl.*: another task has written it"):
        run(dedup)
    b.unlink()
    assert run(dedup).result.complete
    assert keys() == [4, 1, 0, 2, 7, 8]


@pytest.mark.parametrize(("call", "path"), [(sort, "_runs"), (dedup, "_drops"), (dedup, "_drops/_runs")])
def test_a_link_in_the_place_of_a_folder_of_a_stage_is_refused(
    folder: Path, call: Callable[..., Any], path: str
) -> None:
    run(call)
    write("d", 9)
    (folder / "victim").mkdir()
    (folder / "out" / path).parent.mkdir(exist_ok=True)
    (folder / "out" / path).symlink_to(folder / "victim")
    with pytest.raises(UsageError, match=f"out/{path}: expected a folder, found a link"):
        run(call)
    assert not list((folder / "victim").iterdir())


@pytest.mark.parametrize("call", [sort, dedup])
def test_a_run_file_in_the_place_of_another_task_of_the_same_source_is_told(
    folder: Path, call: Callable[..., Any]
) -> None:
    by_task = partial(call, task_bytes=50)
    (folder / "in/b.jsonl").unlink()
    (folder / "in/c.jsonl").unlink()
    runs = folder / ("out/_runs" if call is sort else "out/_drops/_runs")

    def of_one_record() -> list[Path]:
        return sorted(runs.glob("a.jsonl-*.run"))[-2:]

    with pytest.raises(RunFileError, match=r"a\.jsonl.*: another task has written it: .* delete this file"):
        run(by_task, Beside("scatter", lambda _: _swap(*of_one_record())))
    for path in of_one_record():
        path.unlink()
    assert run(by_task).result.complete
    assert sorted(keys()) == [0, 1, 2, 4]


def test_an_older_copy_of_a_run_file_is_told_and_written_again(folder: Path) -> None:
    path = folder / "out/_drops/_runs/b.jsonl-0000000000.run"
    run(dedup, keep_runs=True)
    older = path.read_bytes()
    write("b", 4, 1, 7, 8)
    with pytest.raises(RunFileError, match=r"b\.jsonl.*: another task has written it: .* delete this file and run"):
        run(dedup, Beside("scatter", lambda _: path.write_bytes(older)), keep_runs=True)
    path.unlink()
    assert run(dedup, keep_runs=True).result.complete
    assert keys() == [4, 1, 0, 2, 7, 8]


def test_run_files_that_are_gone_and_cannot_be_made_again_end_the_call(folder: Path) -> None:
    write("b", 3, 5)
    Path("works").touch()
    by_function = partial(sort, by=key, keep_runs=True)
    run(by_function)
    for path in folder.rglob("b*.run"):
        path.unlink()
    Path("works").unlink()
    write("d", 9)
    ran = run(by_function)
    assert (ran.result.complete, ran.waves, list(ran.stages)) == (False, ["scatter", "scatter"], ["scatter"])


def test_lists_that_are_gone_and_cannot_be_made_again_end_the_call(folder: Path) -> None:
    write("b", 3, 5)
    Path("works").touch()
    by_function = partial(dedup, by=key)
    run(by_function)
    min(folder.glob("out/*.jsonl")).unlink()
    Path("works").unlink()
    ran = run(by_function)
    assert (ran.result.complete, list(ran.stages)) == (False, ["scatter", "decide"])


def test_an_output_that_is_gone_is_written_again(folder: Path) -> None:
    made = (run(sort), keys())[1]
    (shard,) = folder.glob("out/*.jsonl")
    shard.unlink()
    ran = run(sort)
    assert ran.told.warned == [
        "missing since earlier runs: 1 output, to be written again from the sources",
        "3 run files must be written again (a complete job removes them), from the sources",
    ]
    assert keys() == made


def test_lists_that_are_gone_are_made_again_before_they_are_read(folder: Path) -> None:
    run(dedup, keep_runs=True)
    made = records()
    min(folder.glob("out/_drops/*.run")).unlink()
    assert run(dedup, keep_runs=True).waves == []
    min(folder.glob("out/*.jsonl")).unlink()
    ran = run(dedup)
    assert ran.told.warned == [
        "missing since earlier runs: 1 output, to be written again from the sources",
        "3 run files must be written again (a complete job removes them), from the sources",
    ]
    assert ran.waves == ["decide/scatter", "decide", "."]
    assert (records(), internal()) == (made, set())


def test_lists_that_are_gone_are_made_again_with_those_that_are_new(folder: Path) -> None:
    of_many = partial(dedup, keep_runs=True, bucket_bytes=60)
    assert run(of_many).tasks["decide"] > 2
    min(folder.glob("out/_drops/*.run")).unlink()
    write("d", 9, 9)
    ran = run(of_many)
    assert ran.waves == ["decide/scatter", "decide", "."]
    assert keys() == [4, 1, 0, 2, 9]


def test_run_files_in_a_folder_of_another_ledger_stay(folder: Path) -> None:
    owner = folder / "out" / "_runs" / "_ledgerbeam" / f"{'0' * 32}.json"
    owner.parent.mkdir(parents=True)
    owner.write_text("{}")
    run(partial(sort, existing="keep"))
    assert (len(list(folder.rglob("*.run"))), owner.exists()) == (3, True)


def test_run_files_that_an_exchange_was_to_keep_stay(folder: Path) -> None:
    kept = folder / "out" / "_runs" / "a.jsonl-0000000000-000007.run"
    kept.parent.mkdir(parents=True)
    kept.write_text("of another exchange")
    with pytest.raises(UsageError, match="no ledger owns them"):
        run(sort)
    assert run(partial(sort, existing="keep")).result.complete
    assert kept.read_text() == "of another exchange"


def test_what_a_source_that_is_gone_has_left_goes(folder: Path) -> None:
    for call, left in ((partial(sort, by="of"), ["a", "c"]), (partial(dedup, by="of", ledger="M"), ["a", "c"])):
        assert {row["of"] for row in (run(call), records())[1]} == {"a", "b", "c"}
        (folder / "in" / "b.jsonl").unlink()
        ran = run(call)
        assert ran.result.complete
        assert sorted({row["of"] for row in records()}) == left
        assert ran.result.summary["sources"] == {"complete": 2, "open": 0, "failed": 0}
        write("b", 4, 1, 0, 2)
        shutil.rmtree(folder / "out")


class Beside(HereWaves):
    """Waves beside which something else happens, when one of a stage has ended."""

    def __init__(self, command: str, happens: Callable[[JobSpec], object]) -> None:
        super().__init__()
        self.command = command
        self.happens = happens

    def work(self, job: JobSpec, sources: Iterable[Any]) -> None:
        super().work(job, sources)
        if job.command == self.command:
            self.happens(job)


def test_a_source_that_was_not_scattered_is_not_taken_for_done() -> None:
    def register(job: JobSpec) -> None:
        store, strange = open_local_store(job.ledger, create=False), Source("/in/z.jsonl", 1, "1")
        store.register([strange])
        store.commit([Leaf(strange.id, (), "published", (), 1, 1)])
        store.close()

    with pytest.raises(ChangedSourceError, match="1 source changed during this run"):
        run(dedup, Beside("dedup", register))
    assert run(dedup).result.summary["sources"] == {"complete": 3, "open": 0, "failed": 0}


@pytest.mark.parametrize(("call", "stage"), [(dedup, "decide"), (near, "cluster")])
def test_what_was_decided_with_a_file_that_is_gone_is_not_taken_for_done(
    folder: Path, call: Callable[..., Any], stage: str
) -> None:
    for name in "ab":
        write_jsonl(folder / "in" / f"{name}.jsonl", [{"k": 1, "text": "one text that is in two files"}])
    with pytest.raises(ChangedSourceError, match="sources have changed since the first stage of this run"):
        run(call, Beside(stage, lambda _: (folder / "in" / "a.jsonl").unlink()))
    assert run(call).result.complete
    assert [row["k"] for row in records()].count(1) == 1, "the record of the other file is no duplicate any more"


def _replace_unseen(path: Path, *keys: int) -> None:
    """Put a file of other records in the place of one, with its size and its time."""
    before = path.stat()
    other = path.with_name("README")  # which is passed over
    write_jsonl(other, [{"k": key, "of": path.stem, "text": f"a b c d e f {key % 3}"} for key in keys])
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert other.stat().st_size == before.st_size
    other.replace(path)


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("name", ["a", "b"])
def test_what_was_decided_of_a_file_is_not_left_out_of_another_in_its_place(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, *, ended: bool
) -> None:
    path = folder / "in" / f"{name}.jsonl"
    if ended:
        with monkeypatch.context() as patch:
            patch.setattr(ListsRead, "_list", _interrupt)
            with pytest.raises(KeyboardInterrupt):
                run(dedup)
        _replace_unseen(path, 0, 2, 7, 7)
        waves = HereWaves()
    else:
        waves = Beside("decide", lambda _: _replace_unseen(path, 0, 2, 7, 7))
    with pytest.raises(ChangedSourceError, match=r"1 file changed after the first stage .*jsonl; run the same command"):
        run(dedup, waves)
    assert run(dedup).result.complete
    assert sorted(keys()) == [0, 1, 2, 4, 7]
    assert run(dedup).waves == []


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.fixture
def against(folder: Path) -> partial[Any]:
    """A call that compares records with those of an earlier ledger, whose files come behind its own by their names."""
    run(near, output="first", ledger="F")
    write_jsonl(folder / "again" / "d.jsonl", [{"text": "a b c d e f 1"}, {"text": "u v w x y z"}])
    return partial(ledgerbeam.dedup, ["again/*"], against="F", **NEAR)


def test_records_are_compared_with_those_of_an_earlier_ledger(folder: Path, against: Callable[..., Any]) -> None:
    ran = run(against)
    assert (ran.result.complete, ran.tasks["scatter"]) == (True, 1)
    assert "4 run files of" in "".join(ran.told.said)
    assert [row["text"] for row in records()] == ["u v w x y z"]
    assert run(against).waves == []
    with pytest.raises(UsageError, match="this job also has 1 source of that ledger"):
        run(partial(ledgerbeam.dedup, ["in/a.jsonl"], against="F", **{**NEAR, "output": "same", "ledger": "S"}))


def test_only_sources_of_an_earlier_ledger_need_not_be_scattered(folder: Path, against: partial[Any]) -> None:
    verify = marking(against, verify=True, threshold=0.5, keep_runs=True)
    near_one = [{"text": "a b c d e f 2"}]
    run(verify)
    write_jsonl(folder / "again" / "c.jsonl", [{"text": "l m n o p q r"}])
    with pytest.raises(ChangedSourceError, match="sources have changed since the first stage of this run"):
        run(verify, Beside("sign", lambda _: write_jsonl(folder / "again" / "e.jsonl", near_one)))
    ran = run(verify)
    assert (ran.result.complete, ran.tasks["scatter"]) == (True, 1)
    assert [Path(url).stem for url, _ in gone_in(marks_in(folder / "out"))] == ["d", "e"]
    (earlier,) = folder.glob("L/**/earlier.json")
    earlier.unlink()
    assert run(verify).waves == []
    assert earlier.exists(), "the next run would ask the files again"
    (texts,) = folder.glob("out/_drops/_runs/e*.run")
    texts.unlink()
    write_jsonl(folder / "again" / "f.jsonl", near_one)
    ran = run(verify)
    assert (ran.waves.count("texts"), ran.told.warned) == (1, [])
