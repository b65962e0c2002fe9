"""Functions without a module on their way to other processes, and audits of functions that are not pure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.errors import UsageError
from ledgerbeam.pipelines.jobs.checks import parse_audit
from ledgerbeam.user_code.loading import PickledObject
from tests.cases import each
from tests.pipelines.conftest import Ran, Workspace

SCRIPT = """
import abc, collections, dataclasses, datetime, decimal, enum, functools, json, logging, pathlib, re, sys, typing
import numpy as np
import pyarrow as pa
from ledgerbeam.pipelines.jobs.user_function import user_function

class Kind(enum.Enum):
    A = 1

@dataclasses.dataclass
class Data:
    n: int
    names: set = dataclasses.field(default_factory=set)

@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    n: int

class Base(abc.ABC):
    @abc.abstractmethod
    def run(self): ...

class Impl(Base):
    limit: typing.ClassVar[int] = 4
    def __init__(self):
        self.words = {"b", "a"}
    def run(self):
        return super().__eq__(self)
    @functools.cached_property
    def double(self):
        return 2 * self.limit

class Typed(typing.TypedDict):
    a: int

class Named(typing.NamedTuple):
    a: int = 3

class Meta(type):
    def hello(cls):
        return "hello"

class WithMeta(metaclass=Meta):
    z = 1

Pair = collections.namedtuple("Pair", "x y")

@functools.lru_cache(maxsize=3)
def cached(number):
    return number + 1

LOOP = []
LOOP.append(LOOP)
VALUES = [
    Kind.A, Data(1, {"a", "b", "c"}), Frozen(2), Named(), Typed(a=1), WithMeta(), Pair(1, 2), frozenset("abcdef"),
    {"k": {"x", "y", "z"}}, decimal.Decimal("0.1"), datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), np.arange(5),
    pathlib.PurePosixPath("/a"), np.float32(0.5), re.compile("a", re.I), collections.Counter("hello"), range(3), b"x",
    collections.defaultdict(list, a=[1]), logging.getLogger("x"), 1.5j, float("nan"), object, len, "x".join, Ellipsis,
    np.array(["a", None], object), pa.table({"a": [1, 2]}), pa.schema([("a", pa.int64())]), slice(1, 2), LOOP, print,
    collections.deque([1], 3), json.JSONEncoder(), typing.Optional[int], list[int], WithMeta.hello,
]
model = Impl()

def clean(record):
    assert VALUES[0] is Kind.A and VALUES[1] == Data(1, {"a", "b", "c"}) and VALUES[2] == Frozen(2)
    assert VALUES[6] == Pair(1, 2) and VALUES[11].sum() == 10 and WithMeta.hello() == "hello" and LOOP[0] is LOOP
    return [cached(record), cached.cache_info().maxsize, model.double, model.run(), sorted(model.words), len(VALUES)]

made = user_function(clean)
print(json.dumps({"data": made.reference.data, "made_of": made.made_of}))
"""


def travelled(tmp_path: Path, seed: str) -> dict[str, Any]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    env = {**os.environ, "PYTHONHASHSEED": seed}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_whatever_pickles_arrives_as_it_was_and_is_known_again(tmp_path: Path) -> None:
    first, second = travelled(tmp_path, "1"), travelled(tmp_path, "2")
    assert first["made_of"] == second["made_of"]
    assert len(first["made_of"]["code"]) > 10
    sent = PickledObject("__main__:clean", first["data"])
    assert sent.load()(1) == [2, 3, 8, True, ["a", "b"], 37]
    assert sent.load() is PickledObject("__main__:clean", first["data"]).load()
    assert (str(sent), repr(sent)) == ("__main__:clean", "<__main__:clean, pickled>")


FUNCTIONS = """
import collections, os, random, time
from ledgerbeam import Drop

counts, seen, cache, total = collections.Counter(), set(), collections.OrderedDict(), [0, 0]
rng, words = random.Random(0), None
last = ""

def pure(record):
    return {**record, "size": len(record["text"])}

def counter_by_key(record):
    counts[record["id"] % 20] += 1
    return record if counts[record["id"] % 20] <= 30 else None

def seen_set(record):
    if record["text"][:4] in seen:
        return Drop("seen")
    seen.add(record["text"][:4])
    return record

def lru(record):
    key = record["id"] // 3 % 40
    if key not in cache:
        cache[key] = record["text"]
    if len(cache) > 20:
        cache.popitem(last=False)
    return {**record, "cached": cache.get(key)}

def previous(record):
    global last
    before, last = last, record["text"]
    return {**record, "before": before}

def running_mean(record):
    total[0] += len(record["text"])
    total[1] += 1
    return {**record, "mean": total[0] / total[1]}

def seeded_once(record):
    return {**record, "draw": rng.random()}

def clock(record):
    return {**record, "at": time.time()}

def process_id(record):
    return {**record, "pid": os.getpid()}

def hash_seed(record):
    return {**record, "shard": hash(record["text"]) % 64}

def file_position(record):
    global words
    words = words or open("words.txt")
    return {**record, "word": words.readline()}

def batch_mean(records):
    mean = sum(len(record["text"]) for record in records) / len(records)
    return [{**record, "mean": mean} for record in records]

def mutable_default(record, known=[]):
    known.append(record["id"])
    return {**record, "known": len(known)}
"""

IMPURE = [
    *("counter_by_key", "seen_set", "lru", "previous", "running_mean", "seeded_once", "clock", "process_id"),
    *("hash_seed", "file_position", "batch_mean", "mutable_default"),
]


@pytest.fixture
def place(workspace: Workspace) -> Workspace:
    (workspace.root / "audited.py").write_text(FUNCTIONS)
    (workspace.root / "words.txt").write_text("".join(f"word {number}\n" for number in range(100_000)))
    for file in range(2):
        numbers = range(file * 1000, file * 1000 + 1000)
        workspace.write(f"texts/{file}.jsonl", ({"id": n, "text": f"{n * 7919 % 613} text {n}"} for n in numbers))
    return replace(workspace, audits=True)


def mapped(place: Workspace, function: str, *more: str, **how: Any) -> Ran:
    options = ("--output", "out", "--to", "jsonl", "--task-bytes", "9K", "--ledger", "L")
    return place.run("map", f"audited:{function}", "texts/*.jsonl", *options, *more, **how)


def audits(place: Workspace) -> Any:
    return place.run("ledger", "status", "L", "--json").json["audit"]


def test_a_pure_function_is_audited_and_the_job_ends_well(place: Workspace) -> None:
    mapped(place, "pure", status=0)
    assert audits(place) == {"tasks": 2, "differ": 0}
    assert "audited 2 tasks, 0 differ" in place.run("ledger", "status", "L").out
    done = place.run("ledger", "status", "L", "--json").json["tasks"]["done"]
    ran = place.run("ledger", "audit", "L", "--share", "50%")
    assert (ran.status, ran.out) == (0, f"audited {-(-done // 2)} tasks, 0 differ\n")


@pytest.mark.slow
def test_a_function_with_state_ends_the_job_again_and_again_until_it_is_mended(place: Workspace) -> None:
    ran = mapped(place, "previous", status=1)
    first, *lines = ran.err.partition("ledgerbeam: error: ")[2].splitlines()
    assert first.startswith(f"{place.root}/out/")
    assert "audited:previous" in first
    assert f"{place.root}/texts/" in first
    assert '"before":"' in lines[0]
    assert lines[1].endswith('"before":""}')
    assert "--audit off" in lines[2]
    while mapped(place, "previous", "--audit", "off").status:
        pass
    assert place.run("ledger", "status", "L", "--json").json["complete"]
    assert mapped(place, "previous").status == 1  # all is done, and still not as it should be
    source = (place.root / "audited.py").read_text()
    (place.root / "audited.py").write_text(source.replace("before, last = last", "before, last = ''"))
    mapped(place, "previous", "--on-job-change", "restart", status=0)
    assert audits(place) == {"tasks": 2, "differ": 0}


@pytest.mark.slow
def test_a_finished_job_is_audited(place: Workspace) -> None:
    assert mapped(place, "mutable_default", "--audit", "off").status == 0
    assert audits(place) == {"tasks": 0, "differ": 0}
    ran = place.run("ledger", "audit", "L", "--json", status=1)
    assert ran.json["audit"]["differ"] == 1
    assert audits(place)["differ"] == 1
    (place.root / "audited.py").write_text(FUNCTIONS + "\n# edited\n")
    place.run("ledger", "audit", "L", status=1, err=("audited", "changed since the job ran"))


@each("share", ["1.5", "0", "200%", "-1%", "all", "on"])
def test_a_share_is_above_nothing_and_at_most_all(share: str) -> None:
    with pytest.raises(UsageError, match=f"--audit {share}: expected a share"):
        parse_audit(share)


@pytest.mark.slow
def test_all_tasks_are_audited_if_that_is_asked_for(place: Workspace) -> None:
    assert mapped(place, "pure", "--audit", "100%").status == 0
    done = place.run("ledger", "status", "L", "--json").json["tasks"]["done"]
    assert audits(place) == {"tasks": done, "differ": 0}


@pytest.mark.slow
@pytest.mark.parametrize("function", IMPURE)
def test_impurities_of_many_kinds_end_the_job(place: Workspace, function: str) -> None:
    batch = ("--batch", "32") if function == "batch_mean" else ()
    mapped(place, function, *batch, status=1, err=f"audited:{function} returned another result")
    assert audits(place)["differ"] == 1


OWN = """
import sys
import ledgerbeam as lb
from ledgerbeam.transforms import CommitTasks, MatchSources, PlanTasks, ProcessTask, ReadTasks, SkipCompleted
from ledgerbeam.transforms import MapRecords, WriteTasks

calls = 0

def counted(record):
    global calls
    calls += 1
    return {**record, "calls": calls}

if __name__ == "__main__":
    with lb.Pipeline(ledger="own", name="own", progress=False, audit=sys.argv[1] if sys.argv[1:] else None) as p:
        _ = (
            p | MatchSources("texts/*.jsonl") | SkipCompleted() | PlanTasks("9K") | ReadTasks()
            | ProcessTask(MapRecords(counted, "jsonl")) | WriteTasks("own-out", "jsonl") | CommitTasks()
        )
"""


@pytest.mark.slow
def test_the_function_of_an_own_pipeline_is_audited(place: Workspace) -> None:
    (place.root / "own.py").write_text(OWN)

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "own.py", *args]
        return subprocess.run(command, cwd=place.root, env=place.env, capture_output=True, text=True, check=False)

    ran = run()
    assert ran.returncode == 1
    assert "NonDeterministicTaskError" in ran.stderr
    assert "__main__:counted returned another result" in ran.stderr
    assert run("off").returncode == 0


@pytest.mark.slow
def test_the_function_of_groups_is_audited_and_the_key_is_named(place: Workspace) -> None:
    source = (
        "calls = []\ndef counted(key, records):\n    calls.append(key)\n    return {'key': key, 'call': len(calls)}\n"
    )
    (place.root / "groups.py").write_text(source)
    where = ("--by", "id", "--output", "grouped", "--to", "jsonl")
    ran = place.run("group", "groups:counted", "texts/*.jsonl", *where, status=1)
    assert "groups:counted returned another result" in ran.err
    assert ", the key " in ran.err
