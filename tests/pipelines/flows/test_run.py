"""What a run of a flow does follows from what has changed, and a plan says it before; also on an object store."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import s3fs

import ledgerbeam
from ledgerbeam.errors import JobMismatchError, LedgerbeamError, TasksFailedError
from ledgerbeam.pipelines.cli.cli import main
from ledgerbeam.pipelines.flows.step import COMMANDS
from tests.conftest import S3Server
from tests.mutation.loading import ROOT
from tests.pipelines.exchanges.test_near import rows_of


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def marked(mark: str) -> Callable[[Any], Any]:
    def mark_one(record: dict[str, Any]) -> Any:
        return {**record, "mark": mark}

    return mark_one


SEVENS = """
def refuse_seven(record):
    if record["n"] == 7:
        raise ValueError("seven")
    return record
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in "abcd":
        put(tmp_path, name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put(folder: Path, name: str, count: int = 3, first: int = 0) -> None:
    time.sleep(0.01)  # a file's time tells changes apart
    write_lines(folder / "in" / f"{name}.jsonl", [{"n": first + n, "of": name} for n in range(count)])


MEDDLE = '''
import os, subprocess, sys

def meddle(record):
    """Have another launcher do the step before again, once, while this one is at work."""
    if not os.path.exists("meddled"):
        open("meddled", "x").close()
        with open("in/d.jsonl", "w") as file:
            file.write('{"n": 77}\\n')
        os.remove("in/d.jsonl.idx")
        code = "from tests.pipelines.flows.test_run import chain; chain().run('first').raise_for_failures()"
        subprocess.run([sys.executable, "-c", code], check=True)
    return record
'''


def flow_of(**steps: dict[str, Any]) -> ledgerbeam.Flow:
    return ledgerbeam.Flow("flow", steps, defaults={"to": "jsonl", "workers": 1})


def chain(mark: str = "x", **options: Any) -> ledgerbeam.Flow:
    first = {"map": marked(mark), "sources": "in/*.jsonl", **options}
    return flow_of(first=first, second={"convert": True, "from": "first"})


def planned(flow: ledgerbeam.Flow, *steps: str) -> dict[str, dict[str, int]]:
    found = {name: step.as_json()["sources"] for name, step in flow.plan(*steps).steps.items()}
    return {name: {why: number for why, number in step.items() if number} for name, step in found.items()}


def tasks(flow: ledgerbeam.Flow, **how: Any) -> dict[str, int]:
    return {name: result.tasks for name, result in flow.run(**how).raise_for_failures().steps.items()}


def names(folder: Path, step: str) -> list[str]:
    return sorted(path.name[0] for path in (folder / "flow" / step / "output").glob("*.jsonl"))


@pytest.mark.slow
def test_each_step_does_what_follows_from_what_has_changed(folder: Path) -> None:
    assert planned(chain()) == {"first": {"new": 4}, "second": {"upstream": 4}}
    assert not (folder / "flow").exists()
    assert tasks(chain()) == {"first": 4, "second": 4}
    assert planned(chain()) == {"first": {"complete": 4}, "second": {"complete": 4}}
    assert chain().plan().is_complete
    put(folder, "a", 3)  # the same bytes at another time
    put(folder, "b", 3, first=5)
    put(folder, "e", 1)
    (folder / "in" / "c.jsonl").unlink()
    assert planned(chain()) == {
        "first": {"complete": 1, "changed": 2, "new": 1, "withdrawn": 1},
        "second": {"complete": 1, "upstream": 3, "withdrawn": 1},
    }
    assert tasks(chain()) == {"first": 3, "second": 2}, "what was written again with the same bytes starts nothing"
    assert names(folder, "first") == names(folder, "second") == [*"abde"]
    assert tasks(chain()) == {"first": 0, "second": 0}


@pytest.mark.slow
def test_another_function_or_option_runs_its_step(folder: Path) -> None:
    chain().run()
    found = chain("y").plan()
    assert planned(chain("y")) == {"first": {"code": 4}, "second": {"upstream": 4}}
    assert any("captured value" in line for line in found.steps["first"].differences)
    assert planned(chain(nan="null")) == {"first": {"options": 4}, "second": {"upstream": 4}}
    assert tasks(chain(nan="null")) == {"first": 4, "second": 0}
    assert tasks(chain("y", nan="null")) == {"first": 4, "second": 4}
    with pytest.raises(JobMismatchError, match="step first"):
        chain("z", nan="null").run(on_job_change="refuse")
    assert tasks(chain("z", nan="null"), on_job_change="accept") == {"first": 0, "second": 0}


@pytest.mark.slow
def test_a_shard_that_is_gone_is_made_again_by_its_own_step_alone(folder: Path) -> None:
    chain().run()
    next((folder / "flow" / "first" / "output").glob("b*.jsonl")).unlink()
    assert planned(chain()) == {"first": {"complete": 3, "lost": 1}, "second": {"complete": 3, "upstream": 1}}
    assert tasks(chain()) == {"first": 1, "second": 0}


@pytest.mark.slow
def test_only_the_steps_that_are_named_and_what_they_read(folder: Path) -> None:
    assert [*chain().run("first").steps] == ["first"]
    assert [*chain().plan("second").steps] == ["first", "second"]
    assert tasks(chain()) == {"first": 0, "second": 4}


@pytest.mark.slow
def test_a_step_that_is_not_complete_holds_up_what_reads_it_and_nothing_else(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(folder, "d", 9)
    (folder / "flow_sevens.py").write_text(SEVENS)
    text = 'map = "flow_sevens:refuse_seven"\nsources = "in/*.jsonl"\nto = "jsonl"\nworkers = 1\n'
    after = '[steps.after]\nconvert = true\nfrom = "bad"\nto = "jsonl"\n'
    apart = '[steps.apart]\nconvert = true\nsources = "in/*.jsonl"\nto = "jsonl"\nworkers = 1\n'
    (folder / "flow.toml").write_text(f'root = "flow"\n[steps.bad]\n{text}{after}{apart}')
    assert main(["run", "flow.toml", "--json"]) == 3
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert not found["complete"]
    assert found["steps"]["bad"]["sources"]["failed"] == 1
    assert "complete step bad" in found["steps"]["after"]["left"]
    assert found["steps"]["apart"]["complete"]
    assert "after: not started: it reads step bad; complete step bad" in said.err
    assert main(["plan", "flow.toml", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [step["sources"]["failed"] for step in plan["steps"]] == [1, 0, 0]
    with pytest.raises(TasksFailedError, match="seven"):
        ledgerbeam.run_flow("flow.toml").raise_for_failures()
    put(folder, "d", 2)
    assert main(["run", "flow.toml"]) == 0
    assert "done: 3 of 3 steps complete" in capsys.readouterr().out


@pytest.mark.slow
def test_an_edited_shard_is_never_read_for_what_was_recorded(folder: Path) -> None:
    chain().run("first")
    shard = next((folder / "flow" / "first" / "output").glob("b*.jsonl"))
    good, when = shard.read_bytes(), shard.stat()
    shard.write_bytes(good.replace(b'"x"', b'"z"'))
    os.utime(shard, ns=(when.st_atime_ns, when.st_mtime_ns))
    with pytest.raises(TasksFailedError, match=r"b.*it was edited or damaged; delete it and run"):
        chain().run().raise_for_failures()
    shard.unlink()
    assert tasks(chain()) == {"first": 1, "second": 1}
    assert shard.read_bytes() == good


@pytest.mark.slow
def test_the_ledger_of_each_step_answers_as_any_does(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chain().run()
    assert main(["ledger", "status", "flow/second/ledger", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sources"]["complete"] == 4
    assert main(["ledger", "verify", "flow/second/ledger"]) == 0
    assert main(["ledger", "status", "flow/second/ledger", "--check-sources"]) == 2
    assert "ledgerbeam plan" in capsys.readouterr().err


def test_an_error_of_one_step_is_raised_once_the_others_are_done(folder: Path) -> None:
    flow = flow_of(
        bad={"convert": True, "sources": "nowhere/*.jsonl"},
        after={"convert": True, "from": "bad"},
        good={"convert": True, "sources": "in/*.jsonl"},
    )
    with pytest.raises(LedgerbeamError, match=r"step bad.*nowhere"):
        flow.run()
    assert names(folder, "good") == [*"abcd"]


@pytest.mark.slow
def test_a_step_before_that_is_done_again_meanwhile_is_never_missed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "flow_meddling.py").write_text(MEDDLE)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{folder}")
    monkeypatch.syspath_prepend(str(folder))
    flow = flow_of(
        first={"map": marked("x"), "sources": "in/*.jsonl"},
        second={"map": "flow_meddling:meddle", "from": "first", "audit": "off"},
        third={"convert": True, "from": "second"},
    )
    done = flow.run()
    assert (folder / "meddled").exists()
    assert not done.complete
    assert "third" in done.left
    flow.run().raise_for_failures()
    made = next((folder / "flow" / "third" / "output").glob("d*.jsonl"))
    assert json.loads(made.read_text()) == {"n": 77, "mark": "x"}


@pytest.mark.slow
def test_an_interrupted_flow_says_how_far_it_came_and_goes_on(folder: Path) -> None:
    waiting = "import time\n\ndef wait(record):\n    time.sleep(0.5)\n    return record\n"
    (folder / "flow_waiting.py").write_text(waiting)
    for number in range(30):
        put(folder, f"e{number}", 3)
    after = '[steps.after]\nconvert = true\nfrom = "slow"\nto = "jsonl"\n'
    (folder / "flow.toml").write_text(
        f'root = "flow"\n[steps.slow]\nmap = "flow_waiting:wait"\nsources = "in/*.jsonl"\nto = "jsonl"\n{after}'
    )
    command = [sys.executable, "-m", "ledgerbeam", "run", "flow.toml", "--json", "--workers", "1"]
    environment = {**os.environ, "PYTHONPATH": ROOT}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as launcher:
        while len([*(folder / "flow").glob("slow/output/*.jsonl")]) < 4:  # the first is recorded by then
            assert launcher.poll() is None
            time.sleep(0.05)
        launcher.terminate()
        found = json.loads(launcher.communicate()[0])
    assert launcher.returncode == 130
    assert found["steps"]["slow"]["interrupted"]
    assert found["steps"]["after"]["left"] == "the run was interrupted"
    (folder / "flow_waiting.py").write_text(waiting.replace("0.5", "0"))
    done = ledgerbeam.run_flow("flow.toml", on_job_change="accept").raise_for_failures()
    assert 0 < done["slow"].sources < 34
    assert len(names(folder, "after")) == 34


def put_object(store: Any, bucket: str, name: str, numbers: range) -> None:
    lines = "".join(json.dumps({"n": n, "text": f"text {n % 50}"}) + "\n" for n in numbers)
    store.pipe_file(f"{bucket}/in/{name}.jsonl", lines.encode())


def flow_on(s3: S3Server, bucket: str, root: str) -> ledgerbeam.Flow:
    return ledgerbeam.Flow(
        f"s3://{bucket}/{root}",
        {
            "clean": {"convert": True, "sources": f"s3://{bucket}/in/*.jsonl"},
            "unique": {"dedup": True, "from": "clean", "by": "text"},
            "packed": {"convert": True, "from": "unique", "pack": "2K"},
            "tokens": {"tokenize": "bytes", "from": "unique"},
        },
        defaults={"to": "jsonl", "task_bytes": 500, "workers": 1, "storage_options": s3.options},
    )


def contents(store: Any, bucket: str, root: str) -> dict[str, bytes]:
    """Return what a flow has written by name; what was packed as one, since URLs decide how packs are cut."""
    found = [name for name in store.find(f"{bucket}/{root}") if "/output/" in name and "/_ledgerbeam/" not in name]
    made = {name.removeprefix(f"{bucket}/{root}"): store.cat_file(name) for name in found}
    packed = sorted(name for name in made if name.startswith("/packed/"))
    shards = [made.pop(name) for name in packed if name.endswith(".jsonl")]
    return {**{name: data for name, data in made.items() if name not in packed}, "/packed": b"".join(shards)}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_flow_on_a_store(s3: S3Server) -> None:
    bucket = s3.bucket()
    store = s3fs.S3FileSystem(**s3.options, skip_instance_cache=True, use_listings_cache=False)
    for number, name in enumerate("abc"):
        put_object(store, bucket, name, range(10 * number, 10 * number + 60))
    flow = flow_on(s3, bucket, "flow")
    first = flow.run().raise_for_failures()
    assert first.tasks
    assert flow.plan().is_complete
    assert flow.run().tasks == 0

    put_object(store, bucket, "b", range(30, 45))
    put_object(store, bucket, "d", range(5))
    store.rm_file(f"{bucket}/in/c.jsonl")
    plan = flow.plan()
    assert plan.steps["clean"].withdrawn == 1
    assert plan.steps["clean"].sources == 2
    done = flow.run().raise_for_failures()
    flow_on(s3, bucket, "fresh").run().raise_for_failures()
    assert contents(store, bucket, "flow") == contents(store, bucket, "fresh")
    assert done["clean"].sources == 2

    shard = next(name for name in store.find(f"{bucket}/flow/clean/output") if "/d.jsonl" in name and name[-1] == "l")
    good = store.cat_file(shard)
    put_object(store, bucket, "d", range(1, 6))
    flow.run("clean").raise_for_failures()
    store.pipe_file(shard, good)  # other bytes of the same size than were recorded
    with pytest.raises(TasksFailedError, match="it was edited or damaged"):
        flow.run().raise_for_failures()
    store.rm_file(shard)
    flow.run().raise_for_failures()
    flow_on(s3, bucket, "last").run().raise_for_failures()
    assert contents(store, bucket, "flow") == contents(store, bucket, "last")


def counted(key: Any, records: Iterator[Any]) -> dict[str, Any]:
    return {"k": key, "number": sum(1 for _ in records)}


def scored(record: Any) -> dict[str, Any]:
    return {"parity": ("even", "odd")[record["k"] % 2]}


def with_text(record: Any) -> Any:
    return {**record, "text": record["text"] or ""}


STEPS: dict[str, dict[str, Any]] = {
    "mapped": {"map": with_text, "sources": "in/*.jsonl", "to": "parquet"},
    "plain": {"convert": True, "from": "mapped"},
    "packed": {"convert": True, "from": "plain", "pack": "64K", "to": "tar"},
    "compressed": {"convert": True, "from": "plain", "compress": "zstd"},
    "parts": {"split": True, "from": "compressed", "by": "k", "parts": {"train": 3, "val": 1}},
    "sorted": {"sort": True, "from": "parts/train", "by": "k", "shard_bytes": "3K"},
    "shuffled": {"shuffle": True, "from": "sorted", "seed": 3},
    "resized": {"repartition": True, "from": "shuffled", "shard_bytes": "3K"},
    "numbers": {"group": counted, "from": ["parts/train", "parts/val"], "by": "k"},
    "joined": {"join": True, "left_from": "resized", "right_from": "numbers", "by": "k"},
    "unlike": {"dedup": True, "from": "joined", "near": "text", "minhash": "6x2", "ngram": 2},
    "marked": {"dedup": True, "from": "joined", "by": "k", "mark": True},
    "scored": {"annotate": scored, "from": "joined"},
    "chosen": {"select": True, "from": "joined", "with_from": ["marked", "scored"], "where": "parity = 'even'"},
    "clean": {"decontaminate": True, "from": "chosen", "against": "quiz.jsonl", "ngram": 1},
    "tokens": {"tokenize": "bytes", "from": "unlike"},
    "sequences": {"pack": True, "from": "tokens", "length": 64},
}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_chain_of_all_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert {command for step in STEPS.values() for command in step if command in COMMANDS} == {*COMMANDS}
    for name in "ab":
        rows = [{**row, "k": number % 11} for number, row in enumerate(rows_of(name, 60))]
        write_lines(tmp_path / "in" / f"{name}.jsonl", rows)
    write_lines(tmp_path / "quiz.jsonl", [{"q": "nowhere"}])
    flow = ledgerbeam.Flow("flow", STEPS, defaults={"to": "jsonl", "workers": 1, "task_bytes": "4K"})
    done = flow.run().raise_for_failures()
    assert all(result.tasks for result in done.steps.values())
    joined, resized = (sum(row["records"] for row in done[step].outputs) for step in ("joined", "resized"))
    assert joined == resized
    assert [str(step) for step in flow.plan().steps.values() if not step.is_complete] == []
    assert flow.run().tasks == 0
    (tmp_path / "in" / "b.jsonl").unlink()
    (tmp_path / "in" / "b.jsonl.idx").unlink()
    after = flow.run().raise_for_failures()
    assert flow.plan().is_complete
    assert {row["source"] for row in after["mapped"].outputs} == {str(tmp_path / "in" / "a.jsonl")}
    assert sum(row["records"] for row in after["numbers"].outputs) == 11


@pytest.mark.slow
def test_what_is_withdrawn_leaves_exchanges_on_other_runners_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in "abc":
        write_lines(tmp_path / "in" / f"{name}.jsonl", [{"k": n, "of": name} for n in range(4)])
    flow = flow_of(
        first={"convert": True, "sources": "in/*.jsonl"},
        sorted={"sort": True, "from": "first", "by": "k"},
        unique={"dedup": True, "from": "first", "by": "k"},
    )
    options = ["--runner=BundleBasedDirectRunner"]
    flow.run(options=options).raise_for_failures()
    for name in ("a.jsonl", "a.jsonl.idx"):
        (tmp_path / "in" / name).unlink()
    flow.run(options=options).raise_for_failures()
    for step, records in (("sorted", 8), ("unique", 4)):
        lines = [path.read_text() for path in (tmp_path / "flow" / step / "output").glob("*.jsonl")]
        assert "".join(lines).count("\n") == records, step
        assert '"a"' not in "".join(lines)
    assert flow.run(options=options).tasks == 0
