"""The structure of the library, read from its source: layers, sizes, names, fronts."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import ledgerbeam
from tests.cases import each

ROOT = Path(ledgerbeam.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))
BASE = {
    "_base",
    "answers",
    "errors",
    "results",
    "sketches",
    "stats",
}  # every layer may import them

LAYERS = (
    BASE,
    {"io"},
    {"ledger"},
    {"user_code"},
    {"adapters", "llm", "sources"},
    {"iterators"},
    {"transforms"},
    {"pipelines"},
    {"__init__", "__main__", "yaml"},
)
"""Layers from the lowest to the highest. A module imports from its own layer and from lower ones."""

LAYERS_OF_IO = (
    ("native",),
    ("json_values",),
    ("storage",),
    ("compression",),
    ("listing",),
    ("index",),
    ("formats",),
    ("columns",),
    ("lines", "tar", "warc", "idxpack"),
    ("exchange", "conversion", "any_source"),
    ("datasets",),
)
"""The same for the packages and modules of io."""

DATASETS = (
    "ledgerbeam.io.datasets",
    "ledgerbeam.sources.shar",
    "ledgerbeam.sources.documents",
    "ledgerbeam.iterators.shar",
    "ledgerbeam.iterators.packed",
    "ledgerbeam.transforms.mapping.pack",
    "ledgerbeam.transforms.mapping.tokenize",
    "ledgerbeam.pipelines.calls.megatron",
    "ledgerbeam.pipelines.calls.packs",
    "ledgerbeam.pipelines.datasets",
)
"""Megatron, Shar, LIT and WebDataset. The core finds them by name, with `_base/extensions.py`."""

MOST_LINES = 600


def room_of(path: Path, root: Path = ROOT) -> str:
    """Return `io` for `io/index/file.py` and `errors` for `errors.py`."""
    return path.relative_to(root).parts[0].removesuffix(".py")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported_modules(tree: ast.Module) -> Iterator[str]:
    """Return every module and name that a module imports, in functions and for type checkers too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def rooms_used(tree: ast.Module, package: str = "ledgerbeam") -> set[str]:
    """Return the rooms of a package that a module imports from; names of the package itself count as `__init__`."""
    rooms = {path.stem if path.suffix else path.name for path in ROOT.joinpath(*package.split(".")[1:]).iterdir()}
    found = set()
    for module in imported_modules(tree):
        if module == package or module.startswith(f"{package}."):
            room = module.removeprefix(package).removeprefix(".").partition(".")[0]
            found.add(room if room in rooms else "__init__")
    return found


def faults_of_layers(layers: Sequence[Collection[str]], root: Path, package: str) -> list[str]:
    levels = {room: level for level, rooms in enumerate(layers) for room in rooms}
    faults = []
    for path in sorted(root.rglob("*.py")):
        room = room_of(path, root)
        if room not in levels:
            faults.append(f"{path}: has no layer")
            continue
        higher = [used for used in rooms_used(tree_of(path), package) if levels[used] >= levels[room]]
        faults += [f"{path}: imports {used}" for used in higher if used != room and room not in BASE]
    return faults


def test_imports_point_to_lower_layers() -> None:
    assert not faults_of_layers(LAYERS, ROOT, "ledgerbeam")


def test_base_imports_base_alone() -> None:
    paths = [path for path in MODULES if room_of(path) in BASE]
    assert not [path for path in paths if rooms_used(tree_of(path)) - BASE]


def test_imports_inside_io_point_to_lower_layers() -> None:
    assert not faults_of_layers((*LAYERS_OF_IO, ("__init__",)), ROOT / "io", "ledgerbeam.io")


def is_dataset(module: str) -> bool:
    return any(f"{module}.".startswith(f"{room}.") for room in DATASETS)


def module_name(path: Path) -> str:
    return ".".join(("ledgerbeam", *path.relative_to(ROOT).with_suffix("").parts))


def test_core_imports_no_datasets() -> None:
    """The fronts, `__init__.py`, name classes of datasets for type checkers, and import them when they are used."""
    core = [path for path in MODULES if path.name != "__init__.py" and not is_dataset(module_name(path))]
    assert not [path for path in core if any(map(is_dataset, imported_modules(tree_of(path))))]


def test_imports_have_no_cycle() -> None:
    """Imports in functions and for type checkers count."""
    names = {path: module_name(path) for path in MODULES}
    modules = {name.removesuffix(".__init__") for name in names.values()}
    graph = {}
    for path, name in names.items():
        found = (used if used in modules else used.rpartition(".")[0] for used in imported_modules(tree_of(path)))
        graph[name.removesuffix(".__init__")] = {used for used in found if used in modules} - {name}
    graph["ledgerbeam"] = set()  # the front imports everything when it is used
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_only_transforms_and_pipelines_import_beam() -> None:
    low = [path for path in MODULES if room_of(path) not in {"transforms", "pipelines", "__init__", "__main__", "yaml"}]
    low += [path for path in MODULES if path.parent.parent.name == "transforms"]  # the steps
    imported = {name.split(".")[0] for path in low for name in imported_modules(tree_of(path))}
    assert "apache_beam" not in imported


@each(
    ("source", "rooms"),
    [
        ("import ledgerbeam.ledger.model.store", {"ledger"}),
        ("from ledgerbeam.ledger import Task", {"ledger"}),
        ("from ledgerbeam import pipelines", {"pipelines"}),
        ("from ledgerbeam import __version__", {"__init__"}),
        ("def f():\n    from ledgerbeam.transforms import match", {"transforms"}),
        ("if TYPE_CHECKING:\n    import ledgerbeam.pipelines.cli.cli as cli", {"pipelines"}),
        ("import numpy.typing\nfrom apache_beam import Map", set()),
    ],
)
def test_no_form_of_import_escapes_the_check(source: str, rooms: set[str]) -> None:
    assert rooms_used(ast.parse(source)) == rooms


def test_modules_are_short_and_named_after_their_content() -> None:
    long = [path for path in MODULES if len(path.read_text(encoding="utf-8").splitlines()) > MOST_LINES]
    vague = [path for path in MODULES if {"util", "utils", "helpers", "common", "misc"} & {path.stem, path.parent.name}]
    assert not long + vague


def test_library_code_has_no_assert_and_no_relative_import() -> None:
    found = [
        f"{path}:{node.lineno}"
        for path in MODULES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Assert) or (isinstance(node, ast.ImportFrom) and node.level)
    ]
    assert not found


def test_every_module_can_be_imported_by_itself() -> None:
    names = [module.name for module in pkgutil.walk_packages(ledgerbeam.__path__, "ledgerbeam.")]
    assert len(names) > len(LAYERS)
    for name in names:
        if name != "ledgerbeam.__main__":
            importlib.import_module(name)


def test_fronts_are_sorted_and_complete() -> None:
    for path in MODULES:
        if path.name == "__init__.py":
            package = importlib.import_module(".".join(("ledgerbeam", *path.relative_to(ROOT).parts[:-1])))
            names = list(getattr(package, "__all__", []))
            assert names == sorted(
                names, key=lambda name: (0 if name.isupper() else 1 if name[:1].isupper() else 2, name)
            )
            assert not [name for name in names if not hasattr(package, name)], path
