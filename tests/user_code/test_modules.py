"""The modules of user code that a job's identity covers."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import py_compile
import sys
import zipfile
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from importlib.util import MAGIC_NUMBER, cache_from_source, spec_from_file_location
from pathlib import Path
from py_compile import PycInvalidationMode
from struct import pack
from types import CodeType, ModuleType
from typing import Any

import pytest

from ledgerbeam.errors import FunctionError
from ledgerbeam.user_code import modules as user_modules_module
from ledgerbeam.user_code.modules import (
    NO_SOURCE,
    code_digest,
    global_names,
    imported_names,
    is_found,
    is_own,
    modules_of,
    recorded_modules,
    reference_to,
    require_modules,
    user_modules,
)
from tests.cases import each


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        del sys.modules[name]


def put(folder: Path, sources: dict[str, str]) -> None:
    for name, source in sources.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(source)


def write(folder: Path, **sources: str) -> None:
    put(folder, {f"{name.replace('__', '/')}.py": source for name, source in sources.items()})


def digest(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()


def test_every_module_that_is_imported_counts_wherever_the_import_stands(folder: Path) -> None:
    write(
        folder,
        um_main="import json, numpy, ledgerbeam\nimport um_one\ndef f(r):\n    from um_lazy import x\n    return x\n",
        um_one="import um_two as two, um_main\ntry:\n    import um_missing\nexcept ImportError: ...\n",
        um_two="from importlib import import_module\nimport_module('um_by_name')\n",
        um_by_name="",
        um_lazy="x = 1\n",
        um_other="",
    )
    found = user_modules("um_main:f")
    assert list(found) == ["um_by_name", "um_lazy", "um_main", "um_one", "um_two"]
    assert found == {name: digest(folder / f"{name}.py") for name in found}
    assert "um_lazy" not in sys.modules


def test_packages_count_by_their_init_and_relative_imports_are_followed(folder: Path) -> None:
    main = "from . import near\nfrom .. import far\nfrom ..far2 import *\nf=len\n"
    put(folder, {"um_pack/__init__.py": "from um_pack import top\n", "um_pack/deep/main.py": main})
    put(folder, {f"um_pack/{name}.py": "" for name in ("top", "deep/__init__", "deep/near", "far", "far2")})
    names = ("deep", "deep.main", "deep.near", "far", "far2", "top")
    assert list(user_modules("um_pack.deep.main:f")) == ["um_pack", *(f"um_pack.{name}" for name in names)]


def test_a_folder_without_init_is_no_module_but_what_is_in_it(folder: Path) -> None:
    write(folder, um_space__inner="import um_space.other\ndef f(r): ...\n", um_space__other="")
    assert list(user_modules("um_space.inner:f")) == ["um_space.inner", "um_space.other"]


def test_what_defines_an_object_counts_though_nothing_else_names_it(folder: Path) -> None:
    write(
        folder,
        um_names="import importlib\nmade = importlib.import_module('um_' + 'class').Work()\npart = made.part\n",
        um_class="import functools\nclass Work:\n    def __call__(self, r): ...\n    part = functools.partial(len)\n",
    )
    assert list(user_modules("um_names:made")) == ["um_class", "um_names"]


def test_what_is_installed_counts_only_if_it_is_named() -> None:
    assert list(user_modules("json:loads")) == ["json"]
    assert user_modules("sys:intern") == {"sys": NO_SOURCE}
    assert list(user_modules("ledgerbeam.results:Drop")) == ["ledgerbeam.results"]


def test_a_module_that_does_not_parse_counts_by_its_bytes(folder: Path) -> None:
    write(folder, um_ok="def f(r):\n    import um_broken\n", um_broken="def :\n")
    assert user_modules("um_ok:f")["um_broken"] == digest(folder / "um_broken.py")


# Single names


@pytest.fixture
def path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path of modules."""
    monkeypatch.syspath_prepend(folder)
    return folder


@each(("module", "name"), [(None, "f"), ([], "f"), ("json", None), ("json", []), ("json", "no_such")])
def test_what_has_no_name_in_a_module_has_no_reference(module: Any, name: Any) -> None:
    class Named:
        __module__ = module
        __qualname__ = "Named"

    target: Any = Named()
    target.__qualname__ = name
    assert reference_to(target) is None


def test_what_another_class_inherits_is_not_known_by_the_name_of_the_first(path: Path) -> None:
    put(path, {"um_kinds.py": "class C:\n    @classmethod\n    def k(cls): ...\nclass D(C): ...\n"})
    module = importlib.import_module("um_kinds")
    assert reference_to(module.C.k) == "um_kinds:C.k"
    assert reference_to(module.D.k) is None


@pytest.mark.parametrize("name", ["um_made", "__main__"])
def test_what_a_module_holds_that_no_other_process_finds_has_no_reference(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made() -> None: ...

    module = ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    made.__module__, made.__qualname__ = name, "made"
    module.made = made  # type: ignore[attr-defined]
    assert reference_to(made) is None


def test_what_only_says_that_it_equals_what_a_module_holds_has_no_reference(path: Path) -> None:
    put(path, {"um_equal.py": "class Equal:\n    def __eq__(self, other): return True\nx = Equal()\n"})
    module = importlib.import_module("um_equal")
    other = module.Equal()
    other.__qualname__ = "x"
    assert reference_to(other) is None
    module.x.__qualname__ = "x"
    assert reference_to(module.x) == "um_equal:x"


class Finder:
    """Knows a module without a file, and refuses another one."""

    @staticmethod
    def find_spec(name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name == "um_refused":
            raise ImportError(name)
        return ModuleSpec(name, None) if name == "um_odd" else None


def test_a_module_is_found_if_any_process_finds_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(path, {"um_plain.py": "x = 1\n", "um_space/inner.py": ""})
    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    monkeypatch.setitem(sys.modules, "um_made", ModuleType("um_made"))
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", json.__spec__)
    found = (*sys.builtin_module_names, "json", "json.decoder", "um_plain", "um_space", "um_space.inner", "um_odd")
    others = ("__main__", "um_made", "um_nowhere", "um_plain.inner", "um_space.outer", "um_nowhere.inner", "um_refused")
    assert [name for name in (*found, *others, "") if is_found(name)] == list(found)


def test_the_users_own_are_files_that_are_not_installed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(path, {"um_plain.py": "", "um_pack/__init__.py": "", "um_pack/inner.py": "", "um_space/inner.py": ""})
    put(path, {"site-packages/um_near.py": "", "dist-packages/um_far.py": ""})
    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    for installed in ("site-packages", "dist-packages"):
        monkeypatch.syspath_prepend(path / installed)
    own = ("um_plain", "um_pack", "um_pack.inner", "um_space", "um_space.inner")
    others = ("um_near", "um_far", "json", "json.decoder", "os", "sys", "__phello__", "numpy", "um_nowhere", "um_odd")
    user_modules_module._installed.cache_clear()  # found out once in a process
    ours = ("ledgerbeam", "ledgerbeam.results", "ledgerbeam.ledger.model")
    assert [name for name in (*own, *others, *ours) if is_own(name)] == list(own)


def test_the_packages_of_a_module_are_those_of_the_users_own(path: Path) -> None:
    put(path, {"um_pack/__init__.py": "", "um_pack/inner/__init__.py": "", "um_pack/inner/deep.py": "x = 1\n"})
    put(path, {"um_space/inner.py": ""})
    assert list(modules_of(["um_pack.inner.deep"])) == ["um_pack", "um_pack.inner", "um_pack.inner.deep"]
    assert list(modules_of(["um_space.inner"])) == ["um_space.inner"]
    assert list(modules_of(["json.decoder"])) == ["json.decoder"]
    assert modules_of(["um_nowhere", "sys"]) == {"um_nowhere": NO_SOURCE, "sys": NO_SOURCE}


def test_a_module_in_an_archive_counts_as_one_in_a_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = {"um_zipped.py": "import um_inner\n", "um_inner.py": "x = 1\n"}
    with zipfile.ZipFile(path / "um.zip", "w") as archive:
        for name, source in sources.items():
            archive.writestr(name, source)
    monkeypatch.syspath_prepend(path / "um.zip")
    put(path, {"um_main.py": "import um_zipped\n", **{f"as_files/{name}": text for name, text in sources.items()}})
    assert modules_of(["um_main"]) == {
        "um_inner": digest(path / "as_files/um_inner.py"),
        "um_main": digest(path / "um_main.py"),
        "um_zipped": digest(path / "as_files/um_zipped.py"),
    }


@pytest.mark.parametrize("source", ["def :\n", "\0", "x = " + "(" * 50_000, "x = " + "+".join("1" * 20_000)])
def test_of_what_does_not_parse_nothing_is_followed(path: Path, source: str) -> None:
    put(path, {"um_broken.py": f"import um_other\n{source}", "um_other.py": ""})
    assert modules_of(["um_broken"]) == {"um_broken": digest(path / "um_broken.py")}


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("import um_a.b", ["um_a", "um_a.b"]),
        ("from um_a import b, no_module", ["um_a", "um_a.b"]),
        ("from um_a import *", ["um_a"]),
        ("from um_a.b import x", ["um_a", "um_a.b"]),
        ("from . import um_a", []),
        ("il.import_module('um_a.b')", ["um_a", "um_a.b"]),
        ("__import__('um_a')", ["um_a"]),
        ("load('um_a')", []),
        ("import_module('.um_a')", []),
        ("import_module('')", []),
        ("import_module(name)", []),
        ("import_module(name, 'um_a')", ["um_a"]),
        ("import_module(NAMES[0]); NAMES = ['um_a.b', 'no_module', 'no name']", ["um_a", "um_a.b"]),
        ("import_module('.b', 'um_a')", ["um_a", "um_a.b"]),
        ("import_module('.b', package)", []),
        ("import_module(f'um_a.{name}')", ["um_a", "um_a.b", "um_a.c"]),
        ("import_module('um_a.' + name)", ["um_a", "um_a.b", "um_a.c"]),
        ("import_module('um_a.%s' % name)", ["um_a", "um_a.b", "um_a.c"]),
        ("import_module('um_a.{}'.format(name))", ["um_a", "um_a.b", "um_a.c"]),
        ("import_module('.' + name, 'um_a')", ["um_a", "um_a.b", "um_a.c"]),
        ("import_module(f'json.{name}')", []),
        ("import_module()", []),
        ("[import_module][0]('um_a')", []),
    ],
)
def test_these_are_imports_and_others_are_none(path: Path, line: str, found: list[str]) -> None:
    put(path, {"um_a/__init__.py": "", "um_a/b.py": "", "um_a/c.py": "", "um_main.py": f"{line}\n"})
    assert list(modules_of(["um_main"])) == [*found, "um_main"]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("__all__ = ['b']", ["b"]),
        ("__all__: list[str] = ['b']", ["b"]),
        ("__all__ = ('b', 'no_module')", ["b"]),
        ("__all__ = ['b'] + ['c']", ["b", "c"]),
        ("__all__ = []\n__all__ += ['b']\n__all__.append('c')", ["b", "c"]),
        ("__all__ = []\n__all__.extend(('b',))", ["b"]),
        ("import os\n__all__ = [name[:-3] for name in os.listdir('um_a')]", ["b", "c"]),
        ("__all__ = ['b']\n__all__ += make()", ["b", "c"]),
        ("__all__ = ['b']\n__all__[0] = 'c'", ["b", "c"]),
        ("", []),
        ("def :", []),
    ],
)
def test_a_star_imports_the_modules_that_a_package_exports(path: Path, source: str, found: list[str]) -> None:
    put(path, {"um_a/__init__.py": source, "um_a/b.py": "", "um_a/c.py": "", "um_main.py": "from um_a import *\n"})
    assert list(modules_of(["um_main"])) == ["um_a", *(f"um_a.{name}" for name in found), "um_main"]
    put(path, {"um_a/main.py": "from . import *\n"})
    importlib.invalidate_caches()
    inside = [name for name in found if "main" not in name] + ["main"]
    assert set(modules_of(["um_a.main"])) == {"um_a", *(f"um_a.{name}" for name in inside)}


@pytest.mark.parametrize(
    "source",
    [
        "def __getattr__(name):\n    return importlib.import_module(f'.{name}', __name__)",
        "__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submodules=['b', 'c'])",
        "import pkgutil\nfor found in pkgutil.iter_modules(__path__):\n    load(found)",
        "import importlib\nfor name in ('b', 'c'):\n    importlib.import_module(__name__ + '.' + name)",
        "import importlib\nfor name in ('b', 'c'):\n    importlib.import_module('.' + name, package=__package__)",
        "import importlib\nNAMES = ['b', 'c']\nFOUND = [importlib.import_module(__name__ + s) for s in ('.b', '.c')]",
    ],
)
def test_a_package_that_imports_what_it_is_asked_for_counts_with_all_its_modules(path: Path, source: str) -> None:
    put(path, {"um_a/__init__.py": source, "um_a/b.py": "", "um_a/c.py": "", "um_main.py": "import um_a\n"})
    assert list(modules_of(["um_main"])) == ["um_a", "um_a.b", "um_a.c", "um_main"]


def test_what_a_module_holds_counts_however_it_came_there(path: Path) -> None:
    put(path, {"um_base.py": "class M(type): ...\nclass B(metaclass=M): ...\n", "um_value.py": "class V: ...\n"})
    put(path, {"um_tool.py": "def tool(): ...\n"})
    text = "import sys\nsys.path.append('')\nload = lambda name: __import__('um_' + name)\n"
    text += "value, tool, Work = load('value').V(), load('tool').tool, type('Work', (load('base').B,), {})\n"
    put(path, {"um_main.py": f"{text}def work(r): return value\n"})
    assert list(user_modules("um_main:work")) == ["um_main", "um_tool", "um_value"]
    assert list(user_modules("um_main:Work")) == ["um_base", "um_main", "um_tool", "um_value"]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        *((line, ["um_pack.deep.near"]) for line in ("from . import near", "from .near import *")),
        *((line, ["um_pack.far"]) for line in ("from .. import far", "from ..far import x")),
        ("from .... import um_top", []),
    ],
)
def test_a_relative_import_begins_at_the_package_of_the_module(path: Path, line: str, found: list[str]) -> None:
    put(path, {f"um_pack/{name}.py": "" for name in ("__init__", "far", "near", "deep/__init__", "deep/near")})
    put(path, {"um_pack/deep/main.py": f"{line}\n", "far.py": "", "near.py": "", "um_top.py": ""})
    found = ["um_pack", "um_pack.deep", "um_pack.deep.main", *found]
    assert list(modules_of(["um_pack.deep.main"])) == found
    put(path, {"um_pack/deep/main/__init__.py": f"{line}\n", "um_pack/deep/main/near.py": ""})
    (path / "um_pack" / "deep" / "main.py").unlink()
    importlib.invalidate_caches()
    deeper = {"um_pack.deep.near": "um_pack.deep.main.near", "um_pack.far": ""}
    assert list(modules_of(["um_pack.deep.main"])) == sorted(filter(None, (deeper.get(name, name) for name in found)))


WRAPPED = """
def work(r): ...
work.func = len
class Work:
    func = len
    def __call__(self, r): ...
"""
WRAPS = """
import datetime, functools, importlib
wrapped = importlib.import_module('um_' + 'wrapped')
def wrapping(r): ...
wrapping.__wrapped__ = wrapped.work
part = functools.partial(functools.partial(wrapped.work, 1))
of_wrapping = functools.partial(wrapping)
built = functools.partial(wrapped.Work())
made, work, kind = wrapped.Work(), wrapped.work, wrapped.Work
constant, join, day = 5, "x".join, datetime.date(2026, 1, 1)
"""


@pytest.mark.parametrize(
    ("name", "modules"),
    [
        *((name, []) for name in ["wrapping", "part", "of_wrapping", "work", "kind", "constant", "join"]),
        ("day", ["datetime"]),
    ],
)
def test_what_defines_what_an_object_wraps_counts(path: Path, name: str, modules: list[str]) -> None:
    put(path, {"um_wrapped.py": WRAPPED, "um_wraps.py": WRAPS})
    modules = [*modules, "um_wrapped", "um_wraps"]
    assert list(user_modules(f"um_wraps:{name}")) == modules


@pytest.mark.parametrize("mode", [None, *PycInvalidationMode])
def test_bytecode_that_python_would_run_in_place_of_an_edited_source_is_refused(
    path: Path, mode: PycInvalidationMode | None
) -> None:
    """An edit that leaves size and time as they were, as `cp -p` or a second edit within a second does."""
    put(path, {"um_main.py": "import um_near\nf = len\n", "um_near.py": "SIZE = 1\n"})
    source = path / "um_near.py"
    before, known = source.stat(), user_modules("um_main:f")
    cached = Path(py_compile.compile(str(source), invalidation_mode=mode) or "")
    assert user_modules("um_main:f") == known
    source.write_text("SIZE = 2\n")
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    if mode is PycInvalidationMode.CHECKED_HASH:  # Python compares the content itself
        assert user_modules("um_main:f") != known
        return
    with pytest.raises(FunctionError, match=rf"{cached}: .* compiled before {source} changed.*delete this file"):
        user_modules("um_main:f")
    cached.unlink()
    edited = user_modules("um_main:f")
    assert edited != known
    for unusable in (b"", b"x" * 40, MAGIC_NUMBER + bytes(20)):
        cached.write_bytes(unusable)
        assert user_modules("um_main:f") == edited


@pytest.mark.parametrize("source", ["SIZE = (\n", "SIZE = \0\n"])
def test_bytecode_that_python_would_run_in_place_of_a_source_that_does_not_parse_is_refused(
    path: Path, source: str
) -> None:
    put(path, {"um_near.py": "SIZE = 1\n"})
    before = (path / "um_near.py").stat()
    py_compile.compile(str(path / "um_near.py"))
    put(path, {"um_near.py": source})
    os.utime(path / "um_near.py", ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(FunctionError, match=r"compiled before .* changed.*delete this file"):
        modules_of(["um_near"])


def test_bytecode_without_a_source_stands_for_itself(path: Path) -> None:
    put(path, {"um_alone.py": "f = len\n"})
    alone, mode = path / "um_alone.pyc", PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(path / "um_alone.py"), str(alone), invalidation_mode=mode)
    (path / "um_alone.py").unlink()
    assert user_modules("um_alone:f") == {"um_alone": digest(alone)}


def test_bytecode_of_an_earlier_time_is_none_that_python_runs(path: Path) -> None:
    put(path, {"um_main.py": "f = len\n"})
    py_compile.compile(str(path / "um_main.py"))
    put(path, {"um_main.py": "f = max\n"})
    os.utime(path / "um_main.py", (1e9, 1e9))
    assert user_modules("um_main:f") == {"um_main": digest(path / "um_main.py")}


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (b"", "EOFError"),
        (b"c", "EOFError"),
        (b"?", "ValueError: bad marshal data"),
        (b"(\1\0\0\0" + b"0", "TypeError: NULL object in marshal data"),
    ],
)
def test_what_bytecode_that_does_not_read_lacks_is_told_by_the_import(path: Path, code: bytes, error: str) -> None:
    put(path, {"um_main.py": "f = len\n"})
    cached = Path(cache_from_source(str(path / "um_main.py")))
    cached.parent.mkdir(parents=True, exist_ok=True)
    cached.write_bytes(MAGIC_NUMBER + pack("<I", 1) + bytes(8) + code)
    assert modules_of(["um_main"]) == {"um_main": digest(path / "um_main.py")}
    with pytest.raises(FunctionError, match=f"'um_main' cannot be imported: {error}"):
        user_modules("um_main:f")


def test_where_python_keeps_no_bytecode_none_is_looked_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(path, {"um_main.py": "f = len\n"})
    monkeypatch.setattr(sys.implementation, "cache_tag", None)
    assert modules_of(["um_main"]) == {"um_main": digest(path / "um_main.py")}


def test_a_module_whose_file_is_gone_though_it_is_found_has_no_source(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Knowing:
        """Remembers where a module was."""

        @staticmethod
        def find_spec(name: str, folders: Any, target: Any = None) -> ModuleSpec | None:
            return spec_from_file_location(name, path / "gone.py") if name == "um_gone" else None

    monkeypatch.setattr(sys, "meta_path", [Knowing, *sys.meta_path])
    assert modules_of(["um_gone"]) == {"um_gone": NO_SOURCE}


def test_the_modules_of_a_job_are_found_in_its_parameters_wherever_they_stand(path: Path) -> None:
    put(path, {"um_main.py": "import um_near\nf = len\n", "um_near.py": ""})
    found = user_modules("um_main:f")
    others = {"module": "um_main", "a module um_other": "0" * 16, "said": {"module": {"um_other": "version 2"}}}
    nested = ({"by": {"function made of": {"module": found}}}, {"module": {"made of": {"module": found}}})
    for parameters in ({"module": found}, *nested):
        assert recorded_modules({**others, **parameters}) == found
    assert recorded_modules(others) == {}
    assert recorded_modules({"checksums": {"um_main": "0" * 16}, "with": {"seeds": {"um_near": "1" * 16}}}) == {}


def test_a_module_that_has_changed_since_it_was_recorded_is_refused(path: Path) -> None:
    put(path, {"um_main.py": "import um_near, um_gone\nf = len\n", "um_near.py": "A = 1\n", "um_gone.py": ""})
    recorded = user_modules("um_main:f")
    (path / "um_gone.py").unlink()
    require_modules({**recorded, "sys": "0" * 16}, [*recorded, "sys"])
    put(path, {"um_near.py": "A = 2\n"})
    require_modules(recorded, ["um_main"])
    with pytest.raises(FunctionError, match=rf"{path}/um_near.py: the module um_near has changed since"):
        require_modules(recorded, recorded)


def test_of_several_modules_that_have_changed_the_first_by_name_is_told(path: Path) -> None:
    names = [f"um_{letter}" for letter in "dbca"]
    put(path, {f"{name}.py": "A = 1\n" for name in names})
    recorded = dict.fromkeys(names, "0" * 16)
    with pytest.raises(FunctionError, match="the module um_a has changed"):
        require_modules(recorded, names)


def test_a_module_that_has_become_a_copy_of_another_has_changed(path: Path) -> None:
    put(path, {"um_main.py": "import um_near, um_far\nf = len\n", "um_near.py": "A = 1\n", "um_far.py": "A = 22\n"})
    recorded = user_modules("um_main:f")
    require_modules(recorded, recorded)
    put(path, {"um_near.py": "A = 22\n"})
    with pytest.raises(FunctionError, match="the module um_near has changed since the job was created"):
        require_modules(recorded, recorded)


def function(source: str) -> CodeType:
    """Return the code of a function, for whose body some lines stand."""
    names: dict[str, Any] = {}
    exec(f"def f(a, b=1):\n{source}", names)
    code: CodeType = names["f"].__code__
    return code


def made(**changes: Any) -> CodeType:
    """Return code of which nothing depends on the version of Python."""
    plain: dict[str, Any] = {"co_code": b"\0\0", "co_consts": (), "co_exceptiontable": b"", "co_flags": 0}
    plain |= {"co_names": (), "co_varnames": (), "co_nlocals": 0, "co_stacksize": 0}
    return compile("", "", "exec").replace(**{**plain, **changes})


DIGESTS: list[tuple[dict[str, Any], str]] = [
    ({}, "2bc3ec0f2a8fb0b2"),
    ({"co_names": ("a", "b")}, "184d33f45aedae90"),
    ({"co_consts": (1, "a", None)}, "aced187bab94e0fb"),
    ({"co_consts": ((1, ("a", b"b")), frozenset([1, 2, "c"]))}, "533045dcdb9c73bc"),
    ({"co_consts": (made(), "\ud800")}, "34f477a0ed1953e9"),
]


@each(("changes", "digest"), DIGESTS)
def test_the_digest_of_code_stays_what_it_is_for_ever(changes: dict[str, Any], digest: str) -> None:
    # A change of it makes every ledger refuse its job, as if the function had been edited.
    assert code_digest(made(**changes)) == digest


CHANGES: list[dict[str, Any]] = [
    {},
    {"co_code": b"\0\0\0\0"},
    {"co_flags": 0x20},
    {"co_exceptiontable": b"a"},
    {"co_names": ("a", "b")},
    {"co_names": ("ab",)},
    {"co_varnames": ("a", "b"), "co_nlocals": 2},
    {"co_argcount": 1, "co_varnames": ("a", "b"), "co_nlocals": 2},
    {"co_kwonlyargcount": 1, "co_varnames": ("a", "b"), "co_nlocals": 2},
    {"co_argcount": 1, "co_posonlyargcount": 1, "co_varnames": ("a", "b"), "co_nlocals": 2},
    {"co_freevars": ("a", "b")},
    {"co_cellvars": ("a", "b")},
    *({"co_consts": consts} for consts in [(1,), (1.0,), (True,), ("1",), (1, 2), ((1, 2),), ((1,), 2), ((1, (2,)),)]),
    *({"co_consts": (members,)} for members in [frozenset(), frozenset([1]), frozenset([1, 2]), frozenset([(1, 2)])]),
    {"co_consts": (((),),)},
    {"co_consts": (made(),)},
    {"co_consts": (made(co_names=("a",)),)},
]


def test_code_that_differs_anywhere_has_another_digest() -> None:
    assert len({code_digest(made(**changes)) for changes in CHANGES}) == len(CHANGES)


def test_the_order_of_a_set_of_constants_means_nothing() -> None:
    one, other = frozenset([0, 8]), frozenset([8, 0])  # these meet in a table of eight places
    assert list(one) != list(other)
    assert code_digest(made(co_consts=(one,))) == code_digest(made(co_consts=(other,)))


@each(
    ("names", "source", "found"),
    [
        (global_names, " return len(a), str(b), len(b)", ["len", "str"]),
        (global_names, " return lambda c: max(c) + (lambda: min(a))()", ["max", "min"]),
        (global_names, " return a.real", []),
        (imported_names, " import json, os.path", ["json", "os.path"]),
        (imported_names, " from json import dumps, loads as l\n return l", ["json", "json.dumps", "json.loads"]),
        (imported_names, " def g():\n  import json\n return g, len(a)", ["json"]),
        (imported_names, " return len(a.json)", []),
    ],
)
def test_names_from_elsewhere_are_those_that_code_asks_for(
    names: Callable[[CodeType], list[str]], source: str, found: list[str]
) -> None:
    assert names(function(source)) == found


def test_of_a_relative_import_the_names_of_no_module_are_told() -> None:
    assert imported_names(function(" from . import near\n from .far import x")) == ["", "far", "far.x"]
