"""Everything in a class, its bases and its metaclass belongs to a job, in any form."""

from __future__ import annotations

import abc
import dataclasses
import enum
import functools
import json
import os
import subprocess
import sys
import types
import typing
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.errors import FunctionError
from ledgerbeam.pipelines.jobs.user_function import user_function
from ledgerbeam.user_code.functions import function_parts
from ledgerbeam.user_code.objects import check_object
from tests.cases import each

SOURCES = """
#: control -> self.v
class F:
    v = VALUE
#: call=object
class H:
    def __init__(self, v): self.v = v
    def __call__(self, r): return self.v
class F:
    __call__ = H(VALUE)
#: dunder -> self.__version__
class F:
    __version__ = VALUE
#: private -> self.__v
class F:
    __v = VALUE
#: doc -> int(self.__doc__)
class F:
    'VALUE'
#: annotations -> int(self.__annotations__['x'])
class F:
    x: 'VALUE'
#: slots -> int(self.__slots__[0][1:])
class F:
    __slots__ = ('aVALUE',)
#: partialmethod
class F:
    def go(self, r, v): return v
    __call__ = functools.partialmethod(go, v=VALUE)
#: cached -> VALUE
class F:
    @functools.lru_cache
#: cached attr -> self.go()
class F:
    @functools.cache
    def go(self): return VALUE
#: partial
def go(r, v): return v
class F:
    __call__ = functools.partial(go, v=VALUE)
#: static partial
def go(r, v): return v
class F:
    __call__ = staticmethod(functools.partial(go, v=VALUE))
#: singledispatchmethod
class F:
    @functools.singledispatchmethod
    def __call__(self, r): return 0
    @__call__.register
    def _(self, r: int): return VALUE
#: singledispatch
@functools.singledispatch
def go(r): return 0
@go.register
def _(r: int): return VALUE
def F(): return go
#: singledispatch lambda -> go(r)
@functools.singledispatch
def go(r): return 0
go.register(int, lambda r: VALUE)
class F:
#: descriptor -> self.limit
class Field:
    def __init__(self, d): self.d = d
    def __get__(self, o, t=None): return self.d
    def __set__(self, o, v): raise AttributeError
class F:
    limit = Field(VALUE)
#: descriptor code -> self.limit
class Field:
    def __get__(self, o, t=None): return VALUE
    def __set__(self, o, v): raise AttributeError
class F:
    limit = Field()
#: metaclass -> type(self).v
class M(type):
    @property
    def v(cls): return VALUE
class F(metaclass=M):
#: metaclass attr -> type(self).v
class M(type):
    v = VALUE
class F(metaclass=M):
#: metaclass base -> type(self).v
class N(type):
    v = VALUE
class M(N): ...
class B(metaclass=M): ...
class F(B):
#: base dunder -> self.__v__
class B:
    __v__ = VALUE
class F(B):
#: getattr -> self.x
class F:
    def __getattr__(self, n): return VALUE
#: property sub -> self.x
class P(property):
    def __get__(self, o, t=None): return VALUE
class F:
    @P
    def x(self): return 0
#: cached_property sub -> self.x
class P(functools.cached_property):
    def __get__(self, o, t=None): return VALUE
class F:
    @P
    def x(self): return 0
#: partial sub
class P(functools.partial):
    def __call__(self, r): return VALUE
def go(r): return 0
def F(): return P(go)
#: dataclass -> dataclasses.fields(self)[0].metadata['v']
@dataclasses.dataclass
class F:
    n: int = dataclasses.field(default=0, metadata={'v': VALUE})
#: enum -> E.A.value
class E(enum.Enum):
    A = VALUE
class F:
#: enum method -> E.A.x
class E(enum.Enum):
    A = 1
    @property
    def x(self): return VALUE
class F:
#: intflag -> int(E.A)
class E(enum.IntFlag):
    A = VALUE
class F:
#: namedtuple default -> N().v
class N(typing.NamedTuple):
    v: int = VALUE
class F:
#: abc -> self.__v__
class B(abc.ABC):
    __v__ = VALUE
    @abc.abstractmethod
    def __call__(self, r): ...
class F(B):
#: abc_ name -> self._abc_v
class F:
    _abc_v = VALUE
#: generic -> self.__v__
T = typing.TypeVar('T')
class F(typing.Generic[T]):
    __v__ = VALUE
#: protocol -> self.__v__
class P(typing.Protocol):
    __v__ = VALUE
    def __call__(self, r): ...
class F(P):
#: class_getitem -> B[0]
class B:
    def __class_getitem__(cls, i): return VALUE
class F:
#: nested class -> self.__In__.v
class F:
    class __In__:
        v = VALUE
#: set_name -> self.x
class D:
    def __set_name__(self, o, n): self.n = VALUE
    def __get__(self, o, t=None): return self.n
class F:
    x = D()
#: method attr
class F:
    def __call__(self, r): return self.__call__.__func__.v
    __call__.v = VALUE
#: cached fn attr -> go.v
@functools.lru_cache
def go(): ...
go.v = VALUE
class F:
#: mappingproxy -> self.t['v']
class F:
    t = types.MappingProxyType({'v': VALUE})
#: slots state -> self.v
class F:
    __slots__ = ('v',)
    def __init__(self): self.v = VALUE
#: typeddict -> typing.get_args(T.__annotations__['a'])[0]
class T(typing.TypedDict):
    a: typing.Literal[VALUE]
class F:
#: wrapper -> self.__v__
class F(dict):
    __str__ = object.__str__
    __v__ = VALUE
#: lambda call
class F:
    __call__ = lambda self, r: VALUE
#: classmethod call
class F:
    __v__ = VALUE
    @classmethod
    def __call__(cls, r): return cls.__v__
#: bound call
class G:
    def __init__(self): self.v = VALUE
    def go(self, r): return self.v
class F:
    __call__ = G().go
#: default obj
class F:
    def __call__(self, r, *, k=(VALUE,)): return k[0]
"""
"""Classes and functions `F` whose objects return VALUE for a record; behind `->` what the last class returns."""
FORMS = dict(part.split("\n", 1) for part in SOURCES.split("#: ")[1:])
MODULES = {module.__name__: module for module in (abc, dataclasses, enum, functools, types, typing)}


def define(name: str, value: int) -> Any:
    source, (_, arrow, returned) = FORMS[name], name.partition(" -> ")
    if arrow:
        source += f"    def __call__(self, r): return {returned}\n"
    names: dict[str, Any] = {"__name__": "__main__", **MODULES}
    exec(compile(source.replace("VALUE", str(value)), "<a cell>", "exec", dont_inherit=True), names)
    return names["F"]


@each("name", FORMS)
def test_an_edit_makes_another_job(name: str) -> None:
    was, same, now = (function_parts(define(name, value)()).as_parameters() for value in (1, 1, 2))
    assert was == same != now
    if isinstance(define(name, 1), type):
        was, same, now = (function_parts(define(name, value)).as_parameters() for value in (1, 1, 2))
        assert was == same != now


TRAVEL = """
import json, pickle, sys
from ledgerbeam.user_code.loading import PickledObject
found = {}
for name, data in json.load(open(sys.argv[1])).items():
    target = PickledObject(name, data).load()
    found[name] = target(7)
print(json.dumps(found))
"""


@pytest.mark.slow
def test_what_is_taken_arrives_in_another_process(tmp_path: Path) -> None:
    sent = {}
    for name in FORMS:
        made = user_function(define(name, 4)())
        check_object(made.reference, {})
        sent[name] = made.reference.data  # type: ignore[union-attr]
    (tmp_path / "sent.json").write_text(json.dumps(sent))
    (tmp_path / "travel.py").write_text(TRAVEL)
    words = [sys.executable, str(tmp_path / "travel.py"), str(tmp_path / "sent.json")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONHASHSEED": "3"})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == dict.fromkeys(FORMS, 4)


def test_what_a_running_program_notes_in_a_class_is_no_edit() -> None:
    source = "import enum, copy\nclass E(enum.IntFlag):\n    A = 1\n    B = 2\nclass F:\n    __slots__ = ('k',)\n"
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(f"{source}    def __call__(self, r): return E.A\n", names)
    before = function_parts(names["F"]).as_parameters()
    names["copy"].copy(names["F"]())
    _ = names["E"].A | names["E"].B
    assert function_parts(names["F"]).as_parameters() == before


LOCKED = """
class D:
    def __init__(self): self.k = threading.Lock()
    def __get__(self, o, t=None): ...
    def __set__(self, o, v): ...
"""


@each(
    ("source", "place"),
    [
        ("class F:\n    __lock__ = threading.Lock()\n", "class F: the captured value '__lock__' is or contains a lock"),
        ("class M(type):\n    k = threading.Lock()\nclass F(metaclass=M): ...\n", "class M: the captured value 'k'"),
        ("class B:\n    go = functools.partialmethod(print, threading.Lock())\nclass F(B): ...\n", "class B: .* 'go'"),
        (f"{LOCKED}class F:\n    x = D()\n", "class F: the captured value 'x'"),
        ("class F:\n    __random__ = random.Random(3)\n", "class F: the captured value '__random__' .* seeded"),
    ],
)
def test_what_cannot_be_identified_is_refused_with_its_place(source: str, place: str) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(f"import functools, random, threading\n{source}", names)
    with pytest.raises(FunctionError, match=place):
        function_parts(names["F"])
