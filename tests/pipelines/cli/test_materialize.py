"""`ledgerbeam materialize`: the order of a graph as shards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from ledgerbeam.io import Sample, TarReader, write_index
from ledgerbeam.io.datasets.megatron import MegatronReader, write_megatron
from ledgerbeam.io.tar.writer import encode_tar
from tests.pipelines.conftest import Workspace
from tests.pipelines.jobs.test_restart import tasks_done, wait_for

pytestmark = pytest.mark.slow

ORDERS = '''
"""Graphs of the tests."""
import json, os, time
from ledgerbeam.iterators import *

def is_wanted(record):
    return record["id"] % 7 != 0

def is_none(record):
    return False

def add_draw(record, chance):
    return {**record, "draw": chance.random()}

def slow(record):
    time.sleep(0.003)
    return record

def bad_seven(record):
    if record["id"] == 7:
        raise ValueError("seven is bad")
    return record

def leaf(name, **options):
    return IndexedManifest(f"in/{name}.jsonl", **options)

def shuffled():
    return Filter(GlobalShuffle(leaf("a"), leaf("b"), seed=4), is_wanted)

def mixed():
    parts = Mux(leaf("a", shuffle=True, seed=1), leaf("b"), weights=[2, 1], seed=3)
    return Repeat(Map(Filter(parts, is_wanted), add_draw, seed=5), 2)

def slowly():
    return Map(shuffled(), slow)

def failing():
    return Map(Chain(leaf("a"), leaf("b")), bad_seven)

def empty():
    return Filter(leaf("a"), is_none)

def seeded():
    return leaf("a", shuffle=True, seed=int(open("seed").read()))

def unstable():
    return leaf("a", shuffle=True, seed=os.getpid())

def pieces(record):
    return [{"id": record["id"], "piece": piece} for piece in range(record["id"] % 4)]

def flattened():
    wanted = Filter(GlobalShuffle(leaf("a"), leaf("b"), seed=4), is_wanted)
    return Repeat(Map(Flatten(Map(wanted, pieces)), add_draw, seed=5), 2)

def streamed():
    return Chain(leaf("a"), Jsonl("in/a.jsonl"))

def batched():
    return Batches(leaf("a"), 8)

def with_documents():
    return Map(leaf("a", shuffle=True), lambda record: {"tokens": [record["id"], 7]})

def of_sequences():
    from ledgerbeam.io.datasets.megatron import MegatronReader
    return Map(Records(MegatronReader("in/m")), lambda tokens: {"tokens": tokens.tolist()})

def of_samples():
    return IndexedTar("in/s.tar", shuffle=True, seed=2)

def twice_each():
    return Repeat(IndexedTar("in/one.tar"), 2)

def broken():
    raise RuntimeError("no such corpus")

def nothing():
    return 7

an_object = leaf("a", shuffle=True) if os.path.exists("in/a.jsonl.idx") else None
'''


@pytest.fixture
def corpus(workspace: Workspace) -> Workspace:
    """Sources with their indexes, and a module that builds graphs over them."""
    (workspace.root / "orders.py").write_text(ORDERS)
    workspace.jsonl("in/a.jsonl", 300)
    workspace.jsonl("in/b.jsonl", 200, first=1000)
    assert workspace.run("index", "in/*.jsonl").status == 0
    return workspace


def items_of(workspace: Workspace, name: str, epoch: int = 0) -> list[Any]:
    """Return the items of the graph, iterated in another process."""
    script = f"import json, orders; g = orders.{name}(); g.set_epoch({epoch}); print(json.dumps(list(g)))"
    done = subprocess.run([sys.executable, "-c", script], cwd=workspace.root, check=True, stdout=subprocess.PIPE)
    found: list[Any] = json.loads(done.stdout)
    return found


def materialize(workspace: Workspace, name: str, *options: str, to: str = "jsonl", status: int = 0) -> Any:
    command = ("materialize", f"orders:{name}", "--output", "out", "--to", to, "--ledger", "L")
    ran = workspace.run(*command, "--json", *options, status=status)
    return ran.json if ran.out else ran.err


@pytest.mark.parametrize("name", ["shuffled", "mixed", "flattened"])
def test_shards_read_one_after_the_other_are_the_passes_of_the_graph(corpus: Workspace, name: str) -> None:
    done = materialize(corpus, name, "--task-records", "64", "--epochs", "2")
    first, second = items_of(corpus, name), items_of(corpus, name, 1)
    assert first != second
    assert corpus.records("out") == first + second
    assert done["sources"] == {"complete": 2, "open": 0, "failed": 0}
    names = sorted(corpus.files("out"))
    assert names[:2] == ["epoch-00000-0000000000.jsonl", "epoch-00000-0000000000.jsonl.idx"]
    assert "epoch-00001-0000000064.jsonl" in names


def test_more_epochs_are_done_beside_those_that_are_there(corpus: Workspace) -> None:
    assert materialize(corpus, "shuffled")["skipped"] == 0
    done = materialize(corpus, "shuffled", "--epochs", "3")
    assert (done["skipped"], done["sources"]["complete"]) == (1, 3)
    assert len({corpus.files("out")[f"epoch-{epoch:05d}-0000000000.jsonl"] for epoch in range(3)}) == 3


def test_tasks_follow_the_size_of_the_records(corpus: Workspace) -> None:
    size = os.path.getsize(corpus.root / "in/a.jsonl") + os.path.getsize(corpus.root / "in/b.jsonl")
    done = materialize(corpus, "shuffled", "--task-bytes", str(size // 4 + 1))
    assert done["tasks"]["done"] == 4


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_killed_run_goes_on_and_ends_with_the_same_bytes(corpus: Workspace, workers: str) -> None:
    options = ("--to", "jsonl", "--task-records", "10", "--flush-interval", "0.01", "--workers", workers)
    corpus.run("materialize", "orders:slowly", "--output", "clean", *options, status=0)
    command = ("materialize", "orders:slowly", "--output", "out", "--ledger", "L", *options)
    process = corpus.start(*command)
    wait_for(lambda: tasks_done(corpus) > 5, process)
    process.kill()
    process.communicate()
    done = tasks_done(corpus)
    assert 0 < done < 50
    before = {name: os.stat(corpus.root / "out" / name).st_ino for name in corpus.files("out") if name[0] != "."}
    ran = corpus.run(*command, "--json", status=0)
    assert ran.json["tasks"]["done"] == 50
    assert corpus.files("out") == corpus.files("clean")
    assert corpus.records("out") == items_of(corpus, "shuffled")
    kept = sum(os.stat(corpus.root / "out" / name).st_ino == number for name, number in before.items())
    assert kept >= 2 * done, "tasks that were recorded were done again"


def test_other_data_is_a_new_source_and_takes_the_place_of_the_old(corpus: Workspace) -> None:
    materialize(corpus, "shuffled", "--task-records", "100")
    assert len(corpus.files("out")) == 10
    corpus.jsonl("in/b.jsonl", 50, first=2000)
    assert corpus.run("index", "in/b.jsonl").status == 0
    done = materialize(corpus, "shuffled", "--task-records", "100")
    assert (done["skipped"], done["sources"]["complete"]) == (0, 1)
    assert corpus.records("out") == items_of(corpus, "shuffled")
    assert len(corpus.files("out")) == 8


def test_another_index_of_a_megatron_dataset_is_other_data(corpus: Workspace) -> None:
    """The same if the number of sequences is unchanged."""
    for name, lengths in (("in/m", (2, 2)), ("other", (1, 3))):
        with write_megatron(str(corpus.root / name), np.int32) as builder:
            for _ in range(100):
                for length in lengths:
                    builder.add_document([7] * length)
    assert materialize(corpus, "of_sequences", "--task-records", "20", "--limit-tasks", "3")["complete"] is False
    (corpus.root / "in/m.idx").write_bytes((corpus.root / "other.idx").read_bytes())
    materialize(corpus, "of_sequences", "--task-records", "20")
    assert [len(record["tokens"]) for record in corpus.records("out")] == [1, 3] * 100


def test_a_graph_that_is_built_otherwise_is_a_new_source(corpus: Workspace) -> None:
    (corpus.root / "seed").write_text("1")
    materialize(corpus, "seeded")
    before = corpus.records("out")
    assert materialize(corpus, "seeded")["skipped"] == 1
    (corpus.root / "seed").write_text("2")
    assert materialize(corpus, "seeded")["skipped"] == 0
    assert corpus.records("out") == items_of(corpus, "seeded") != before


def test_an_edited_module_is_another_job(corpus: Workspace) -> None:
    materialize(corpus, "shuffled")
    (corpus.root / "orders.py").write_text(ORDERS.replace("seed=4", "seed=5"))
    refused = materialize(corpus, "shuffled", status=1)
    assert "module orders" in refused
    assert materialize(corpus, "shuffled", "--on-job-change", "accept")["skipped"] == 0
    assert corpus.records("out") == items_of(corpus, "shuffled")


def test_samples_and_documents_are_written_too(corpus: Workspace) -> None:
    samples = [Sample(f"s{n:02d}", {"txt": f"text {n}".encode(), "cls": b"1"}) for n in range(40)]
    data, offsets = encode_tar(samples)
    (corpus.root / "in/s.tar").write_bytes(data)
    write_index(str(corpus.root / "in/s.tar.idx"), offsets)
    materialize(corpus, "of_samples", "--task-records", "16", to="tar")
    found: list[Sample] = []
    for path in sorted((corpus.root / "out").glob("*.tar")):
        with TarReader(str(path)) as reader:
            found += reader[:]
    assert len(list((corpus.root / "out").glob("*.tar"))) == 3
    assert sorted(sample.key for sample in found) == [sample.key for sample in samples]
    assert [sample.key for sample in found] != [sample.key for sample in samples]
    assert {sample.key: dict(sample) for sample in found} == {sample.key: dict(sample) for sample in samples}
    command = ("materialize", "orders:with_documents", "--to", "megatron", "--dtype", "int32")
    corpus.run(*command, "--output", "data/train", "--task-records", "99", "--drop-parts", status=0)
    with MegatronReader(str(corpus.root / "data/train")) as tokens:
        order = [int(document[0]) for document in tokens]
    assert sorted(order) == list(range(300)) != order
    assert np.diff(order).any()


def test_an_object_of_a_module_is_a_graph_as_well(corpus: Workspace) -> None:
    materialize(corpus, "an_object", "--task-records", "70")
    assert sorted(record["id"] for record in corpus.records("out")) == list(range(300))


def test_a_pass_without_items_is_complete_and_writes_nothing(corpus: Workspace) -> None:
    assert materialize(corpus, "empty")["complete"] is True
    assert corpus.files("out") == {}


@pytest.mark.parametrize(
    ("name", "status", "message"),
    [
        ("streamed", 1, "IndexedManifest instead of Jsonl"),
        ("batched", 1, "has no fixed number of places"),
        ("broken", 1, "RuntimeError: no such corpus"),
        ("nothing", 1, "expected a graph or a function that returns one, found int"),
        ("missing", 1, "has no 'missing'"),
    ],
)
def test_what_has_no_places_is_refused_before_anything_is_made(
    corpus: Workspace, name: str, status: int, message: str
) -> None:
    ran = corpus.run("materialize", f"orders:{name}", "--output", "out", "--to", "jsonl", "--ledger", "L")
    assert (ran.status, message in ran.err) == (status, True), ran.err
    assert "Traceback" not in ran.err
    assert not (corpus.root / "out").exists()
    assert not (corpus.root / "L").exists()


def test_a_function_that_raises_fails_its_task_only(corpus: Workspace) -> None:
    done = materialize(corpus, "failing", "--task-records", "50", status=3)
    assert done["tasks"] == {"done": 9, "failed": 1}
    (failure,) = corpus.run("ledger", "failures", "L", "--json").json["failures"]
    assert failure["reason"] == "FunctionError"
    assert "orders:failing raised ValueError: seven is bad" in failure["error"]
    assert "orders.py" in failure["error"]
    assert [record["id"] for record in corpus.records("out")][:3] == [50, 51, 52]


def test_a_builder_that_gives_another_graph_each_time_is_told(corpus: Workspace) -> None:
    materialize(corpus, "unstable", status=3)
    (failure,) = corpus.run("ledger", "failures", "L", "--json").json["failures"]
    assert "must build the same graph each time" in failure["error"]
    assert corpus.files("out") == {}


def test_neighbours_of_one_key_cannot_be_one_archive(corpus: Workspace) -> None:
    data, offsets = encode_tar([Sample("only", {"txt": b"text", "cls": b"1"})])
    (corpus.root / "in/one.tar").write_bytes(data)
    write_index(str(corpus.root / "in/one.tar.idx"), offsets)
    materialize(corpus, "twice_each", to="tar", status=3)
    assert "has the key of the sample before" in corpus.run("ledger", "failures", "L").out


def test_status_cannot_ask_for_changes_of_a_graph(corpus: Workspace) -> None:
    materialize(corpus, "shuffled")
    corpus.run("ledger", "status", "L", "--check-sources", status=2, err="a pass of a graph")
    assert corpus.run("ledger", "verify", "L").status == 0
    assert corpus.run("ledger", "status", "L", "--json").json["job"]["parameters"]["graph"] == "orders:shuffled"


def test_another_runner_writes_the_same_shards(corpus: Workspace) -> None:
    materialize(corpus, "mixed", "--task-records", "64")
    clean = corpus.files("out")
    command = ("materialize", "orders:mixed", "--output", "direct", "--to", "jsonl", "--task-records", "64")
    corpus.run(*command, "--", "--runner=BundleBasedDirectRunner", status=0)
    assert corpus.files("direct") == clean
    refused = corpus.run(*command, "--", "--runner=PortableRunner", "--job_endpoint=localhost:1")
    assert (refused.status, "must be on an object store" in refused.err) == (2, True)


def test_local_data_of_a_graph_is_out_of_reach_of_other_machines(corpus: Workspace) -> None:
    remote = ("--output", "s3://bucket/out", "--ledger", "s3://bucket/L", "--to", "jsonl")
    endpoint = ("--", "--runner=PortableRunner", "--job_endpoint=localhost:1")
    ran = corpus.run("materialize", "orders:shuffled", *remote, *endpoint)
    assert (ran.status, "in/a.jsonl: the sources must be on an object store" in ran.err) == (2, True), ran.err
