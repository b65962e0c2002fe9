"""Pages of documentation print what stands on them, and name what is there."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import os
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from ledgerbeam.io.datasets.lit import codecs
from ledgerbeam.io.storage import client
from ledgerbeam.pipelines.cli.parser import parse_words
from tests.cases import each
from tests.conftest import S3Server
from tests.pages import (
    ROOT,
    blocks,
    environment,
    first_line,
    install_here,
    missing_packages,
    run_page,
    types_commands,
    without_network,
)

README = ROOT / "README.md"
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("docker/*.md"), *ROOT.glob(".github/**/*.md")]
)
PAGES = [README, *sorted(ROOT.glob("docs/**/*.md"))]
LANGUAGES = {"python", "pycon", "console", "sh", "toml", "json", "yaml", "text", "mermaid"}
NOT_RUN = {
    "arrow-batches": {"# polars_filters.py"},
    "how-to/feed-training": {"from torchdata.stateful_dataloader import StatefulDataLoader"},
    "many-hosts": {"$ ledgerbeam ledger status s3://bucket/ledger --by-host"},
    "migration/datatrove": {"# with_datatrove.py"},
    "migration/lhotse": {"# with_lhotse.py"},
    "migration/nemo-curator": {"# with_curator.py"},
    "other-libraries": {
        "# blocks.py",
        "# tag_with_dolma.py: runs in the environment of dolma",
        "# tagging.py",
    },
    "scale": {"$ ledgerbeam convert 'pages/*.jsonl' --output texts --to jsonl --task-bytes 2M --dry-run"},
    "training-loaders": {"from torchdata.stateful_dataloader import StatefulDataLoader", "from lhotse import CutSet"},
}
"""First lines of the blocks that need what is not here: torch, lhotse, polars, other tools, a cluster, an hour."""
WITH_A_BUCKET = {"how-to/index-a-bucket"}
INSTALLING = {"own-format"}
RECIPES = sorted(path.parent for path in ROOT.glob("examples/cookbook/*/flow.toml"))
"""The folders of the cookbook. Each has a page of the same name."""


def name_of(page: Path) -> str:
    return "README" if page == README else page.relative_to(ROOT / "docs").with_suffix("").as_posix()


def runs(page: Path) -> bool:
    return (
        name_of(page) not in WITH_A_BUCKET
        and not name_of(page).startswith("cookbook/")
        and any(
            language in ("python", "pycon", "console") and first_line(block) not in NOT_RUN.get(name_of(page), ())
            for language, block in blocks(page)
        )
    )


def is_python(block: str) -> bool:
    """Return whether a block is a program in Python, more than a name or a value."""
    try:
        tree = ast.parse(block)
    except SyntaxError:
        return False
    work = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.Call)
    return any(isinstance(node, work) for node in ast.walk(tree))


def commands_for_reading(page: Path) -> Iterator[list[str]]:
    """Return the arguments of the library's commands in the blocks of a page that do not run."""
    not_run = NOT_RUN.get(name_of(page), ())
    for language, block in blocks(page):
        if language == "sh" or (language == "console" and first_line(block) in not_run):
            line = ""
            for part in block.replace("\\\n", " ").splitlines():
                line += part
                try:
                    words = words_of(line)
                except ValueError:  # a quote goes on in the next line
                    line += "\n"
                    continue
                yield from commands_of(words)
                line = ""
            assert not line, f"{page.name}: a quote without an end: {line}"


def words_of(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    return list(lexer)


def commands_of(words: list[str]) -> Iterator[list[str]]:
    while "ledgerbeam" in words:
        words = words[words.index("ledgerbeam") + 1 :]
        end = next((place for place, word in enumerate(words) if set(word) <= set("();<>|&")), len(words))
        if end:
            yield words[:end]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working folder. Its modules can be imported; they and what pages register are forgotten afterwards."""
    monkeypatch.setattr(codecs, "_codecs", dict(codecs._codecs))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if name == "page" or (file is not None and Path(file).is_relative_to(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=name_of(page), marks=pytest.mark.slow if types_commands(page) else ())
        for page in PAGES
        if runs(page)
    ],
)
def test_every_block_runs_and_prints_what_stands_there(
    page: Path, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    env = environment(folder / "cache")
    if page == README:
        write_texts(Path("texts"), [f"{number:03}" for number in range(200)], records=200)
    if name_of(page) in INSTALLING:
        env |= install_here(tmp_path_factory.mktemp("venv"))
    assert run_page(page, folder, env, not_run=NOT_RUN.get(name_of(page), ())) > 0


@pytest.mark.slow
@pytest.mark.timeout(1200)  # a recipe runs several jobs, whose workers load models
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: f"cookbook/{recipe.name}")
def test_every_recipe_of_the_cookbook_runs_without_network_and_prints_what_stands_there(
    recipe: Path, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if missing := missing_packages(recipe):
        pytest.skip(f"{', '.join(missing)} not installed; `make cookbook` installs the packages of the cookbook")
    shutil.copytree(recipe, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    env = environment(folder / "cache") | without_network(tmp_path_factory.mktemp("offline") / "site")
    assert run_page(ROOT / "docs" / "cookbook" / f"{recipe.name}.md", folder, env) > 0
    for path in recipe.glob("*.*"):
        assert (folder / path.name).read_text() == path.read_text(), f"{path.name}: the page shows another file"


def test_the_cookbook_has_a_page_for_each_recipe() -> None:
    pages = {name_of(page) for page in PAGES if name_of(page).startswith("cookbook/")}
    assert pages == {"cookbook/index", *(f"cookbook/{recipe.name}" for recipe in RECIPES)}


@pytest.mark.slow
@pytest.mark.s3
@pytest.mark.parametrize("page", [page for page in PAGES if name_of(page) in WITH_A_BUCKET], ids=name_of)
def test_every_block_of_a_page_with_a_bucket_runs_and_prints_what_stands_there(
    page: Path, s3: S3Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = client.filesystem("s3://", s3.options)
    for name, value in s3.env.items():
        monkeypatch.setenv(name, value)

    def fill_bucket(block: str) -> None:
        if "s3://" in block and not fs.exists("corpus"):
            fs.mkdir("corpus")
            for path in Path("texts").glob("*.jsonl"):
                fs.pipe_file(f"corpus/texts/{path.name}", path.read_bytes())

    write_texts(Path("texts"), "ab", records=4000)
    try:
        assert run_page(page, folder, environment(folder / "cache") | s3.env, fill_bucket) > 0
    finally:
        if fs.exists("corpus"):
            fs.rm("corpus", recursive=True)


@each("name", NOT_RUN)
def test_blocks_that_do_not_run_import_what_is_there_and_call_it_as_it_is(name: str) -> None:
    not_run = [block for block in blocks(ROOT / "docs" / f"{name}.md") if first_line(block[1]) in NOT_RUN[name]]
    assert len(not_run) == len(NOT_RUN[name])
    assert [fault for language, block in not_run if language == "python" for fault in faults(block)] == []


@each("page", PAGES, ids=name_of)
def test_every_block_has_a_language_and_keeps_it(page: Path) -> None:
    """So no program stands in a block that does not run."""
    for language, block in blocks(page):
        assert language in LANGUAGES, block
        if language == "json":
            json.loads(block)
        elif language == "toml":
            tomllib.loads(block)
        elif language == "yaml":
            yaml.safe_load(block)
        elif language in ("text", "sh"):
            assert not is_python(block), f"a program: make it a block `python`\n{block}"


@each("page", [page for page in PAGES if any(commands_for_reading(page))], ids=name_of)
def test_commands_for_reading_have_options_that_exist(page: Path) -> None:
    for words in commands_for_reading(page):
        _, behind = parse_words(words)
        if behind[:1] == ["ledgerbeam"]:
            parse_words(behind[1:])


def write_texts(folder: Path, names: Iterable[str], records: int) -> None:
    """Write JSONL files that the README and docs/how-to/index-a-bucket.md expect; IDs count through all files."""
    folder.mkdir()
    for file, name in enumerate(names):
        numbers = range(file * records + 1, (file + 1) * records + 1)
        lines = [f'{{"id": {number}, "text": " Line  {number}"}}\n' for number in numbers]
        (folder / f"{name}.jsonl").write_text("".join(lines))


def test_code_of_the_readme_fits_80_columns() -> None:
    assert [line for _, block in blocks(README) for line in block.splitlines() if len(line) > 80] == []


def read(document: Path) -> str:
    """Return a page, with links to the repository's own site as links to files."""
    to_root = os.path.relpath(ROOT, document.parent)
    own = r"https://(?:github|raw\.githubusercontent)\.com/ledgerbeam/ledgerbeam/(?:(?:blob|tree)/)?main"
    text = re.sub(r"^\[[\w-]+\]: (\S+)$", r"[](\1)", document.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return re.sub(own, to_root, text)


@each("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_name_only_files_that_exist(document: Path) -> None:
    text = read(document)
    links = re.findall(r"\]\((?!https?:)([^)#]+)(?:#[\w-]+)?\)", text)
    missing = [link for link in links if not (document.parent / link).exists()]
    # `io/index/file.py` is short for what lies in the package.
    named = re.findall(r"`((?:\w+/)+\w+\.(?:py|md|sh))`", text)
    missing += [name for name in named if not (ROOT / name).exists() and not (ROOT / "ledgerbeam" / name).exists()]
    assert not missing


def test_links_into_a_page_name_one_of_its_headings() -> None:
    for document in DOCUMENTS:
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#]+)#([\w-]+)\)", read(document)):
            page = (document.parent / target).read_text()
            headings = [line.lstrip("# ") for line in page.splitlines() if line.startswith("#")]
            anchors = [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings]
            assert anchor in anchors, f"{document.name} links to {target}#{anchor}"


def faults(block: str) -> list[str]:
    """Return what is wrong with a block: a name that the library lacks, or a call that its signature refuses.

    Raises:
        SyntaxError: It is not Python.
    """
    tree = ast.parse(block)
    names: dict[str, object] = {}
    found = []
    for node in ast.walk(tree):
        for bound_as, path in _imports(node):
            try:
                names[bound_as] = _resolve(path)
            except (ImportError, AttributeError) as error:
                found.append(f"{path}: {error}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = _called(node.func, names)
            if called is not None:
                found += _unbound(node, called)
    return found


def _imports(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Names that a statement binds, and the path of each in the library."""
    if isinstance(node, ast.Import):
        for name in node.names:
            if name.name.split(".")[0] == "ledgerbeam":
                yield (name.asname, name.name) if name.asname else ("ledgerbeam", "ledgerbeam")
    elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "ledgerbeam":
        for name in node.names:
            yield name.asname or name.name, f"{node.module}.{name.name}"


def _resolve(path: str) -> object:
    parent, _, name = path.rpartition(".")
    if not parent:
        return importlib.import_module(path)
    module = importlib.import_module(parent)
    return getattr(module, name) if hasattr(module, name) else importlib.import_module(path)


def _called(node: ast.expr, names: dict[str, object]) -> object | None:
    """Return what an expression names in the library, or None."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _called(node.value, names)
        return getattr(owner, node.attr, None) if inspect.ismodule(owner) else None
    return None


def _unbound(call: ast.Call, called: object) -> list[str]:
    if any(isinstance(value, ast.Starred) for value in call.args) or any(word.arg is None for word in call.keywords):
        return []
    assert callable(called), f"{ast.unparse(call)}: no function"
    words = {word.arg: word for word in call.keywords if word.arg is not None}
    try:
        inspect.signature(called).bind(*call.args, **words)
    except TypeError as error:
        return [f"{ast.unparse(call)}: {error}"]
    return []


def test_the_matrix_of_changes_names_each_test_of_a_change() -> None:
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "tests" / "changes").glob("test_*.py"))
    functions = {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    text = (ROOT / "docs" / "tested-changes.md").read_text(encoding="utf-8")
    section = text.partition("## Changes of one job")[2].partition("\n## ")[0]
    assert set(re.findall(r"`(test_\w+)`", section)) == {name for name in functions if name.startswith("test_")}
