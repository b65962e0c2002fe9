"""Places of a job: this disk, S3, or S3 with a cluster to do the work; and what must be true after a change."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import s3fs

from tests.changes import work
from tests.pipelines.conftest import Ran, Workspace
from tests.servers import pins
from tests.servers.s3 import S3Server

FUNCTION = "changes_function"  # name of the module with the user function; every test has its own copy
RECORDS = 200
TASK_BYTES = "1500"  # so large that a source makes half a dozen tasks
CHANGING_RECORDS = range(0, RECORDS, 20)
"""The records that change their source, one in each task: whichever a run begins with, all but those in work follow it.
The first that is mapped does it."""

FAILING_RECORDS = (60,)  # those that fail: one task
OWNER_FOLDER = "_ledgerbeam/"
_ARMED = "spare/new.jsonl.armed"
NOTES = b"somebody else's"


def lines(name: str, *, changed: bool = False, count: int = RECORDS, do: Mapping[str, str] | None = None) -> bytes:
    """Return a source: the content as it is first, or after a change of it.

    Args:
        name: Of the source, a part of each record.
        changed: Whether it is the content after the change.
        count: Number of records.
        do: What some of the records ask for; after the change they are as long, and ask for nothing.
    """
    word = "other" if changed else "first"
    rows = [{"id": f"{name}-{number:05d}", "text": f"{word} {number:05d} of {name}"} for number in range(count)]
    if do is not None:
        asked = len(json.dumps(dict(do)))
        for number in FAILING_RECORDS if do["do"] == "fail" else CHANGING_RECORDS:
            rows[number] |= {"pad": "x" * (asked - len('{"pad": ""}'))} if changed else do
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


class Place(ABC):
    """One folder of a test, with a job over the sources in it."""

    name: str

    def __init__(self, workspace: Workspace, env: Mapping[str, str], options: Sequence[str], code: Path) -> None:
        self.workspace = workspace
        self.code = code
        paths = [str(code), str(pins.ROOT), os.environ.get("PYTHONPATH", "")]
        self.env = {
            **env,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "LEDGERBEAM_CACHE": str(workspace.root / "cache"),
        }
        self._options = options
        code.mkdir(exist_ok=True)
        self.write_function(Path(work.__file__).read_text(encoding="utf-8"))

    @property
    @abstractmethod
    def root(self) -> str:
        """Of everything that a test writes, without a trailing slash."""

    @abstractmethod
    def put(self, name: str, data: bytes) -> None: ...

    @abstractmethod
    def get(self, name: str) -> bytes: ...

    @abstractmethod
    def delete(self, name: str) -> None: ...

    @abstractmethod
    def copy(self, folder: str, to: str) -> None: ...

    @abstractmethod
    def remove(self, folder: str) -> None: ...

    @abstractmethod
    def files(self, folder: str) -> dict[str, bytes]:
        """Return all that lies in a folder, by relative name."""

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """Return the relative names of all that lies in a folder."""

    def url(self, name: str) -> str:
        """Return the URL of a file or folder."""
        return f"{self.root}/{name}"

    def outputs(self, folder: str = "out") -> dict[str, bytes]:
        """Return what a job has written, without the owner's mark."""
        found = self.files(folder)
        return {name: found[name] for name in found if not name.startswith(OWNER_FOLDER) and name != "notes.md"}

    def write_sources(self, *, do: str = "nothing") -> None:
        """Write two sources, and as long what may take the place of the first, which may hold records that do it."""
        asked = {"do": do, "at": self.url("in/a.jsonl"), "new": self.url("spare/new.jsonl")}
        held = None if do == "nothing" else asked
        self.put("spare/new.jsonl", lines("n", count=40) if do == "appended" else lines("a", changed=True, do=held))
        self.put("in/a.jsonl", lines("a", do=held))
        self.put("in/b.jsonl", lines("b"))
        self.put("in/notes.md", NOTES)
        self.put("out/notes.md", NOTES)
        self.put(_ARMED, b"")

    def disarm(self) -> None:
        """From here on no record asks for anything; a change that a record has made was the only one."""
        if os.path.basename(_ARMED) in self.names(os.path.dirname(_ARMED)):
            self.delete(_ARMED)

    def change(self, what: str) -> None:
        """Change the first source at once, in a process that has the credentials of the place."""
        words = [sys.executable, "-c", "import sys, work; work.change(*sys.argv[1:])"]
        env = {**os.environ, **self.env, "PYTHONPATH": os.path.dirname(work.__file__)}
        arguments = [what, self.url("in/a.jsonl"), self.url("spare/new.jsonl")]
        subprocess.run([*words, *arguments], env=env, check=True, capture_output=True)

    def check_bystanders(self) -> None:
        """Check that what is none of the job's is as it was."""
        for name in ("in/notes.md", "out/notes.md"):
            assert self.get(name) == NOTES

    def write_function(self, text: str) -> None:
        (self.code / f"{FUNCTION}.py").write_text(text)
        shutil.rmtree(self.code / "__pycache__", ignore_errors=True)

    def command(
        self, *, output: str = "out", ledger: str = "ledger", task_bytes: str = TASK_BYTES, more: Sequence[str] = ()
    ) -> list[str]:
        places = ("--output", self.url(output), "--ledger", self.url(ledger))
        words = ["map", f"{FUNCTION}:work", self.url("in/*.jsonl"), *places, "--to", "jsonl"]
        return [*words, "--task-bytes", task_bytes, "--json", *more, *self._options]

    def job(self, *, env: Mapping[str, str] | None = None, **options: Any) -> Ran:
        return self.workspace.run(*self.command(**options), env={**self.env, **(env or {})}, timeout=240)

    def run(self, *words: str) -> Ran:
        return self.workspace.run(*words, env=self.env)

    def clean(self) -> dict[str, bytes]:
        """Return what one undisturbed job makes of the sources as they are, on the local runner and this disk."""
        names = [name for name in self.files("in") if name.endswith(".jsonl")]
        sources = {name: self.get(f"in/{name}") for name in names}
        function = (self.code / f"{FUNCTION}.py").read_text()
        key = (function, tuple(sources.items()))
        if key not in _clean:
            _clean[key] = _run_clean(self.workspace, sources, function)
        return _clean[key]


_clean: dict[tuple[str, tuple[tuple[str, bytes], ...]], dict[str, bytes]] = {}
"""Outputs of clean runs by function and sources: many tests end with the same."""


def _run_clean(workspace: Workspace, sources: Mapping[str, bytes], function: str) -> dict[str, bytes]:
    root = Path(tempfile.mkdtemp(dir=workspace.root))
    place = LocalPlace(Workspace(root, {**workspace.env, "CHANGES_OFF": "1"}))
    place.write_function(function)
    for name, data in sources.items():
        place.put(f"in/{name}", data)
    ran = place.job()
    assert ran.status == 0, ran.err
    return place.outputs()


class LocalPlace(Place):
    """Everything on this disk."""

    name = "local"

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace, {}, ["--workers", "1"], workspace.root / "code")

    @property
    def root(self) -> str:
        return str(self.workspace.root)

    def put(self, name: str, data: bytes) -> None:
        path = self.workspace.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def get(self, name: str) -> bytes:
        return (self.workspace.root / name).read_bytes()

    def delete(self, name: str) -> None:
        (self.workspace.root / name).unlink()

    def copy(self, folder: str, to: str) -> None:
        shutil.copytree(self.workspace.root / folder, self.workspace.root / to)

    def remove(self, folder: str) -> None:
        shutil.rmtree(self.workspace.root / folder)

    def files(self, folder: str) -> dict[str, bytes]:
        return self.workspace.files(folder)

    def names(self, folder: str) -> list[str]:
        root = self.workspace.root / folder
        return [str(path.relative_to(root)) for path in root.rglob("*")]


class S3Place(Place):
    """Sources, indexes, ledger and outputs on an S3 server."""

    name = "S3"

    def __init__(
        self,
        workspace: Workspace,
        server: S3Server,
        options: Sequence[str] = ("--workers", "1"),
        code: Path | None = None,
    ) -> None:
        super().__init__(workspace, server.env, options, code or workspace.root / "code")
        self._bucket = server.bucket()
        self._options_of_store = server.options

    @property
    def root(self) -> str:
        return f"s3://{self._bucket}"

    @property
    def _store(self) -> Any:
        return s3fs.S3FileSystem(**self._options_of_store, skip_instance_cache=True)

    def put(self, name: str, data: bytes) -> None:
        self._store.pipe_file(self.url(name), data)

    def get(self, name: str) -> bytes:
        found: bytes = self._store.cat_file(self.url(name))
        return found

    def delete(self, name: str) -> None:
        self._store.rm_file(self.url(name))

    def copy(self, folder: str, to: str) -> None:
        for name, data in self.files(folder).items():
            self.put(f"{to}/{name}", data)

    def remove(self, folder: str) -> None:
        self._store.rm(self.url(folder), recursive=True)

    def files(self, folder: str) -> dict[str, bytes]:
        store = self._store
        return {name: store.cat_file(f"{self._bucket}/{folder}/{name}") for name in self.names(folder)}

    def names(self, folder: str) -> list[str]:
        root = f"{self._bucket}/{folder}/"
        return [name[len(root) :] for name in self._store.find(root)]


class ClusterPlace(S3Place):
    """The same, with the work done by a Flink cluster."""

    name = "Flink"


def failures(place: Place, ledger: str = "ledger") -> list[dict[str, Any]]:
    told = place.run("ledger", "failures", place.url(ledger), "--json")
    found: list[dict[str, Any]] = json.loads(told.out)["failures"]
    return found


def check_right(place: Place, ran: Ran, *, ledger: str = "ledger") -> None:
    """Check that a job is done, with exactly what one clean run makes of the sources as they are now."""
    assert ran.status == 0, ran.err
    assert ran.json["complete"] is True
    assert _of_listed(place) == place.clean()
    verified = place.run("ledger", "verify", place.url(ledger))
    assert verified.status == 0, verified.out
    place.check_bystanders()


def check_refused(place: Place, ran: Ran, *words: str, before: dict[str, bytes]) -> None:
    """Check that a job has done nothing but say why, and what to do."""
    assert ran.status in (1, 2), (ran.status, ran.out, ran.err)
    assert "Traceback" not in ran.err
    for word in words:
        assert word in ran.err, ran.err
    assert place.outputs() == before
    place.check_bystanders()


def _of_listed(place: Place) -> dict[str, bytes]:
    """Outputs of the sources that are there; those of one that is gone stay, and `status` tells of it."""
    there = [name for name in place.files("in") if name.endswith(".jsonl")]
    return {name: data for name, data in place.outputs().items() if name.startswith(tuple(there))}
