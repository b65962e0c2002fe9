"""A map of several functions: by command, from Python and in a flow; what each did, and what belongs to the job."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

import ledgerbeam
from ledgerbeam.pipelines.jobs.map import MapJob, MappedFunction
from ledgerbeam.pipelines.jobs.sources import ListedFiles
from ledgerbeam.pipelines.runners.job_files import load_job
from tests.cases import each
from tests.pipelines.conftest import Programs, Workspace

STRIP = """
from ledgerbeam import Drop, stats

def strip(record):
    stats.count("seen")
    text = record["text"].strip()
    return {**record, "text": text} if text else Drop("empty")

def shout(record):
    return {**record, "text": record["text"].upper()}
"""
PARTS = """
import time
from ledgerbeam import Drop, Reject, Route, stats

def parts(record, most=3):
    time.sleep(0.0005)
    if record["id"] % 50 == 7:
        raise KeyError("language")
    if record["id"] % 11 == 0:
        return None
    made = [{**record, "part": n} for n in range(record["id"] % most + 1)]
    return [Route("odd", one) if one["part"] % 2 else one for one in made]

class Score:
    def __init__(self, limit, model="small"):
        self.limit, self.model = limit, model

    def __call__(self, records):
        stats.count("calls")
        return [self.score(record) for record in records]

    def score(self, record):
        if record["id"] % 50 == 13 and record["part"] == 1:
            return Reject("no score", str(record["id"]))
        if record["id"] % 10 < self.limit:
            return Drop("low")
        return {**record, "model": self.model}

def strip(record):
    return record
"""
FUNCTIONS = ("cleaning:strip", "parting:parts", "parting:Score")
RECORDS = 300


@pytest.fixture
def texts(workspace: Workspace) -> Workspace:
    """A folder with functions, and two files of records: each seventh has an empty text."""
    (workspace.root / "cleaning.py").write_text(STRIP)
    (workspace.root / "parting.py").write_text(PARTS)
    for number, name in enumerate("ab"):
        ids = range(number * RECORDS // 2, (number + 1) * RECORDS // 2)
        workspace.write(f"in/{name}.jsonl", [{"id": n, "text": "" if n % 7 == 3 else f" text {n} "} for n in ids])
    return workspace


def command(*more: str, functions: tuple[str, ...] = FUNCTIONS, output: str = "out") -> tuple[str, ...]:
    first, *others = functions
    then = [word for one in others for word in ("--then", one)]
    where = ("--output", output, "--to", "jsonl", "--ledger", f"{output}-ledger", "--task-bytes", "2K")
    rules = ("--set", "limit=4", "--batch", "Score=16", "--on-error", "reject")
    return ("map", first, *then, "in/*.jsonl", *where, *(rules if "parting:Score" in functions else ()), *more)


def outcome(number: int) -> tuple[str, Any]:
    """Return what becomes of a record by `FUNCTIONS`: reason and function, or the parts that are written by route."""
    if number % 7 == 3:
        return "dropped", ("empty", "strip")
    if number % 50 == 7:
        return "rejected", ("KeyError", "parts")
    if number % 11 == 0:
        return "dropped", ("returned nothing", "parts")
    if number % 50 == 13 and number % 3 >= 1:
        return "rejected", ("no score", "Score")
    if number % 10 < 4:
        return "dropped", ("low", "Score")
    return "kept", Counter("odd" if part % 2 else "" for part in range(number % 3 + 1))


def reasons(what: str) -> dict[str, int]:
    return dict(Counter(ended[0] for kind, ended in map(outcome, range(RECORDS)) if kind == what))


def written() -> dict[str, int]:
    parts: Counter[str] = Counter()
    for kind, routes in map(outcome, range(RECORDS)):
        parts.update(routes if kind == "kept" else {})
    return dict(parts)


def test_each_function_takes_the_results_of_the_one_before_and_is_counted(texts: Workspace) -> None:
    ran = texts.succeed(*command("--keep-dropped", "--json"))
    records = ran.json["records"]
    assert (records["read"], records["dropped"], records["rejected"]) == (
        RECORDS,
        reasons("dropped"),
        reasons("rejected"),
    )
    assert records["written"] == written()
    shard = texts.files("out")["odd/a.jsonl-0000000000.jsonl"].splitlines()[0]
    assert json.loads(shard) == {"id": 4, "text": "text 4", "part": 1, "model": "small"}

    ledger = ledgerbeam.open_ledger(texts.root / "out-ledger")
    strip, parts, score = ledger.status()["functions"]
    empty = sum(number % 7 == 3 for number in range(RECORDS))
    assert strip == {
        "function": "strip",
        "received": RECORDS,
        "returned": RECORDS - empty,
        "dropped": {"empty": empty},
        "rejected": {},
        "statistics": {"seen": RECORDS},
    }
    left = [number for number in range(RECORDS) if number % 7 != 3]
    made = [number for number in left if number % 50 != 7 and number % 11]
    assert parts["received"] == len(left)
    assert parts["rejected"] == {"KeyError": sum(number % 50 == 7 for number in left)}
    assert parts["dropped"] == {"returned nothing": len(left) - len(made) - parts["rejected"]["KeyError"]}
    assert parts["returned"] == score["received"] == sum(number % 3 + 1 for number in made)
    assert score["returned"] + sum(score["dropped"].values()) + sum(score["rejected"].values()) == score["received"]
    assert ledger.stats() == {"strip.seen": RECORDS, "Score.calls": score["statistics"]["calls"]}
    named = texts.succeed("ledger", "stats", "out-ledger", "--name", "strip.seen", "--json")
    assert named.json == {"strip.seen": RECORDS}
    shown = texts.succeed("ledger", "status", "out-ledger").out
    assert f"{RECORDS:,} received" in shown
    assert "returned nothing" in shown

    set_aside = {"rejected": ledger.rejects(), "dropped": ledger.dropped()}
    for what, rows in set_aside.items():
        ends = Counter((row["reason"], row["function"]) for row in rows)
        assert ends == Counter(ended for kind, ended in map(outcome, range(RECORDS)) if kind == what)
    assert ledger.dropped().to_arrow().num_rows == sum(reasons("dropped").values())
    printed = texts.succeed("ledger", "rejects", "out-ledger", "--dropped", "--reason", "low").out
    assert printed.startswith(f"{reasons('dropped')['low']} records of 2 sources: low")
    assert ", in Score" in printed
    assert texts.succeed("ledger", "verify", "out-ledger").out.endswith("0 problems\n")
    again = texts.succeed("map", "functions:keep", "out/**/*.jsonl", "--output", "copy", "--to", "jsonl", "--json")
    assert again.json["records"]["read"] == sum(written().values()), "records that were set aside are no sources"


@pytest.mark.slow
def test_a_killed_job_of_several_functions_ends_with_the_same_bytes(texts: Workspace) -> None:
    texts.succeed(*command("--keep-dropped"))
    killed = command("--keep-dropped", "--flush-interval", "0.05", output="again")
    running = texts.start(*killed)
    while not (texts.root / "again").exists() or len(texts.files("again")) < 8:
        assert running.poll() is None, running.communicate()
        time.sleep(0.02)
    os.killpg(running.pid, signal.SIGKILL)
    running.communicate()
    assert len(texts.files("again")) < len(texts.files("out"))
    ran = texts.succeed(*killed, "--json")
    assert 0 < ran.json["done"]["tasks"] < ran.json["tasks"]["done"]
    first = {name: data for name, data in texts.files("out").items() if not name.startswith("_rejects")}
    second = {name: data for name, data in texts.files("again").items() if not name.startswith("_rejects")}
    assert first == second
    one, other = (ledgerbeam.open_ledger(texts.root / f"{name}-ledger").status() for name in ("out", "again"))
    assert (one["records"], one["functions"]) == (other["records"], other["functions"])


def test_a_list_in_python_and_in_a_flow_is_the_job_of_the_command(texts: Workspace, programs: Programs) -> None:
    texts.succeed(*command())
    ran = programs.rows("""
        import cleaning, parting

        same = lb.map(
            [cleaning.strip, "parting:parts", parting.Score], "in/*.jsonl", output="out", to="jsonl",
            ledger="out-ledger", task_bytes="2K", set={"limit": 4}, batch={"Score": 16}, on_error="reject", workers=1,
        )
        show(tasks=same.tasks)

        def mark(record):
            return {**record, "mark": True}

        def main():
            job = dict(output="marked", to="jsonl", ledger="marked-ledger", workers=1, audit="off")
            for _ in range(2):
                marked = lb.map([mark, lambda record: record if record["id"] < 9 else None, mark], "in/*.jsonl", **job)
                counted = lb.open_ledger("marked-ledger").status()["functions"]
                show(tasks=marked.tasks, labels=[one["function"] for one in counted])
            step = {
                "map": ["cleaning:strip", parting.parts, "parting:Score"], "sources": "in/*.jsonl", "task_bytes": "2K",
                "set": {"Score.limit": 4}, "batch": {"Score": 16}, "on_error": "reject", "to": "jsonl", "workers": 1,
            }
            flow = lb.Flow("flow", {"scored": step})
            show(tasks=flow.run().raise_for_failures().tasks)

        main()
    """)
    assert ran[0] == {"tasks": 0}
    labels = ["mark", "<lambda>", "mark 2"]
    assert ran[1:3] == [{"tasks": 2, "labels": labels}, {"tasks": 0, "labels": labels}]
    assert ran[3]["tasks"] > 2
    assert texts.files("flow/scored/output") == texts.files("out")


def refused(texts: Workspace, *words: str, functions: tuple[str, ...] = FUNCTIONS) -> list[str]:
    ran = texts.run(*command(*words, functions=functions))
    assert ran.status == 1, ran.out + ran.err
    return [line.strip() for line in ran.err.splitlines()[1:] if line.startswith("  ")]


def test_a_changed_function_changes_the_job_and_is_named(texts: Workspace) -> None:
    texts.succeed(*command())
    swapped = refused(texts, functions=("parting:parts", "cleaning:strip", "parting:Score"))
    assert swapped == [f"function: was {[*FUNCTIONS]}, is ['parting:parts', 'cleaning:strip', 'parting:Score']"]
    (fewer, *parts) = refused(texts, functions=("cleaning:strip", "parting:Score"))
    assert fewer == f"function: was {[*FUNCTIONS]}, is ['cleaning:strip', 'parting:Score']"
    assert all(line.startswith("functions parts ") for line in parts)
    assert refused(texts, "--set", "parts.most=2") == ["functions parts set most: was not set, is 2"]
    (texts.root / "cleaning.py").write_text(STRIP.replace("upper()", "lower()"))
    changed, *lines = refused(texts)
    assert changed == "functions strip module cleaning: changed"
    assert any(".lower()" in line for line in lines)
    accepted = texts.succeed(*command("--on-job-change", "accept", "--json"))
    assert accepted.json["done"]["tasks"] == 0


def test_one_function_more_makes_everything_again(texts: Workspace) -> None:
    two = ("cleaning:strip", "cleaning:shout")
    texts.succeed(*command(functions=two[:1]))
    before = texts.files("out")
    assert "functions" not in texts.succeed("ledger", "status", "out-ledger", "--json").json
    assert refused(texts, functions=two)[0] == f"function: was '{two[0]}', is {[*two]}"
    ran = texts.succeed(*command("--on-job-change", "restart", "--json", functions=two))
    assert ran.json["done"]["tasks"] == ran.json["tasks"]["done"] > 2
    assert {row["text"] for row in texts.records("out")} == {
        f"TEXT {number}" for number in range(RECORDS) if number % 7 != 3
    }
    assert texts.files("out").keys() == before.keys()


@each(
    "words, message",
    [
        (("--set", "scor.limit=4"), "--set scor.limit: no function has the label 'scor'; the labels are strip, parts"),
        (("--set", "depth=4"), "--set depth: none of the functions strip, parts, Score has such a parameter"),
        (("--set", "strip.limit=4"), "cleaning:strip has no such parameter"),
        (("--batch", "score=4"), "no function has the label 'score'; the labels are strip, parts, Score"),
        (("--batch", "parts=0"), "expected a whole number from 1"),
        (("--batch", "Score=4", "--batch", "Score=5"), "expected one size for each function"),
        (("--then", "parting:nothing"), "'parting' has no 'nothing'"),
        (("--then", "parting"), "expected module:function"),
    ],
)
def test_wrong_labels_and_functions_are_refused_before_anything_starts(
    words: tuple[str, ...], message: str, texts: Workspace
) -> None:
    ran = texts.run(*command(), *words)
    assert ran.status in (1, 2)
    assert message in ran.err
    assert not (texts.root / "out-ledger").exists()


def test_functions_of_one_name_are_told_apart_by_their_modules(texts: Workspace) -> None:
    functions = ("cleaning:strip", "parting:strip", "cleaning:strip")
    texts.succeed(*command(functions=functions))
    status = ledgerbeam.open_ledger(texts.root / "out-ledger").status()
    assert [one["function"] for one in status["functions"]] == ["cleaning.strip", "parting.strip", "cleaning.strip 2"]


def test_a_sample_shows_what_each_function_did(texts: Workspace) -> None:
    before = sorted(texts.root.rglob("*"))
    words = command("--sample", str(RECORDS))
    runs = texts.succeed(*words, "--json").json["sample"]
    assert sorted(texts.root.rglob("*")) == before
    by_id = {run["record"] + (RECORDS // 2) * ("b.jsonl" in run["source"]): run for run in runs}
    strip, parts, score = by_id[5]["functions"]
    assert strip["results"] == {"": [{"id": 5, "text": "text 5"}]}
    made = [{"id": 5, "text": "text 5", "part": part} for part in range(3)]
    assert (parts["received"], parts["results"]) == (1, {"": made[::2], "odd": made[1:2]})
    assert (score["function"], score["received"]) == ("Score", 3)
    assert by_id[5]["outcome"] == "kept"
    assert by_id[5]["results"] == {
        "": [{**part, "model": "small"} for part in made[::2]],
        "odd": [{**made[1], "model": "small"}],
    }
    assert [one["function"] for one in by_id[3]["functions"]] == ["strip"]
    assert (by_id[3]["outcome"], by_id[3]["functions"][0]["dropped"]) == ("dropped", {"empty": 1})
    assert by_id[57]["functions"][-1]["error"].startswith("KeyError: 'language' (at ")
    assert by_id[113]["functions"][-1]["rejected"] == {"no score": 1}
    printed = texts.succeed(*words).out
    assert "  strip: dropped: empty\n" in printed
    assert "  parts: odd: {'id': 5, " in printed
    assert "  Score: rejected: no score\n" in printed
    limited = texts.succeed(*words, "--record-timeout", "5", "--json").json["sample"]
    assert [[one["function"] for one in run["functions"]] for run in limited] == [
        [one["function"] for one in run["functions"]] for run in runs
    ]


def test_arrow_batches_pass_through_several_functions(texts: Workspace) -> None:
    (texts.root / "columns.py").write_text(
        "import pyarrow as pa, pyarrow.compute as pc\n"
        "from ledgerbeam import Rows\n"
        "def even(batch):\n"
        "    return batch.filter(pc.equal(pc.bit_wise_and(batch['id'], 1), 0))\n"
        "def small(batch, most):\n"
        "    return Rows(batch, drop={'large': pc.greater(batch['id'], most)})\n"
        "def double(batch):\n"
        "    return batch.append_column('double', pc.multiply(batch['id'], 2))\n"
    )
    functions = ("columns:even", "columns:small", "columns:double")
    ran = texts.succeed(
        *command("--as", "arrow", "--set", "most=99", "--batch", "even=7", "--json", functions=functions)
    )
    assert [row["double"] for row in texts.records("out")] == [2 * number for number in range(0, 100, 2)]
    assert ran.json["records"]["dropped"] == {"returned nothing": RECORDS // 2, "large": RECORDS // 2 - 50}
    names = ledgerbeam.open_ledger(texts.root / "out-ledger").status()["functions"]
    assert [(one["function"], one["received"]) for one in names] == [("even", 300), ("small", 150), ("double", 50)]
    (run, *_) = texts.succeed(
        *command("--as", "arrow", "--set", "most=99", "--sample", "4", "--json", functions=functions, output="other")
    ).json["sample"]
    assert run["functions"][0]["received"] == 1


def test_a_dry_run_of_several_functions_tries_them(texts: Workspace) -> None:
    found = texts.succeed(*command("--dry-run", "--json")).json
    assert found["costs"][0]["basis"] == "measured"
    assert found["sources"]["new"] == 2
    texts.succeed(*command())
    found = texts.succeed(*command("--dry-run", "--json", functions=FUNCTIONS[:2])).json
    assert found["differences"][0].startswith("function: was [")


OF_ONE = MapJob(
    files=ListedFiles(patterns=("/in/*.jsonl",), base="/in/"),
    functions=(MappedFunction("Score", "m:Score", {"module": {"m": "ab"}}, {"limit": 4}, 16, batch_matters=True),),
    watched={"/words": "cd"},
    output="/out",
    to="jsonl",
)
STORED = """{"command": "map", "job": {"output": "/out", "storage_options": {}, "ledger": "", "workers": 1,
"devices": [], "flush_interval": 1.0, "flush_entries": 1000, "log_level": "warning", "task_limit": null,
"audit": "", "profile": null, "run": "", "run_dir": null, "import_path": [], "to": "jsonl", "layout": null,
"compression": null, "files": FILES,
"function": "m:Score", "made_of": {"module": {"m": "ab"}}, "values": {"limit": 4}, "watched": {"/words": "cd"},
"form": "records", "batch": 16, "batch_matters": true, "nan": "refuse", "on_error": "fail", "published": null}}"""


def test_a_job_of_one_function_is_the_one_of_versions_without_several() -> None:
    assert OF_ONE.identity().fingerprint == "760b43b9a106367c48607b52f368d7fd"
    files = json.dumps({"patterns": ["/in/*.jsonl"], "base": "/in/"})
    loaded = load_job(STORED.replace("FILES", files).encode(), {})
    assert loaded == replace(OF_ONE, flush_entries=1000)


def parameters(**more: Any) -> dict[str, Any]:
    return {**replace(OF_ONE, **more).identity().parameters}


def test_what_shapes_the_outputs_belongs_to_the_job() -> None:
    plain = parameters()
    assert parameters(record_timeout=5.0, on_error="reject") == plain
    assert parameters(keep_dropped=True) == {**plain, "keep_dropped": True}
    assert parameters(style="datasets") == {**plain, "style": "datasets"}
    (last,) = OF_ONE.functions
    two = parameters(functions=(MappedFunction("f", "m:f", {"module": {"m": "ab"}}, {}, 9), last))
    assert two["functions"]["f"] == {"module": {"m": "ab"}, "batch": 9}, "its results are in batches of the last one"
    free = (MappedFunction("f", "m:f", {}, {}, 9), replace(last, batch_matters=False))
    assert not any("batch" in found for found in parameters(functions=free)["functions"].values())
