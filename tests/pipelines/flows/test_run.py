"""What a run of a flow does follows from what has changed, and a plan says it before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ledgerbeam
from ledgerbeam.errors import JobMismatchError, LedgerbeamError, SourceNotFoundError, TasksFailedError
from ledgerbeam.pipelines.cli.cli import main
from tests.mutation.loading import ROOT
from tests.pipelines.flows.world import write_lines


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
        put(tmp_path, name, 3)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put(folder: Path, name: str, count: int, first: int = 0) -> None:
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


def chain(mark: str = "x", **options: Any) -> ledgerbeam.Flow:
    return ledgerbeam.Flow(
        "flow",
        {
            "first": {"map": marked(mark), "sources": "in/*.jsonl", **options},
            "second": {"convert": True, "from": "first"},
        },
        defaults={"to": "jsonl", "workers": 1},
    )


def planned(flow: ledgerbeam.Flow) -> dict[str, dict[str, int]]:
    found = {name: step.as_json()["sources"] for name, step in flow.plan().steps.items()}
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
def test_a_listing_that_finds_nothing_withdraws_nothing(folder: Path) -> None:
    chain().run()
    for path in (folder / "in").iterdir():
        path.unlink()
    for do in (chain().plan, chain().run):
        with pytest.raises(SourceNotFoundError, match="step first"):
            do()
    assert names(folder, "first") == names(folder, "second") == [*"abcd"]


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
    assert "after: not started; first complete step bad" in said.err
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
    flow = ledgerbeam.Flow(
        "flow",
        {
            "bad": {"convert": True, "sources": "nowhere/*.jsonl"},
            "after": {"convert": True, "from": "bad"},
            "good": {"convert": True, "sources": "in/*.jsonl"},
        },
        defaults={"to": "jsonl", "workers": 1},
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
    steps: dict[str, dict[str, Any]] = {
        "first": {"map": marked("x"), "sources": "in/*.jsonl"},
        "second": {"map": "flow_meddling:meddle", "from": "first", "audit": "off"},
        "third": {"convert": True, "from": "second"},
    }
    flow = ledgerbeam.Flow("flow", steps, defaults={"to": "jsonl", "workers": 1})
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
