"""Pages of documentation, typed in as a reader would: what stands below a command is what it prints."""

from __future__ import annotations

import ast
import doctest
import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
HOME, HOST = "/home/you", "node7"
"""Folder and host on pages, for those in which the commands of a test run."""

_BLOCK = re.compile(
    r"^(?P<fence> *(?:`{3,}|~{3,}))(?P<language>[^\n`]*)\n(?P<text>.*?)^(?P=fence) *$", re.MULTILINE | re.DOTALL
)
_INTERRUPTED = re.compile(r" *\^C$", re.MULTILINE)
_OUTPUT = re.compile(r"--output (\S+)")
_PROGRESS = re.compile(
    r"^(?:(?:\w+, )?(?:listing|starting workers|indexing|working|waiting)\b|\w+: .*\d of [\d,]+ sources?\b).*\n",
    re.MULTILINE,
)
"""Lines that a slow run prints while it works."""
_RUN = ("python", "pycon", "console")
_FILE = re.compile(r"# ((\w+)\.(?:py|toml))\n")


@dataclass(frozen=True)
class _Command:
    """A line that a reader types, and what is printed below it."""

    text: str
    printed: str


def blocks(page: Path, language: str | None = None) -> list[tuple[str, str]]:
    """Return the blocks of a page, or those of a language: language and text."""
    found = [(block["language"].strip(), block["text"]) for block in _BLOCK.finditer(page.read_text(encoding="utf-8"))]
    return [(kind, text) for kind, text in found if language in (None, kind)]


def first_line(block: str) -> str:
    """Return the line by which a block is named."""
    return block.partition("\n")[0]


def types_commands(page: Path) -> bool:
    """Return whether a page has commands, which take seconds."""
    return bool(blocks(page, "console"))


def environment(cache: Path) -> dict[str, str]:
    """Return the environment of a reader who has installed the package, and nothing set."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "LEDGERBEAM_"))}
    return {**kept, "PATH": path, "PYTHONWARNINGS": "ignore", "LEDGERBEAM_CACHE": str(cache)}


def missing_packages(folder: Path) -> list[str]:
    """Return the packages that the modules and flows of a folder name and that are not installed."""
    nodes = [node for path in folder.glob("*.py") for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    names = {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    names |= {name for path in folder.glob("*.toml") for name in re.findall(r'"([\w.]+):\w+"', path.read_text())}
    packages = {name.partition(".")[0] for name in names} - {path.stem for path in folder.glob("*.py")}
    return sorted(name for name in packages if importlib.util.find_spec(name) is None)


def without_network(folder: Path) -> dict[str, str]:
    """Write a module that Python loads when it starts, and that lets programs connect to this host only.

    Returns:
        What changes in the environment of commands.
    """
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_NO_NETWORK, encoding="utf-8")
    return {"PYTHONPATH": str(folder)}


_NO_NETWORK = """
import sys

def refuse(event, arguments):
    if event == "socket.getaddrinfo":
        host = arguments[0]
    elif event == "socket.connect" and isinstance(arguments[1], tuple):
        host = arguments[1][0]
    else:
        return
    if host not in (None, "", "localhost", "127.0.0.1", "::1"):
        raise OSError(f"this test has no network; a program connects to {host}")

sys.addaudithook(refuse)
"""
"""Audit hook of Python that refuses connections to other hosts."""

_HANG_SECONDS = 600  # a command that takes longer hangs: recipes that load models take two minutes on a busy machine


def run_page(
    page: Path,
    folder: Path,
    env: Mapping[str, str],
    prepare: Callable[[str], None] = lambda block: None,
    not_run: Collection[str] = (),
) -> int:
    """Run the blocks of a page in order: save files, type commands, run Python in one namespace.

    Blocks `python` and `toml` that begin with `# name.py` or `# name.toml` are files; a file of Python that no later
    block names is run as a script. Other blocks `python`, and the examples of blocks `pycon`, run in one namespace.
    Blocks `console` have commands after `$`. A command with `^C` at the end of a line below it is interrupted once ten
    of its outputs are on disk. A line that ends with ` ...` stands for any line with the same beginning. Blocks of
    other languages are for reading.

    Args:
        page: The page.
        folder: Where commands run. Python runs in the working folder.
        env: Environment of the commands.
        prepare: Called with each block of commands before they are typed.
        not_run: First lines of the blocks that cannot run here. Their files are saved.

    Returns:
        How many commands, examples and blocks of Python ran.

    Raises:
        AssertionError: Something else was printed than stands on the page.
    """
    names = _namespace()
    ran = 0
    found = blocks(page)
    for number, (language, block) in enumerate(found):
        file = _FILE.match(block) if language in ("python", "toml") else None
        if file:
            (folder / file[1]).write_text(block)
        if first_line(block) in not_run:
            continue
        if file:
            later = "\n".join(text for kind, text in found[number + 1 :] if kind in _RUN)
            if language == "python" and not re.search(rf"\b{file[2]}\b", later):
                _type(_Command(f"python {file[1]}", ""), folder, env)
                ran += 1
        elif language == "python":
            exec(compile(block, f"{page.name}: {first_line(block)}", "exec"), names)
            ran += 1
        elif language == "pycon":
            ran += _prompt(block, names, page)
        elif language == "console":
            prepare(block)
            for command in _commands(block):
                _type(command, folder, env)
                ran += 1
    return ran


def install_here(folder: Path) -> dict[str, str]:
    """Make a virtual environment with all that is installed here, into which a page may install packages of its own.

    Returns:
        What changes in the environment of commands.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    here = Path(sys.executable).parent
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "here.pth").write_text(
        "".join(f"import site; site.addsitedir({path!r})\n" for path in sys.path if path.endswith("site-packages"))
    )
    for script in ("ledgerbeam", "pip"):
        text = (here / script).read_text().replace(str(here), str(folder / "bin"))
        (folder / "bin" / script).write_text(text)
        (folder / "bin" / script).chmod(0o755)
    offline = {"PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    return {"PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}", **offline}


def _namespace() -> dict[str, object]:
    """Return the names of a program that is typed in: those of a module, which its classes can be pickled from."""
    module = sys.modules["page"] = ModuleType("page")
    return module.__dict__


def _prompt(block: str, names: dict[str, object], page: Path) -> int:
    test = doctest.DocTestParser().get_doctest(block, names, page.name, str(page), 0)
    runner = doctest.DocTestRunner(optionflags=doctest.FAIL_FAST | doctest.ELLIPSIS)
    runner.run(test, out=sys.stderr.write, clear_globs=False)
    assert not runner.failures, f"{page.name}: an example prints something else than stands there:\n{block}"
    names.update(test.globs)
    return len(test.examples)


def _commands(block: str) -> Iterator[_Command]:
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        text, _, printed = part.partition("\n")
        yield _Command(text, printed.replace(HOST, os.uname().nodename))


def _type(command: _Command, folder: Path, env: Mapping[str, str]) -> None:
    words, pipe, joined = ["bash", "-c", command.text], subprocess.PIPE, subprocess.STDOUT
    process = subprocess.Popen(words, cwd=folder, env=dict(env), stdout=pipe, stderr=joined, text=True)
    try:
        if _INTERRUPTED.search(command.printed):
            _interrupt(process, command, folder)
        printed, _ = process.communicate(timeout=_HANG_SECONDS)
    finally:
        process.kill()
    found, expected = _comparable(printed, folder), _comparable(_INTERRUPTED.sub("", command.printed), folder)
    for number, line in enumerate(expected[: len(found)]):
        beginning = line.removesuffix(" ...")
        if beginning != line and found[number].startswith(beginning):
            found[number] = line
    assert found == expected, f"$ {command.text}\n{printed}"


def _interrupt(process: subprocess.Popen[str], command: _Command, folder: Path) -> None:
    """Send SIGINT to a job once ten of its outputs are on disk."""
    output = _OUTPUT.search(command.text)
    assert output, f"a command that is interrupted needs --output: {command.text}"
    while len(list((folder / output[1]).glob("*.jsonl"))) < 10:
        assert process.poll() is None, f"the command ended before it could be interrupted: {command.text}"
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)


def _comparable(text: str, folder: Path) -> list[str]:
    """Text without what differs from run to run: progress, the folder, figures, what is counted by the second (of which
    there may be one), and the width of columns."""
    text = _PROGRESS.sub("", text)
    text = text.replace(str(folder), HOME)
    text = re.sub(r"\b[0-9a-f]{12,}\b", "HASH", text)
    text = re.sub(r"\b1 row\b", "1 rows", text)
    text = re.sub(r"\d+(?:[.,:-]\d+)*", "N", text)
    text = re.sub(r"\bN min(?: N s)?\b", "N s", text)  # a time on a busy machine
    return [re.sub(r" +", " ", line).rstrip() for line in text.splitlines()]
