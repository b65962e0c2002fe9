"""Functions that no module holds, on their way to another process: what arrives is what was sent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.user_code.loading import PickledObject

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
