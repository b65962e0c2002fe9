"""The distributions, built and installed as a user would, without the network."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import ledgerbeam

ROOT = Path(__file__).resolve().parents[1]
NOT_SOURCES = (
    *(".git", ".venv", ".cache", ".*_cache", ".hypothesis", ".ledgerbeam"),
    *("__pycache__", "build", "dist", "*.egg-info", "*.so"),
)
COMPILED = "ledgerbeam/io/_native.abi3.so"
SOURCES = {f"ledgerbeam/io/{name}" for name in ("_native.c", "_native_json.c", "_native_json.h")}
CLEAN_ENV = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_"))}


def run(*command: str | Path, cwd: Path, **env: str) -> str:
    env = CLEAN_ENV | env
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("packaging")
    shutil.copytree(ROOT, folder / "checkout", ignore=shutil.ignore_patterns(*NOT_SOURCES))
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist", cwd=folder / "checkout")
    return folder / "dist"


def only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def library_files() -> set[str]:
    files = [path for path in (ROOT / "ledgerbeam").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {path.relative_to(ROOT).as_posix() for path in files} - {COMPILED}


needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (cc): install gcc or clang")


@pytest.mark.slow
def test_the_wheel_holds_the_library_and_nothing_else(distributions: Path) -> None:
    with zipfile.ZipFile(only(distributions, "*.whl")) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        licences = [name for name in wheel.namelist() if name.endswith("LICENSE")]
    assert names - {COMPILED} == library_files() - SOURCES
    assert "ledgerbeam/py.typed" in names
    assert licences


@pytest.mark.slow
@needs_compiler
def test_the_wheel_holds_the_compiled_module_for_every_python(distributions: Path) -> None:
    with zipfile.ZipFile(only(distributions, "ledgerbeam-*-cp311-abi3-*.whl")) as wheel:
        assert COMPILED in wheel.namelist()


@pytest.mark.slow
def test_the_sdist_holds_what_building_needs_the_documentation_and_the_examples(distributions: Path) -> None:
    with tarfile.open(only(distributions, "*.tar.gz")) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert library_files() | {"pyproject.toml", "setup.py", "README.md", "LICENSE", "CHANGELOG.md"} <= names
    assert not [name for name in names if name.startswith(("tests", "benchmarks", "."))]
    files = [path for folder in ("docs", "examples") for path in (ROOT / folder).rglob("*") if path.is_file()]
    wanted = {path.relative_to(ROOT).as_posix() for path in files if "__pycache__" not in path.parts}
    assert len(wanted) > 20
    assert wanted | {"mkdocs.yml", "ARCHITECTURE.md", "CONTRIBUTING.md", "CITATION.cff"} <= names


@pytest.mark.slow
def test_a_wheel_for_every_platform_can_be_built_beside_the_compiled_one(distributions: Path, tmp_path: Path) -> None:
    with tarfile.open(only(distributions, "*.tar.gz")) as sdist:
        sdist.extractall(tmp_path, filter="data")
    source = only(tmp_path, "ledgerbeam-*")
    command = (sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", tmp_path / "dist", source)
    run(*command, cwd=tmp_path, LEDGERBEAM_PURE_PYTHON="1")
    with zipfile.ZipFile(only(tmp_path / "dist", "ledgerbeam-*-py3-none-any.whl")) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == library_files() - SOURCES


def test_links_of_the_readme_work_on_a_package_index() -> None:
    """It shows the README alone: links must be absolute, and those into the repository must name what is there."""
    text = (ROOT / "README.md").read_text()
    defined = dict(re.findall(r"^\[([\w-]+)\]: (\S+)$", text, re.MULTILINE))
    assert set(re.findall(r"\]\[([\w-]+)\]", text)) == set(defined)
    links = [*re.findall(r"\]\(([^)\s]+)\)", text), *defined.values()]
    assert len(links) > 10
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    inside = re.compile(
        r"https://(?:github|raw\.githubusercontent)\.com/ledgerbeam/ledgerbeam/(?:(?:blob|tree)/)?main/([^#]+)"
    )
    named = [match[1] for link in links if (match := inside.fullmatch(link.partition("#")[0]))]
    assert len(named) > 10
    assert [name for name in named if not (ROOT / name).exists()] == []
    images = re.findall(r"!\[[^]]*\]\(([^)\s]+)\)", text)
    assert [image for image in images if not image.startswith("https://raw.githubusercontent.com/")] == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
def test_a_distribution_installs_and_runs_in_a_clean_environment(
    distributions: Path, tmp_path: Path, kind: str
) -> None:
    python = clean_environment(tmp_path / "venv")
    install(python, only(distributions, kind))
    where = run(python, "-c", "import ledgerbeam; print(ledgerbeam.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(tmp_path / "venv"), "the checkout was imported"

    script = python.parent / "ledgerbeam"
    assert run(script, "--version", cwd=tmp_path) == f"ledgerbeam {ledgerbeam.__version__}\n"
    assert run(python, "-m", "ledgerbeam", "--help", cwd=tmp_path).startswith("usage: ledgerbeam")
    (tmp_path / "lines.jsonl").write_text('{"id": 0}\n{"id": 1}\n')
    summary = json.loads(run(script, "index", "lines.jsonl", "--workers", "1", "--json", cwd=tmp_path))
    assert summary["records"]["written"] == {"": 2}
    assert (tmp_path / "lines.jsonl.idx").stat().st_size == 3 * 8


@pytest.mark.slow
@pytest.mark.parametrize("compiler", [pytest.param("cc", marks=needs_compiler), "/bin/false", "no-such-compiler"])
def test_an_installation_without_a_compiler_does_its_work_in_python(
    distributions: Path, tmp_path: Path, compiler: str
) -> None:
    python = clean_environment(tmp_path / "venv")
    install(python, only(distributions, "*.tar.gz"), CC=compiler)
    show = "import ledgerbeam.io.native as native; print(native.compiled is not None)"
    assert run(python, "-c", show, cwd=tmp_path) == f"{compiler == 'cc'}\n"
    (tmp_path / "lines.jsonl").write_text('{"id": 0}\n{"id": 1}\n')
    run(python.parent / "ledgerbeam", "index", "lines.jsonl", "--workers", "1", cwd=tmp_path)
    assert (tmp_path / "lines.jsonl.idx").stat().st_size == 3 * 8


@pytest.mark.slow
def test_dependencies_can_be_installed_before_the_code_is_there(tmp_path: Path) -> None:
    """As the worker image does, so that a change of the code does not install them again."""
    (tmp_path / "ledgerbeam").mkdir()
    (tmp_path / "ledgerbeam" / "__init__.py").touch()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    python = clean_environment(tmp_path / "venv")
    install(python, tmp_path)


def clean_environment(folder: Path) -> Path:
    """Make a virtual environment that sees the dependencies of this one, and nothing of the checkout.

    A path in a `.pth` file is searched, but the `.pth` files in it, such as that of an editable install, are not run.
    """
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    python = folder / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def install(python: Path, what: Path, **env: str) -> None:
    pip = (sys.executable, "-m", "pip", "--python", python, "--quiet", "--disable-pip-version-check")
    run(*pip, "install", "--no-deps", "--no-index", "--no-build-isolation", what, cwd=python.parents[1], **env)


def test_the_version_is_the_same_everywhere() -> None:
    declared = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert declared
    assert declared[1] == ledgerbeam.__version__
    assert f"[{ledgerbeam.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("arguments", [["--help"], ["map", "--help"], ["--version"]])
def test_help_imports_neither_beam_nor_numpy(arguments: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "ledgerbeam", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines() if "|" in line}
    assert "argparse" in imported, "the import times were not read"
    assert not imported & {"apache_beam", "numpy", "fsspec", "lmdb"}


def test_help_answers_in_under_300_milliseconds(tmp_path: Path) -> None:
    seconds = []
    for _ in range(5):
        before = os.times()
        subprocess.run([sys.executable, "-m", "ledgerbeam", "--help"], cwd=tmp_path, capture_output=True, check=True)
        after = os.times()  # of the processor: a busy machine is not the command's fault
        seconds.append(after.children_user + after.children_system - before.children_user - before.children_system)
    assert min(seconds) < 0.3


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-gcp.txt"])
def test_the_image_brings_every_dependency(name: str) -> None:
    pinned = set(re.findall(r"^([\w.-]+)==", (ROOT / "docker" / name).read_text(), re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {re.split(r"[<>=~!\[; ]", each)[0] for each in project["dependencies"]}
    assert needed - pinned == set()
