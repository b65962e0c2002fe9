"""Jobs as a user starts them: the installed command in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.ledger import Job, LedgerStore
from ledgerbeam.ledger.opening import open_local_store
from tests.pipelines.base_install import without_extras

FUNCTIONS = '''
"""User functions of the tests."""
import os, random, signal, time

def keep(record):
    return record

def upper(record):
    return {**record, "text": record["text"].upper()}

def odd(record):
    return record if record["id"] % 2 else None

def twice(record):
    return [record, {**record, "copy": True}]

def drop(record):
    return None

def sample(record):
    return {"txt": record["text"].encode(), "json": b"{}"}

def members(record):
    return {"key": record.key, "sizes": {k: len(v) for k, v in record.items()}}

def upper_members(record):
    return {k: v.upper() for k, v in record.items()}

def bad_seven(record):
    if record["id"] == 7:
        raise ValueError("seven is bad")
    return record

def wrong_shape(record):
    return (record,)

def unserialisable(record):
    return {"id": record["id"], "value": object()}

def random_text(record):
    return {"id": record["id"], "r": random.random()}

def slow(record):
    time.sleep(0.002)
    return record

def poison(record):
    if record["id"] == 13:
        os.kill(os.getpid(), signal.SIGKILL)
    return record

def needs_service(record):
    if record["id"] == 7:
        raise ValueError("seven <b>is</b> bad")
    if record["id"] in (3, 13) and not os.path.exists("service-is-up"):
        raise ConnectionError("the service is down")
    return record

def leaves(record):
    if record["id"] == 13:
        os._exit(0)
    return record
'''


JOBS = (
    *("annotate", "convert", "decontaminate", "dedup", "group", "index", "join", "map", "materialize", "pack"),
    *("repartition", "select", "shuffle", "sort", "split", "tokenize"),
)

AUDITED = ("group", "map", "tokenize")


@dataclass(frozen=True)
class Ran:
    """A command that has ended."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def _command(args: Sequence[str | Path], *, audits: bool = True) -> list[str]:
    words = [str(arg) for arg in args]
    if not audits and words and words[0] in AUDITED and "--audit" not in words:
        words[1:1] = ["--audit", "off"]
    if words and words[0] in JOBS and words[:2] != ["index", "verify"] and not {"--workers", "--"} & set(words):
        words[1:1] = ["--workers", "1"]
    return [sys.executable, "-m", "ledgerbeam", *words]


@dataclass(frozen=True)
class Workspace:
    """A folder in which a user works. A job has one worker unless it is told otherwise: more take longer to start."""

    root: Path
    env: dict[str, str]
    prefix: Sequence[str] = ()
    """A command that runs others, such as ``nohup``."""
    started: list[subprocess.Popen[str]] = field(default_factory=list)
    audits: bool = True
    """Whether `run` leaves the audit of a job on, which takes a third of the time of a small one."""

    def run(self, *args: str | Path, **how: Any) -> Ran:
        """Run a command of ours as `call` does."""
        return self.call(*self.prefix, *_command(args, audits=self.audits), **how)

    def call(
        self,
        *command: str,
        timeout: float = 120,
        env: Mapping[str, str] | None = None,
        status: int | None = None,
        err: str | tuple[str, ...] = (),
    ) -> Ran:
        """Run a command to its end. Check its exit status, and texts that it prints on standard error."""
        how: dict[str, Any] = {"cwd": self.root, "env": {**self.env, **(env or {})}, "timeout": timeout}
        done = subprocess.run(command, capture_output=True, text=True, errors="surrogateescape", check=False, **how)
        assert status in (None, done.returncode), done.stdout + done.stderr
        for text in (err,) if isinstance(err, str) else err:
            assert text in done.stderr
        return Ran(done.returncode, done.stdout, done.stderr)

    def succeed(self, *args: str | Path, **how: Any) -> Ran:
        """Run a command of ours that must end with status 0."""
        return self.run(*args, **how, status=0)

    def start(self, *args: str | Path, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        command = [*self.prefix, *_command(args)]
        process = subprocess.Popen(
            command,
            cwd=self.root,
            env={**self.env, **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def is_killed(self, seconds: float, *args: str | Path) -> bool:
        """Start a command of ours, and kill it with its workers after a time. Return False if it has ended before."""
        running = self.start(*args)
        try:
            running.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            running.communicate()
            return True
        return False

    def stop(self) -> None:
        """Kill what a test that failed has left running: its unread output would fail the next one, too."""
        for process in self.started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()

    def jsonl(self, name: str, count: int, *, first: int = 0, width: int = 20) -> Path:
        """Write a manifest of `count` records."""
        numbers = range(first, first + count)
        return self.write(name, ({"id": i, "text": f"text {i} ".ljust(width, "x")} for i in numbers))

    def write(self, name: str, rows: Iterable[Any]) -> Path:
        """Write a manifest of these records."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    def files(self, folder: str) -> dict[str, bytes]:
        """Return every file below a folder but the marks of its owners, by its relative name."""
        root = self.root / folder
        found = [path for path in sorted(root.rglob("*")) if path.is_file() and path.parent.name != "_ledgerbeam"]
        return {str(path.relative_to(root)): path.read_bytes() for path in found}

    def records(self, folder: str) -> list[Any]:
        """Return the records of every JSONL output, in the order of names."""
        found = self.files(folder)
        return [json.loads(line) for name in found if name.endswith(".jsonl") for line in found[name].splitlines()]


def python(code: str, *words: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Ran:
    """Run a program in Python to its end."""
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120, check=False)
    return Ran(done.returncode, done.stdout, done.stderr)


def make_workspace(root: Path) -> Workspace:
    (root / "functions.py").write_text(FUNCTIONS)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "LEDGERBEAM_"))}
    env["LEDGERBEAM_CACHE"] = os.environ["LEDGERBEAM_CACHE"]  # of this session
    return Workspace(root, without_extras(env))


@pytest.fixture
def workspace(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Workspace]:
    """An empty folder. Quick tests run jobs without an audit, `make slow` and `make long` with it."""
    made = replace(make_workspace(tmp_path), audits=any(map(request.node.get_closest_marker, ("slow", "long"))))
    yield made
    made.stop()


FAILING = (
    *("map", "functions:needs_service", "in/*.jsonl", "--output", "out", "--to", "jsonl"),
    *("--task-bytes", "200", "--ledger", "L", "--workers", "1"),
)
"""A job of which tasks fail for two reasons: of `ConnectionError` two, of `ValueError` one."""


def run_failing(workspace: Workspace, *options: str) -> None:
    """Run `FAILING` over three sources: in `a` tasks fail for both reasons, in `b` for one, in `c` none does."""
    for number, name in enumerate("abc"):
        workspace.jsonl(f"in/{name}.jsonl", 10, first=10 * number)
    workspace.run(*FAILING, *options, status=3)


@pytest.fixture(scope="session")
def failed_job(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """The folder of a job with failures, ended, which was given a secret. Tests only look at it."""
    workspace = make_workspace(tmp_path_factory.mktemp("failed"))
    run_failing(workspace, "--storage-options", '{"password": "hunter2"}')
    return workspace


HEAD = """
import json, sys
import ledgerbeam as lb

def show(**values):
    print(json.dumps(values, default=str), file=sys.__stdout__, flush=True)

"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LedgerStore]:
    """A local ledger of a job that has done nothing."""
    made = open_local_store(str(tmp_path / "L"), create=True)
    made.open_job(Job("map", {}))
    yield made
    made.close()


@dataclass(frozen=True)
class Programs:
    """Runs programs in a workspace; `show(name=value, ...)` in them makes a row."""

    workspace: Workspace

    def write(self, text: str, name: str = "program.py") -> Path:
        path = self.workspace.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(HEAD + textwrap.dedent(text))
        return path

    def command(self, text: str, name: str = "program.py") -> list[str]:
        return [sys.executable, str(self.write(text, name))]

    def run(self, text: str, *, name: str = "program.py", **how: Any) -> Ran:
        env = {"PYTHONPATH": os.getcwd()}
        return self.workspace.call(*self.command(text, name), env=env, timeout=240, **how)

    def rows(self, text: str, **more: Any) -> list[Any]:
        return [json.loads(line) for line in self.run(text, **more, status=0).out.splitlines()]


@pytest.fixture
def programs(workspace: Workspace) -> Programs:
    return Programs(workspace)
