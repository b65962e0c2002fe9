"""The modules of user code that a job's identity covers."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledgerbeam.ledger.model.user_modules import NO_SOURCE, user_modules


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        del sys.modules[name]


def write(folder: Path, **sources: str) -> None:
    for name, source in sources.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)


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
    (folder / "um_pack" / "deep").mkdir(parents=True)
    (folder / "um_pack" / "__init__.py").write_text("from um_pack import top\n")
    (folder / "um_pack" / "top.py").write_text("")
    (folder / "um_pack" / "deep" / "__init__.py").write_text("")
    (folder / "um_pack" / "deep" / "main.py").write_text(
        "from . import near\nfrom .. import far\nfrom ..far2 import *\nf=len\n"
    )
    for name in ("deep/near.py", "far.py", "far2.py"):
        (folder / "um_pack" / name).write_text("")
    assert list(user_modules("um_pack.deep.main:f")) == [
        "um_pack",
        "um_pack.deep",
        "um_pack.deep.main",
        "um_pack.deep.near",
        "um_pack.far",
        "um_pack.far2",
        "um_pack.top",
    ]


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
