"""What a function is made of: its code, what it captures, and the user's modules, alike in every process."""

from __future__ import annotations

import enum
import functools
import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ledgerbeam.errors import FunctionError
from ledgerbeam.ledger import code_identity
from ledgerbeam.ledger.model.function_parts import function_name, function_parts
from ledgerbeam.ledger.model.job import flat_parameters
from ledgerbeam.ledger.model.user_modules import reference_to

HEAD = "import functools, json, random, re, threading\nimport numpy as np\n"


def parts(source: str, name: str = "clean") -> dict[str, dict[str, str]]:
    """Return the parts of what a script defines, as it stands in `__main__`."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(HEAD + source, "<a cell>", "exec"), names)
    return function_parts(names[name]).as_parameters()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        del sys.modules[name]


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


EDITS = [
    ("def clean(r): return r\n", "def clean(r): return [r]\n", ["code clean"]),
    ("def clean(r): return r < 5\n", "def clean(r): return r < 6\n", ["code clean"]),
    ("def clean(r): return r.a\n", "def clean(r): return r.b\n", ["code clean"]),
    ("T = 3\ndef clean(r): return r < T\n", "T = 4\ndef clean(r): return r < T\n", ["captured value 'T' of clean"]),
    ("T = 'a'\ndef clean(r): return r + T\n", "T = 'b'\ndef clean(r): return r + T\n", ["captured value 'T' of clean"]),
    (
        "T = {1: ['a', {'b'}]}\ndef clean(r): return T\n",
        "T = {1: ['a', {'c'}]}\ndef clean(r): return T\n",
        ["captured value 'T' of clean"],
    ),
    (
        "T = np.zeros(3)\ndef clean(r): return T\n",
        "T = np.ones(3)\ndef clean(r): return T\n",
        ["captured value 'T' of clean"],
    ),
    (
        "T = re.compile('a')\ndef clean(r): return T\n",
        "T = re.compile('b')\ndef clean(r): return T\n",
        ["captured value 'T' of clean"],
    ),
    ("def clean(r, k=1): return k\n", "def clean(r, k=2): return k\n", ["captured value the default of 'k' of clean"]),
    (
        "def clean(r, *, k=1): return k\n",
        "def clean(r, *, k=2): return k\n",
        ["captured value the default of 'k' of clean"],
    ),
    (
        "def norm(x): return x\ndef clean(r): return norm(r)\n",
        "def norm(x): return -x\ndef clean(r): return norm(r)\n",
        ["code norm"],
    ),
    (
        "def make(t):\n    def inner(r): return r < t\n    return inner\nclean = make(5)\n",
        "def make(t):\n    def inner(r): return r < t\n    return inner\nclean = make(6)\n",
        ["captured value 't' of inner"],
    ),
    (
        "clean = functools.partial(json.dumps, indent=1)\n",
        "clean = functools.partial(json.dumps, indent=2)\n",
        ["captured value 'indent' of partial json:dumps"],
    ),
    (
        "clean = functools.partial(max, 1)\n",
        "clean = functools.partial(max, 2)\n",
        ["captured value argument 1 of partial builtins:max"],
    ),
    (
        "class C:\n    def __init__(self, k): self.k = k\n    def __call__(self, r): return r\nclean = C(1)\n",
        "class C:\n    def __init__(self, k): self.k = k\n    def __call__(self, r): return r\nclean = C(2)\n",
        ["captured value 'k' of C"],
    ),
    (
        "class C:\n    k = 1\n    def run(self, r): return self.k\nclean = C().run\n",
        "class C:\n    k = 2\n    def run(self, r): return self.k\nclean = C().run\n",
        ["captured value 'k' of class C"],
    ),
    (
        "class C:\n    def __call__(self, r): return r\nclean = C\n",
        "class C:\n    def __call__(self, r): return [r]\nclean = C\n",
        ["code C.__call__"],
    ),
    (
        "class B:\n    def help(self): return 1\nclass C(B):\n    def __call__(self, r): return r\nclean = C\n",
        "class B:\n    def help(self): return 2\nclass C(B):\n    def __call__(self, r): return r\nclean = C\n",
        ["code B.help"],
    ),
    (
        "class C:\n    @property\n    def k(self): return 1\n    @staticmethod\n    def s(): return 1\nclean = C\n",
        "class C:\n    @property\n    def k(self): return 2\n    @staticmethod\n    def s(): return 2\nclean = C\n",
        ["code C.k", "code C.s"],
    ),
    (
        "import json as encode\ndef clean(r): return encode.dumps(r)\n",
        "import orjson as encode\ndef clean(r): return encode.dumps(r)\n",
        ["captured value 'encode' of clean"],
    ),
    (
        "from html import escape as norm\ndef clean(r): return norm(r)\n",
        "from html import unescape as norm\ndef clean(r): return norm(r)\n",
        ["captured value 'norm' of clean"],
    ),
    (
        "STEPS = [str.strip, lambda x: x]\ndef clean(r): return STEPS\n",
        "STEPS = [str.strip, lambda x: -x]\ndef clean(r): return STEPS\n",
        ["code <lambda>"],
    ),
    (
        "@functools.lru_cache\ndef tool(x): return x\ndef clean(r): return tool(r)\n",
        "@functools.lru_cache\ndef tool(x): return -x\ndef clean(r): return tool(r)\n",
        ["code tool"],
    ),
]


@pytest.mark.parametrize(("before", "after", "changed"), EDITS, ids=lambda value: str(value)[:40])
def test_an_edit_changes_exactly_the_part_that_is_edited(before: str, after: str, changed: list[str]) -> None:
    was, now = dict(flat_parameters(parts(before))), dict(flat_parameters(parts(after)))
    assert sorted(name for name in {*was, *now} if was.get(name) != now.get(name)) == changed
    assert was == dict(flat_parameters(parts(before)))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("def clean(r): return r\n", "\n\n# a comment\ndef clean(r):\n    return r  # another\n"),
        ("T = 3\nU = 4\ndef clean(r): return T\n", "T = 3\nU = 5\ndef clean(r): return T\n"),
        ("text = 1\ndef clean(r): return r.text\n", "text = 2\ndef clean(r): return r.text\n"),
    ],
)
def test_what_changes_nothing_for_the_function_is_no_change(before: str, after: str) -> None:
    assert parts(before) == parts(after)


EVERYTHING = """
import collections, dataclasses, datetime, decimal, enum, logging, pathlib
class Kind(enum.Enum):
    A = 1
@dataclasses.dataclass
class Data:
    n: int
    names: set = dataclasses.field(default_factory=set)
Pair = collections.namedtuple("Pair", "x y")
WORDS = {"alpha", "beta", "gamma", "delta"}
VALUES = [
    Kind.A, Data(1, {"a", "b", "c"}), Pair(1, 2), frozenset("abcdef"), {"k": {"x", "y", "z"}}, decimal.Decimal("0.1"),
    datetime.datetime(2026, 1, 1), pathlib.PurePosixPath("/a"), np.arange(5), np.float32(0.5), re.compile("a", re.I),
    collections.Counter("hello"), collections.defaultdict(list, a=[1]), logging.getLogger("x"), range(3), b"x", 1.5j,
    float("nan"), object, len, "x".join, np.array(["a", None], object),
]
LOOP = []
LOOP.append(LOOP)
def clean(r): return WORDS, VALUES, LOOP, r in {"p", "q", "r", "s"}
"""


def test_the_parts_are_alike_in_every_process(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"import json\nfrom ledgerbeam.ledger.model.function_parts import function_parts\n{HEAD}{EVERYTHING}"
        "print(json.dumps(function_parts(clean).as_parameters()))\n"
    )
    found = set()
    for seed in ("0", "1", "2"):
        done = subprocess.run(
            [sys.executable, script],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        found.add(done.stdout)
    assert len(found) == 1
    assert len(json.loads(found.pop())["captured value"]) > 3


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "LOCK = threading.Lock()\ndef clean(r): return LOCK\n",
            r"clean: the captured value 'LOCK' is or .* lock",
        ),
        (
            "import sys\nFILE = sys.__stderr__\ndef clean(r): return FILE\n",
            r"'FILE' .* TextIOWrapper, which other",
        ),
        ("G = (x for x in 'ab')\ndef clean(r): return G\n", r"'G' is or holds a generator.*make it inside"),
        ("D = {'a': [threading.Lock()]}\ndef clean(r): return D\n", r"'D' is or holds a lock"),
        (
            "R = random.Random(3)\ndef clean(r): return R\n",
            r"'R' is or holds a Random of random.*seeded",
        ),
        ("R = np.random.default_rng(3)\ndef clean(r): return R\n", r"'R' is or holds a Generator of numpy"),
        ("from random import random\ndef clean(r): return random()\n", r"seeded from the record"),
    ],
)
def test_what_no_other_process_can_have_is_refused_with_the_remedy(source: str, message: str) -> None:
    with pytest.raises(FunctionError, match=message):
        parts(source)


def test_texts_are_not_in_the_identity_in_clear() -> None:
    found = parts("KEY = 'sk-secret'\nN = 7\ndef clean(r): return KEY, N\n")["captured value"]
    assert "secret" not in str(found)
    assert found["'N' of clean"] == "7"


def test_modules_of_the_users_own_are_followed(folder: Path) -> None:
    (folder / "fp_helpers.py").write_text("import fp_deep\ndef norm(x): return x\n")
    (folder / "fp_deep.py").write_text("")
    (folder / "fp_lazy.py").write_text("")
    (folder / "fp_pack").mkdir()
    (folder / "fp_pack" / "__init__.py").write_text("")
    (folder / "fp_pack" / "inner.py").write_text("def f(x): return x\n")
    text = (
        "import fp_pack.inner\nfrom fp_helpers import norm\ndef clean(r):\n    import fp_lazy\n"
        "    return norm(r), fp_pack.inner.f(r), json.dumps(r)\n"
    )
    found = parts(text)
    assert list(found["module"]) == ["fp_deep", "fp_helpers", "fp_lazy", "fp_pack", "fp_pack.inner"]
    (folder / "fp_deep.py").write_text("x = 1\n")
    now = parts(text)
    assert {name for name in now["module"] if now["module"][name] != found["module"][name]} == {"fp_deep"}


# Names


def test_what_a_module_holds_is_known_by_its_name(folder: Path) -> None:
    (folder / "fp_names.py").write_text(
        "import functools\ndef f(x): ...\nclass C:\n    def m(self): ...\n    @classmethod\n    def k(cls): ...\n"
        "    @staticmethod\n    def s(): ...\n@functools.wraps(f)\ndef other(x): ...\ng = lambda x: x\nc = C()\n"
    )
    module = importlib.import_module("fp_names")
    named = {name: reference_to(eval(f"m.{name}", {"m": module})) for name in ("f", "C", "C.m", "C.k", "C.s", "other")}
    assert named == {name: f"fp_names:{name}" for name in named}
    for unnamed in (module.g, module.c, module.c.m, functools.partial(module.f)):
        assert reference_to(unnamed) is None


def test_names_of_functions_are_those_that_people_know() -> None:
    def inner(r: Any) -> Any:
        return r

    module = __name__
    assert function_name(inner) == f"{module}:inner"
    assert function_name(functools.partial(functools.partial(inner))) == f"{module}:inner"
    assert function_name(threading.Event().set) == "threading:Event.set"
    assert function_name(Colour.RED) == f"{module}:Colour"


class Colour(enum.Enum):
    RED = 1


# The identity of pipelines of one's own


def test_an_edit_of_a_module_changes_the_identity_of_its_functions(tmp_path: Path) -> None:
    path = tmp_path / "edited_module.py"
    path.write_text("FACTOR = 2\n\ndef double(task):\n    return FACTOR\n\nclass Work:\n    def run(self): ...\n")
    module = load(path)
    first = code_identity(module.double, module.Work.run, module.Work)
    assert first["order"] == [f"edited_module:{name}" for name in ("double", "Work.run", "Work")]
    path.write_text(path.read_text().replace("FACTOR = 2", "FACTOR = 30"))
    module = load(path)
    assert changed(first, code_identity(module.double, module.Work.run, module.Work)) == ["module edited_module"]


def test_other_modules_of_the_users_own_are_in_the_identity(folder: Path) -> None:
    (folder / "fp_main.py").write_text("import fp_other\ndef work(task): ...\n")
    (folder / "fp_other.py").write_text("")
    found = code_identity(importlib.import_module("fp_main").work)
    assert [name for name, _ in flat_parameters(found)] == ["order", "module fp_main", "module fp_other"]


def test_what_is_installed_is_in_the_identity_if_it_is_given_itself() -> None:
    assert list(code_identity(json.dumps)["module"]) == ["json"]


def test_captured_values_are_in_the_identity() -> None:
    def make(limit: int) -> Callable[[int], bool]:
        return lambda number: number < limit

    assert changed(code_identity(make(3)), code_identity(make(4))) == ["captured value 'limit' of <lambda>"]


def changed(was: dict[str, Any], now: dict[str, Any]) -> list[str]:
    before, after = dict(flat_parameters(was)), dict(flat_parameters(now))
    return sorted(name for name in {*before, *after} if before.get(name) != after.get(name))


def test_functions_of_one_name_are_told_apart_by_their_modules(folder: Path) -> None:
    for name, body in (("one_work", "1"), ("two_work", "2")):
        (folder / f"{name}.py").write_text(f"def work(task): return {body}\n")
    one, two = (importlib.import_module(name).work for name in ("one_work", "two_work"))
    assert code_identity(one, two)["order"] == ["one_work:work", "two_work:work"]
    assert changed(code_identity(one, two), code_identity(two, one)) == ["order"]
    assert changed(code_identity(one), code_identity(one, one)) == ["order"]


class Once:
    def __init__(self, field: str, **others: int) -> None:
        self.field = field
        self.__dict__.update(others)

    def __call__(self, record: Any) -> Any:
        return record[self.field]

    def run(self, record: Any) -> Any:
        return self(record)


def named(pattern: str, record: Any) -> Any:
    return pattern, record


def closure(limit: int) -> Callable[[int], bool]:
    def is_below(number: int) -> bool:
        return number < limit

    return is_below


ONCE = f"{__name__}:Once"
PAIRS: list[tuple[Any, str]] = [
    (Once, f"captured value 'field' of {ONCE}"),
    (lambda value: Once(value).run, f"captured value 'field' of {ONCE}"),
    (lambda value: functools.partial(named, value), f"captured value argument 1 of partial {__name__}:named"),
    (lambda value: functools.partial(named, record=value), f"captured value 'record' of partial {__name__}:named"),
    (closure, "captured value 'limit' of is_below"),
    (lambda value: lambda record: record == value, "captured value 'value' of <lambda>"),
    (lambda value: value.join, "captured value the object of str.join"),
]


@pytest.mark.parametrize(("make", "what"), PAIRS, ids=lambda value: value if isinstance(value, str) else "")
def test_several_of_a_kind_are_told_apart(make: Callable[[str], Any], what: str) -> None:
    found = code_identity(make("a"), make("b"))
    second = f"{what} 2" if what.endswith((">", "is_below")) else f"{what} (2)"
    assert changed(found, code_identity(make("a"), make("b"))) == []
    assert changed(found, code_identity(make("z"), make("b"))) == [what]
    assert changed(found, code_identity(make("a"), make("z"))) == [second]
    assert changed(found, code_identity(make("b"), make("a"))) == [what, second]


def test_several_of_a_kind_are_told_apart_inside_of_what_captures_them() -> None:
    def all_of(*steps: Any) -> Callable[[Any], Any]:
        return lambda record: [step(record) for step in steps]

    makes: list[Callable[[str], Any]] = [pair[0] for pair in PAIRS]
    for make in makes:
        was, now = code_identity(all_of(make("a"), make("b"))), code_identity(all_of(make("z"), make("b")))
        assert len(changed(was, now)) == 1
    a, b = Once("a"), Once("b")
    assert changed(code_identity(all_of(a.run, b.run, a.run)), code_identity(all_of(a.run, b.run, b.run)))
    first, second = Once("a", n=1), Once("a")
    assert changed(code_identity(first, second), code_identity(second, first))


def test_a_partial_of_a_function_that_captures_the_partial_is_followed() -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(
        "import functools\ndef clean(n, r): return again\nagain = functools.partial(clean, 1)\n"
        "class C:\n    def __init__(self): self.call = self.__call__\n    __call__ = lambda self, r: r\n",
        names,
    )
    found = code_identity(names["again"], names["C"]())
    assert found["order"] == ["partial clean", "C"]
    assert found["captured value"] == {
        "'again' of clean": "partial clean",
        "argument 1 of partial clean": "1",
        "'call' of C": "C.<lambda> of C",
    }


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(FunctionError, match="3: expected a function, found int"):
        code_identity(3)  # type: ignore[arg-type]


def test_what_is_nested_without_end_is_refused() -> None:
    value: Any = None
    for _ in range(100_000):
        value = [value]
    try:
        with pytest.raises(FunctionError, match="nested too deeply"):
            function_parts(lambda record: value)
    finally:
        while value:  # else freeing it takes as deep a recursion
            value = value.pop()


def test_a_generator_of_torch_is_told_by_its_name() -> None:
    generator = type("Generator", (), {"__module__": "torch._C"})()
    with pytest.raises(FunctionError, match="Generator of torch"):
        function_parts(lambda record: generator)
