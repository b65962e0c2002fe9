"""The shape of the library, read from its source: layers, sizes, names, exports."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import ledgerbeam

ROOT = Path(ledgerbeam.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))
PACKAGES = [path for path in MODULES if path.name == "__init__.py"]
PARTS = ("io", "ledger", "sources", "iterators", "transforms", "pipelines")
MODULES_ALONE = (
    "beam_import",
    "credentials",
    "descriptors",
    "disk",
    "errors",
    "extras",
    "interrupts",
    "last_words",
    "late_numpy",
    "lazy_names",
    "logger",
    "names",
    "opening",
    "redaction",
    "results",
    "sizes",
    "sketches",
    "stats",
)
"""Modules at the top that are a part of their own."""

BOTTOM = {
    "beam_import",
    "credentials",
    "descriptors",
    "disk",
    "errors",
    "extras",
    "interrupts",
    "late_numpy",
    "lazy_names",
    "logger",
    "names",
    "redaction",
    "results",
    "sizes",
    "sketches",
    "stats",
}
"""What any module may import: it knows nothing but errors."""

ALLOWED = {
    "": {
        *BOTTOM,
        "pipelines",
        "transforms",
        "io",
        "opening",
    },  # __main__ starts the command line, the front imports late
    "beam_import": set(),
    "credentials": set(),
    "descriptors": set(),
    "disk": set(),
    "errors": set(),
    "extras": set(),
    "interrupts": set(),
    "last_words": {"io"},
    "late_numpy": {"interrupts"},
    "lazy_names": {"interrupts"},
    "logger": set(),
    "names": {"errors"},
    "redaction": {"credentials", "errors"},
    "results": set(),
    "sizes": set(),
    "sketches": {"sketches"},
    "stats": {"errors", "sketches"},
    "io": {"io", *BOTTOM},
    "ledger": {"ledger", *BOTTOM},
    "opening": {"last_words", "io", "ledger", *BOTTOM},
    "sources": {"sources", "opening", "io", "ledger", *BOTTOM},
    "iterators": {"iterators", "sources", "io", "ledger", *BOTTOM},
    "transforms": {"transforms", "iterators", "sources", "opening", "io", "ledger", *BOTTOM},
    "pipelines": {
        "pipelines",
        "transforms",
        "iterators",
        "sources",
        "opening",
        "last_words",
        "io",
        "ledger",
        *BOTTOM,
        "",
    },  # "": the version
}
"""What the modules of each part may import of ledgerbeam."""

FLOORS_OF_IO = (
    ("native",),
    ("json_values", "audio"),
    ("storage",),
    ("content_kind",),
    ("listing", "compression"),
    ("index",),
    ("formats",),
    ("columns", "index_versions", "folder_sources"),
    ("jsonl", "tar", "megatron", "idxpack", "text", "warc", "source_listing"),
    ("shar", "webdataset", "conversion", "parquet", "arrow", "dataset_card", "exchange"),
    ("lit", "any_source"),
)
"""Packages and modules of io: each may import those before its own group, and none of its group but itself."""

MOST_LINES = 600


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def part_of(path: Path) -> str:
    """`io` for `io/index/file.py`, `errors` for `errors.py`, the empty string for what lies at the top."""
    top = path.relative_to(ROOT).parts[0]
    if top in PARTS:
        return top
    return top.removesuffix(".py") if top.removesuffix(".py") in MODULES_ALONE else ""


def imported_modules(source: str) -> Iterator[str]:
    """Return every module that a source imports anywhere in it, type-checking blocks and functions included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module in {"ledgerbeam", "ledgerbeam.io"}:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)  # a part, by way of the top
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)


def imported_parts(source: str) -> set[str]:
    parts = set()
    for module in imported_modules(source):
        top, _, rest = module.partition(".")
        if top == "ledgerbeam":
            part = rest.partition(".")[0]
            parts.add(part if part in {*PARTS, *MODULES_ALONE} else "")
    return parts


def foreign_imports(path: Path, *names: str) -> list[str]:
    found = imported_modules(path.read_text(encoding="utf-8"))
    return sorted({module for module in found if module.partition(".")[0] in names})


def test_there_are_modules_of_every_part() -> None:
    assert {part_of(path) for path in MODULES} == {"", *MODULES_ALONE, *PARTS}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_point_one_way(path: Path) -> None:
    forbidden = imported_parts(path.read_text(encoding="utf-8")) - ALLOWED[part_of(path)]
    assert not forbidden, f"{name_of(path)} imports {sorted(forbidden)}"


@pytest.mark.parametrize("path", [path for path in MODULES if path.is_relative_to(ROOT / "io")], ids=name_of)
def test_imports_inside_io_point_one_way(path: Path) -> None:
    room = path.relative_to(ROOT / "io").parts[0].removesuffix(".py")
    if room == "__init__":
        return
    below: set[str] = {room}
    for group in FLOORS_OF_IO:
        if room in group:
            break
        below |= set(group)
    else:
        pytest.fail(f"{room} has no floor")
    modules = imported_modules(path.read_text(encoding="utf-8"))
    used = {module.split(".")[2] for module in modules if module.startswith("ledgerbeam.io.")}
    assert not used - below, f"{name_of(path)} imports {sorted(used - below)}"


@pytest.mark.parametrize(
    "path",
    [path for path in MODULES if part_of(path) in {*BOTTOM, "io", "ledger", "sources", "iterators"}],
    ids=name_of,
)
def test_nothing_below_transforms_knows_beam(path: Path) -> None:
    assert not foreign_imports(path, "apache_beam")


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("import ledgerbeam.ledger.model.store", {"ledger"}),
        ("from ledgerbeam.ledger import Task", {"ledger"}),
        ("from ledgerbeam import pipelines", {"pipelines"}),
        ("from ledgerbeam import __version__", {""}),
        ("def f():\n    from ledgerbeam.transforms import match", {"transforms"}),
        ("if TYPE_CHECKING:\n    import ledgerbeam.pipelines.commands.cli as cli", {"pipelines"}),
        ("import numpy.typing\nfrom apache_beam import Map", set()),
    ],
)
def test_no_form_of_import_escapes_the_check(source: str, parts: set[str]) -> None:
    assert imported_parts(source) == parts


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_are_absolute(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    relative = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level]
    assert not relative, f"{name_of(path)} has relative imports in lines {relative}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_modules_are_short_and_named_after_what_they_hold(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_LINES
    assert not {"util", "utils", "helpers", "common", "misc"} & {path.stem, path.parent.name}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_library_code_holds_no_assert(path: Path) -> None:
    asserts = [
        node.lineno for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Assert)
    ]
    assert not asserts, f"{name_of(path)} asserts in lines {asserts}: python -O would take the check away"


@pytest.mark.parametrize("path", PACKAGES, ids=name_of)
def test_all_of_a_package_is_sorted_and_resolves(path: Path) -> None:
    package = importlib.import_module(".".join(("ledgerbeam", *path.relative_to(ROOT).parts[:-1])))
    names = list(getattr(package, "__all__", []))
    if name_of(path.parent) in {"io", "ledger", "sources", "iterators", "transforms"}:
        assert names, f"{name_of(path)} exports nothing"
    assert names == _as_ruff_sorts(names)
    missing = [name for name in names if not hasattr(package, name)]
    assert not missing, f"{name_of(path)} names {missing} in __all__ and does not have them"


@pytest.mark.parametrize("path", [path for path in PACKAGES if part_of(path) in PARTS], ids=name_of)
def test_all_of_a_package_lists_whatever_it_exports(path: Path) -> None:
    """`from x import Y as Y` is an export; it stands in `__all__` too."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    lazy = [node for one in tree.body if isinstance(one, ast.If) for node in one.body]  # of `if TYPE_CHECKING`
    exported = {
        alias.asname
        for node in [*tree.body, *lazy]
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    }
    package = importlib.import_module(".".join(("ledgerbeam", *path.relative_to(ROOT).parts[:-1])))
    assert exported == set(getattr(package, "__all__", ()))


def test_every_module_can_be_imported_by_itself() -> None:
    names = [module.name for module in pkgutil.walk_packages(ledgerbeam.__path__, "ledgerbeam.")]
    assert len(names) > len(PARTS)
    for name in names:
        if name != "ledgerbeam.__main__":
            importlib.import_module(name)


def _as_ruff_sorts(names: list[str]) -> list[str]:
    """Constants, then classes, then the rest, each in its order: what ruff's RUF022 asks for."""
    return sorted(names, key=lambda name: (0 if name.isupper() else 1 if name[:1].isupper() else 2, name))
