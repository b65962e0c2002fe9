"""Everything in a class, its bases and its metaclass belongs to a job, in any form."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.errors import FunctionError
from ledgerbeam.pipelines.jobs.user_function import user_function
from ledgerbeam.user_code.functions import function_parts
from ledgerbeam.user_code.objects import check_object
from tests.cases import each

SOURCES = """
#: control
class F:
    v = VALUE
    def __call__(self, r): return self.v
#: call=object
class H:
    def __init__(self, v): self.v = v
    def __call__(self, r): return self.v
class F:
    __call__ = H(VALUE)
#: dunder
class F:
    __version__ = VALUE
    def __call__(self, r): return self.__version__
#: private
class F:
    __v = VALUE
    def __call__(self, r): return self.__v
#: doc
class F:
    'VALUE'
    def __call__(self, r): return int(self.__doc__)
#: annotations
class F:
    x: 'VALUE'
    def __call__(self, r): return int(self.__annotations__['x'])
#: slots
class F:
    __slots__ = ('aVALUE',)
    def __call__(self, r): return int(self.__slots__[0][1:])
#: partialmethod
class F:
    def go(self, r, v): return v
    __call__ = functools.partialmethod(go, v=VALUE)
#: cached
class F:
    @functools.lru_cache
    def __call__(self, r): return VALUE
#: cached attr
class F:
    @functools.cache
    def go(self): return VALUE
    def __call__(self, r): return self.go()
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
#: singledispatch lambda
@functools.singledispatch
def go(r): return 0
go.register(int, lambda r: VALUE)
class F:
    def __call__(self, r): return go(r)
#: descriptor
class Field:
    def __init__(self, d): self.d = d
    def __get__(self, o, t=None): return self.d
    def __set__(self, o, v): raise AttributeError
class F:
    limit = Field(VALUE)
    def __call__(self, r): return self.limit
#: descriptor code
class Field:
    def __get__(self, o, t=None): return VALUE
    def __set__(self, o, v): raise AttributeError
class F:
    limit = Field()
    def __call__(self, r): return self.limit
#: metaclass
class M(type):
    @property
    def v(cls): return VALUE
class F(metaclass=M):
    def __call__(self, r): return type(self).v
#: metaclass attr
class M(type):
    v = VALUE
class F(metaclass=M):
    def __call__(self, r): return type(self).v
#: metaclass base
class N(type):
    v = VALUE
class M(N): ...
class B(metaclass=M): ...
class F(B):
    def __call__(self, r): return type(self).v
#: base dunder
class B:
    __v__ = VALUE
class F(B):
    def __call__(self, r): return self.__v__
#: getattr
class F:
    def __getattr__(self, n): return VALUE
    def __call__(self, r): return self.x
#: property sub
class P(property):
    def __get__(self, o, t=None): return VALUE
class F:
    @P
    def x(self): return 0
    def __call__(self, r): return self.x
#: cached_property sub
class P(functools.cached_property):
    def __get__(self, o, t=None): return VALUE
class F:
    @P
    def x(self): return 0
    def __call__(self, r): return self.x
#: partial sub
class P(functools.partial):
    def __call__(self, r): return VALUE
def go(r): return 0
def F(): return P(go)
#: dataclass
import dataclasses
@dataclasses.dataclass
class F:
    n: int = dataclasses.field(default=0, metadata={'v': VALUE})
    def __call__(self, r): return dataclasses.fields(self)[0].metadata['v']
#: enum
import enum
class E(enum.Enum):
    A = VALUE
class F:
    def __call__(self, r): return E.A.value
#: enum method
import enum
class E(enum.Enum):
    A = 1
    @property
    def x(self): return VALUE
class F:
    def __call__(self, r): return E.A.x
#: intflag
import enum
class E(enum.IntFlag):
    A = VALUE
class F:
    def __call__(self, r): return int(E.A)
#: namedtuple default
import typing
class N(typing.NamedTuple):
    v: int = VALUE
class F:
    def __call__(self, r): return N().v
#: abc
import abc
class B(abc.ABC):
    __v__ = VALUE
    @abc.abstractmethod
    def __call__(self, r): ...
class F(B):
    def __call__(self, r): return self.__v__
#: abc_ name
class F:
    _abc_v = VALUE
    def __call__(self, r): return self._abc_v
#: generic
import typing
T = typing.TypeVar('T')
class F(typing.Generic[T]):
    __v__ = VALUE
    def __call__(self, r): return self.__v__
#: protocol
import typing
class P(typing.Protocol):
    __v__ = VALUE
    def __call__(self, r): ...
class F(P):
    def __call__(self, r): return self.__v__
#: class_getitem
class B:
    def __class_getitem__(cls, i): return VALUE
class F:
    def __call__(self, r): return B[0]
#: nested class
class F:
    class __In__:
        v = VALUE
    def __call__(self, r): return self.__In__.v
#: set_name
class D:
    def __set_name__(self, o, n): self.n = VALUE
    def __get__(self, o, t=None): return self.n
class F:
    x = D()
    def __call__(self, r): return self.x
#: method attr
class F:
    def __call__(self, r): return self.__call__.__func__.v
    __call__.v = VALUE
#: cached fn attr
@functools.lru_cache
def go(): ...
go.v = VALUE
class F:
    def __call__(self, r): return go.v
#: mappingproxy
import types
class F:
    t = types.MappingProxyType({'v': VALUE})
    def __call__(self, r): return self.t['v']
#: slots state
class F:
    __slots__ = ('v',)
    def __init__(self): self.v = VALUE
    def __call__(self, r): return self.v
#: typeddict
import typing
class T(typing.TypedDict):
    a: typing.Literal[VALUE]
class F:
    def __call__(self, r): return typing.get_args(T.__annotations__['a'])[0]
#: wrapper
class F(dict):
    __str__ = object.__str__
    __v__ = VALUE
    def __call__(self, r): return self.__v__
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
FORMS = {name: source for name, _, source in (part.partition("\n") for part in SOURCES.split("#: ")[1:])}
"""Classes and functions `F` whose objects return VALUE for a record."""


def define(name: str, value: int) -> Any:
    names: dict[str, Any] = {"__name__": "__main__", "functools": functools}
    exec(compile(FORMS[name].replace("VALUE", str(value)), "<a cell>", "exec", dont_inherit=True), names)
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
        ("class F:\n    __lock__ = threading.Lock()\n", "class F: the captured value '__lock__' is or holds a lock"),
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
