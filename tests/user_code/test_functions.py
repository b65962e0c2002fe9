"""Parts of a function: its code, captured values, and the user's modules, equal in every process."""

from __future__ import annotations

import enum
import functools
import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ledgerbeam.errors import FunctionError
from ledgerbeam.ledger.model.job import flat_parameters
from ledgerbeam.user_code.functions import code_identity, function_name, function_parts, made_of, reference_of
from ledgerbeam.user_code.loading import GivenObject
from ledgerbeam.user_code.modules import reference_to
from tests.cases import each

HEAD = "import functools, json, random, re, threading\nimport numpy as np\n"


def parts(source: str, name: str = "clean") -> dict[str, dict[str, str]]:
    """Return the parts of a function defined by a script, in `__main__`."""
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
    ("def clean(r): return «r|[r]»", ["code clean"]),
    ("def clean(r): return r < «5|6»", ["code clean"]),
    ("def clean(r): return r.«a|b»", ["code clean"]),
    ("T = «3|4»\ndef clean(r): return r < T", ["captured value 'T' of clean"]),
    ("T = '«a|b»'\ndef clean(r): return r + T", ["captured value 'T' of clean"]),
    ("T = {1: ['a', {'«b|c»'}]}\ndef clean(r): return T", ["captured value 'T' of clean"]),
    ("T = np.«zeros|ones»(3)\ndef clean(r): return T", ["captured value 'T' of clean"]),
    ("T = re.compile('«a|b»')\ndef clean(r): return T", ["captured value 'T' of clean"]),
    ("def clean(r, k=«1|2»): return k", ["captured value the default of 'k' of clean"]),
    ("def clean(r, *, k=«1|2»): return k", ["captured value the default of 'k' of clean"]),
    ("def clean(r, *, j=0, k=«1|2»): return k", ["captured value the default of 'k' of clean"]),
    ("def norm(x): return «|-»x\ndef clean(r): return norm(r)", ["code norm"]),
    (
        "def make(t):\n    def inner(r): return r < t\n    return inner\nclean = make(«5|6»)",
        ["captured value 't' of inner"],
    ),
    ("clean = functools.partial(json.dumps, indent=«1|2»)", ["captured value 'indent' of partial json:dumps"]),
    ("clean = functools.partial(max, «1|2»)", ["captured value argument 1 of partial builtins:max"]),
    (
        "class C:\n    def __init__(self, k): self.k = k\n    def __call__(self, r): return r\nclean = C(«1|2»)",
        ["captured value 'k' of C"],
    ),
    (
        "class C:\n    k = «1|2»\n    def run(self, r): return self.k\nclean = C().run",
        ["captured value 'k' of class C"],
    ),
    ("class C:\n    def __call__(self, r): return «r|[r]»\nclean = C", ["code C.__call__"]),
    (
        "class B:\n    def help(self): return «1|2»\nclass C(B):\n    def __call__(self, r): return r\nclean = C",
        ["code B.help"],
    ),
    (
        "class C:\n @property\n def k(self): return «1|2»\n @staticmethod\n def s(): return «1|2»\nclean = C",
        ["code C.k", "code C.s"],
    ),
    ("class C:\n    @classmethod\n    def m(cls): return «1|2»\nclean = C", ["code C.m"]),
    ("import «json|orjson» as encode\ndef clean(r): return encode.dumps(r)", ["captured value 'encode' of clean"]),
    ("from html import «escape|unescape» as norm\ndef clean(r): return norm(r)", ["captured value 'norm' of clean"]),
    ("STEPS = [str.strip, lambda x: «|-»x]\ndef clean(r): return STEPS", ["code <lambda>"]),
    ("import types\nclean = types.MethodType(lambda s, r: «|-»r, 3)", ["code <lambda>"]),
    ("class C(«list|tuple»): ...\nclean = C", ["code class C"]),
    ("class C:\n    @functools.cached_property\n    def k(self): return «1|2»\nclean = C", ["code C.k"]),
    ("class L(list):\n    def __call__(self, r): return r\nclean = L([«1|2»])", ["captured value part 1 of L"]),
    ("class D(dict):\n    def __call__(self, r): return r\nclean = D(a=«1|2»)", ["captured value part 1 of D"]),
    ("class C(int):\n    def __call__(self, r): return r\nclean = C(«1|2»)", ["captured value part 1 of C"]),
    ("import operator\nclean = operator.itemgetter('«a|b»')", ["captured value part 1 of operator:itemgetter"]),
    (
        "import operator\nclean = operator.itemgetter(«None, 1|1, None»)",
        ["captured value part 1 of operator:itemgetter", "captured value part 2 of operator:itemgetter"],
    ),
    (
        "M = json.«dumps|loads»\nclass C:\n def __reduce__(s): return M, (1,)\n def __call__(s, r): ...\nclean = C()",
        ["captured value 'M' of C.__reduce__", "captured value part 2 of C"],
    ),
    (
        "N = «5|6»\nclass C:\n    def __reduce__(s): return C, (), N\n    def __call__(s, r): ...\nclean = C()",
        ["captured value 'N' of C.__reduce__", "captured value part 1 of C"],
    ),
    (
        "import collections\nT = collections.defaultdict(list, a=«1|2»)\ndef clean(r): return T",
        ["captured value 'T' of clean"],
    ),
    ("T = np.poly1d([1, «2|3»])\ndef clean(r): return T", ["captured value 'T' of clean"]),
    ("@functools.lru_cache\ndef tool(x): return «|-»x\ndef clean(r): return tool(r)", ["code tool"]),
]
"""Scripts with `«before|after»` where they are edited, and the parts that change."""


@each(("script", "names"), EDITS)
def test_an_edit_changes_exactly_the_part_that_is_edited(script: str, names: list[str]) -> None:
    before, after = (re.sub(r"«(.*?)\|(.*?)»", version, script) for version in (r"\1", r"\2"))
    assert changed(parts(before), parts(after)) == names
    assert parts(before) == parts(before)


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
        f"import json\nfrom ledgerbeam.user_code.functions import function_parts\n{HEAD}{EVERYTHING}"
        "print(json.dumps(function_parts(clean).as_parameters()))\n"
    )
    found = set()
    for seed in ("0", "1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        found.add(subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, env=env).stdout)
    assert len(found) == 1
    assert len(json.loads(found.pop())["captured value"]) > 3


@each(
    ("source", "message"),
    [
        ("LOCK = threading.Lock()\ndef clean(r): return LOCK\n", r"clean: the captured value 'LOCK' is or .* lock"),
        ("import sys\nFILE = sys.__stderr__\ndef clean(r): return FILE\n", r"'FILE' .* TextIOWrapper, which cannot"),
        ("G = (x for x in 'ab')\ndef clean(r): return G\n", r"'G' is or contains a generator.*create it inside"),
        ("D = {'a': [threading.Lock()]}\ndef clean(r): return D\n", r"'D' is or contains a lock"),
        ("R = random.Random(3)\ndef clean(r): return R\n", r"'R' is or contains a Random of random.*seeded"),
        ("R = np.random.default_rng(3)\ndef clean(r): return R\n", r"'R' is or contains a Generator of numpy"),
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
    (folder / "fp_pack").mkdir()
    for name in ("fp_deep", "fp_lazy", "fp_pack/__init__"):
        (folder / f"{name}.py").touch()
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
    assert function_name(weakref.ref(Colour)) == "weakref:ReferenceType"


class Colour(enum.Enum):
    RED = 1


# Identity of user-defined pipelines


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


@each(("make", "what"), PAIRS, ids=lambda value: value if isinstance(value, str) else "")
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


# The names and the hashes of parts


NAMED = [
    ("def clean(r): return len(r)\n", ["code clean"]),
    ("def norm(x): return x\ndef clean(r): return norm(r)\n", ["code clean", "code norm"]),
    (
        "def norm(x): return x\nother = norm\ndef clean(r): return other(r)\n",
        ["code clean", "code norm", "captured value 'other' of clean"],
    ),
    ("@functools.lru_cache\ndef tool(x): return x\ndef clean(r): return tool(r)\n", ["code clean", "code tool"]),
    ("def clean(r): return r\nclean.k = 1\n", ["code clean", "captured value 'k' of clean"]),
    (
        "def norm(x): return x\n@functools.wraps(norm)\ndef clean(r): return r\n",
        ["code norm"],  # it has the name of the wrapped function, which it does not use
    ),
    (
        "class C:\n    __slots__ = ('k', 'n')\n    def __call__(self, r): return r\nclean = C()\nclean.k = 1\n",
        [*("code class C", "code C.__call__"), *("captured value '__slots__' of class C", "captured value 'k' of C")],
    ),
    (
        "class C: __slots__ = ('k',)\nclass D(C):\n    def __call__(s, r): ...\nclean = D()\nclean.k = clean.n = 1\n",
        [
            *("code class D", "code class C", "code D.__call__"),
            *("captured value '__slots__' of class C", "captured value 'n' of D", "captured value 'k' of D"),
        ],
    ),
    (
        "class C:\n    def a(self): ...\nB = C\nclass C(B):\n    def b(self): ...\nclean = C\n",
        ["code class C", "code class C 2", "code C.a", "code C.b"],
    ),
    (
        "class C:\n    def __call__(s, r): ...\n    k = property(fdel=lambda s: s)\nclean = C()\n",
        ["code class C", "code C.__call__", "code C.<lambda>"],
    ),
    (
        "def make():\n    def inner(r): return later\n    if False: later = 1\n    return inner\nclean = make()\n",
        ["code inner"],
    ),
]


@each(("source", "names"), NAMED, ids=lambda value: str(value)[:40])
def test_the_parts_are_these_and_no_others(source: str, names: list[str]) -> None:
    assert [name for name, _ in flat_parameters(parts(source))] == names


STATE = "class C:\n    def __call__(self, r): return r\n    def __getstate__(self): return {}\nclean = C()\n"


@each(
    ("state", "captured"),
    [
        ("None", {}),
        ("{'a': 1}", {"'a'": "1"}),
        ("({'a': 1}, None)", {"'a'": "1"}),
        ("(None, {'b': 2})", {"'b'": "2"}),
        ("({'a': 1, 'b': 1}, {'b': 2})", {"'a'": "1", "'b'": "2"}),
        ("(None, None)", {}),
        ("5", {"part 1": "5"}),
        ("({'a': 1}, 5)", {"part 1": ""}),
        ("({'a': 1}, {'b': 1}, {'c': 1})", {"part 1": ""}),
    ],
)
def test_the_state_of_an_object_is_what_pickle_takes_as_its_state(state: str, captured: dict[str, str]) -> None:
    found = parts(STATE.replace("{}", state)).get("captured value", {})
    named = {name.removesuffix(" of C"): value for name, value in found.items()}
    assert {name: "" if value.startswith("tuple ") else value for name, value in named.items()} == captured


VALUES = """
import collections
class C:
    def __init__(self, k): self.k = k
    def __repr__(self): return "C"
class L(list): ...
class ndarray: ...
x = []
VALUES = {
    "int": 10**39, "long": 10**40, "float": 0.5, "str": "a\\udc80", "bytes": b"ab", "bytearray": bytearray(b"ab"),
    "list": [1, "a"], "tuple": (1, ["a"]), "dict": {"a": 1, 2: None}, "set": {"a", "b", "c"},
    "frozenset": frozenset(["a", "b", "c"]), "array": np.arange(3, dtype="<i4"), "object": C(1), "own list": L([1]),
    "own ndarray": ndarray(), "default": collections.defaultdict(int, a=1), "ellipsis": ..., "module": [json],
    "code": [compile("", "", "exec").replace(co_code=b"\\0\\0", co_consts=(), co_exceptiontable=b"", co_flags=0)],
    "shared": [x, x],
}
LOOP = VALUES["loop"] = []
LOOP.append([LOOP])
def clean(r): ...
for name, value in VALUES.items():
    setattr(clean, name, value)
"""
HASHED = {
    "int": "1000000000000000000000000000000000000000",
    "long": "int d9183796e188c472",
    "float": "0.5",
    "str": "str f01143d690f5454a",
    "bytes": "bytes ae1d0bb4cb43d98d",
    "bytearray": "bytearray a26af6340ad301f9",
    "list": "list 370c885505021c2d",
    "tuple": "tuple 78e35e2dab09912a",
    "dict": "dict 74dc10c6e43ddd9b",
    "set": "set c22106ac35fff916",
    "frozenset": "frozenset e7d7c166d34f55bf",
    "array": "ndarray 324c28edbecdd654",
    "object": "C 384eb71e7f2417ba",
    "own list": "L 8a0663649974b4fb",
    "own ndarray": "ndarray b6f387eb2011401b",
    "default": "defaultdict 76a6031eb2459990",
    "ellipsis": "ellipsis 41054eb8225f8163",
    "module": "list 47ffffd5779488f6",
    "code": "list 0e362564b17bdb54",
    "shared": "list d354853dd834d6ac",
    "loop": "list b8899f1cfe5c4e85",
}


def test_the_hashes_of_values_stay_what_they_are_for_ever() -> None:
    # A change of any of these makes every ledger refuse its job, as if the value had been edited.
    found = parts(VALUES)["captured value"]
    own = {name.removesuffix(" of clean").strip("'"): value for name, value in found.items() if "of clean" in name}
    assert own == HASHED
    assert parts("class C(list): ...\nclean = C\n") == {"code": {"class C": "9fbf7c6de5e9c8bf"}}


def test_equal_values_have_equal_hashes() -> None:
    found = parts(
        "x = []\nONE = [x, x, np.array([str(1000), None], object)]\n"
        "TWO = [[], [], np.array([str(1000), None], object)]\ndef clean(r): return ONE, TWO\n"
    )["captured value"]
    assert found["'ONE' of clean"] == found["'TWO' of clean"]


def test_what_is_shared_many_times_is_followed_once() -> None:
    value: Any = []
    for _ in range(60):
        value = [value, value]
    assert list(function_parts(lambda record: value).values) == ["'value' of <lambda>"]


def test_modules_made_in_this_process_are_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(name: str) -> dict[str, Any]:
        names: dict[str, Any] = {"__name__": name}
        exec("def clean(r): return r\nclass C:\n    k = 1\nclass D:\n    def __call__(self, r): ...\nd = D()\n", names)
        return names

    monkeypatch.setitem(sys.modules, "fp_made", ModuleType("fp_made"))
    module = sys.modules["fp_made"]
    for name in ("clean", "C", "d"):
        assert function_parts(made("fp_made")[name]).unfound == {"fp_made"}
        for other in ("fp_not_made", "__main__"):
            assert function_parts(made(other)[name]).unfound == set()
    for captures in (lambda record: module, lambda record: [module]):
        assert function_parts(captures).unfound == {"fp_made"}
    for captures in (lambda record: json, lambda record: [json]):
        assert function_parts(captures).unfound == set()


def test_modules_are_used_by_name_by_value_and_inside_of_packages(folder: Path) -> None:
    (folder / "fp_plain.py").write_text("def norm(x): return x\n")
    (folder / "fp_parts").mkdir()
    (folder / "fp_parts" / "__init__.py").write_text(
        "import json\nfrom fp_parts import inner\ndef hidden(x): return x\n"
    )
    for name in ("inner", "hidden", "other"):
        (folder / "fp_parts" / f"{name}.py").write_text("def f(x): return x\n")
    assert list(parts("import fp_plain\ndef clean(r): return fp_plain.norm(r)\n")["module"]) == ["fp_plain"]
    assert list(parts("import fp_plain\nM = [fp_plain]\ndef clean(r): return M\n")["module"]) == ["fp_plain"]
    text = "import fp_parts\ndef clean(r): return fp_parts.inner.f(r), fp_parts.hidden(r), fp_parts.json.dumps(r)\n"
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(text, names)
    assert function_parts(names["clean"]).modules == {"fp_parts", "fp_parts.inner"}


def test_an_object_that_is_held_under_its_name_is_known_by_it(folder: Path) -> None:
    (folder / "fp_tools.py").write_text(
        "class Tool:\n    def __call__(self, r): return r\n"
        "tool = Tool()\ntool.__module__, tool.__qualname__ = __name__, 'tool'\n"
    )
    found = parts("from fp_tools import tool\ndef clean(r): return tool(r)\n")
    assert found["captured value"] == {"'tool' of clean": "fp_tools:tool"}


def test_an_object_whose_state_is_random_is_refused_with_its_place() -> None:
    source = "class Numbers(random.Random):\n    def __call__(self, r): return r\nclean = Numbers(3)\n"
    with pytest.raises(FunctionError, match=r"^Numbers: its state is or contains a Numbers of __main__\. Its numbers"):
        parts(source)


def test_a_seed_is_a_value() -> None:
    one, two, other = (f"S = np.random.SeedSequence({n})\ndef clean(r): return S\n" for n in (3, 3, 4))
    assert parts(one) == parts(two) != parts(other)


@pytest.mark.parametrize(("module", "name"), [("torch.nn", "Linear"), ("own_work", "Generator")])
def test_what_is_only_named_like_a_generator_is_taken(module: str, name: str) -> None:
    value = type(name, (), {"__module__": module})()
    assert list(function_parts(lambda record: value).values) == ["'value' of <lambda>"]


def test_what_cannot_be_taken_is_told_by_its_place_after_others() -> None:
    source = "N = 1\ndef norm(x): return N\nT = [norm, threading.Lock()]\ndef clean(r): return T\n"
    with pytest.raises(FunctionError, match=r"^clean: the captured value 'T' is or contains a lock"):
        parts(source)


def test_an_interrupt_while_a_value_is_taken_goes_through() -> None:
    class Interrupting:
        def __reduce_ex__(self, protocol: Any) -> Any:
            raise KeyboardInterrupt

    value = Interrupting()
    with pytest.raises(KeyboardInterrupt):
        function_parts(lambda record: value)


def test_what_a_job_calls_is_made_of_its_modules_or_of_all_its_parts(folder: Path) -> None:
    (folder / "fp_named.py").write_text("def work(r): return r\n")
    work = importlib.import_module("fp_named").work
    limit = 3
    captures = lambda record: limit  # noqa: E731 - the name is that of a lambda
    assert list(made_of("fp_named:work")["module"]) == ["fp_named"]
    assert made_of(GivenObject("x", captures)) == function_parts(captures).as_parameters()
    assert reference_of(work) == "fp_named:work"
    given = reference_of(captures)
    assert isinstance(given, GivenObject)
    assert given.target is captures
    assert given.name == function_name(captures)
    for other in ("fp_named:work", given, 5):
        assert reference_of(other) is other  # type: ignore[arg-type]


def test_a_function_without_a_module_is_one_of_the_script() -> None:
    work = lambda record: record  # noqa: E731 - the name is that of a lambda
    work.__module__ = None  # type: ignore[assignment]
    assert function_name(work) == "__main__:<lambda>"
