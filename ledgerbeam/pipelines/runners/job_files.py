"""Files by which the processes of a run exchange jobs (JSON without secrets), sources, committed tasks and texts."""

from __future__ import annotations

import os
import pickle
import site
import stat
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, is_dataclass, replace
from importlib import import_module
from types import NoneType, UnionType
from typing import IO, Any, get_args, get_origin, get_type_hints

import orjson

from ledgerbeam._base.redaction import redact_streams, register_environment, register_secrets, without_secrets
from ledgerbeam.errors import LedgerError, SourceNotFoundError, StorageError
from ledgerbeam.io import publish_bytes
from ledgerbeam.io.storage.files import read_bytes
from ledgerbeam.ledger.model.values import decode, encode
from ledgerbeam.ledger.worker.run_folders import file_errors
from ledgerbeam.pipelines.console.reporter import RunConsole
from ledgerbeam.pipelines.jobs.spec import JobSpec, work_folder_of

# Environment variable with the storage options, as JSON. They may hold credentials, which must not be in a file.
STORAGE_OPTIONS = "LEDGERBEAM_STORAGE_OPTIONS"
DIED = "worker-died"  # written when a thread of the runner failed, as it does when a worker process dies
DONE = "done"  # written when the wave has run to its end
STARTED = "started"  # written when the pipeline is given to its workers
TRACEBACK = "traceback"  # the traceback that ended the wave, if no worker had reported the error
_KEPT = "job.json"

# Commands of all kinds of jobs, by module. The class of ``large-stars`` is `LargeStarsJob`. A process imports only the
# module of its job.
KINDS = {
    "datasets.megatron": ("tokenize",),
    "datasets.packs": ("pack",),
    "dedup.exact": ("decide", "dedup"),
    "dedup.lines": ("find-lines", "hash-lines", "lines"),
    "dedup.near": ("candidates", "cluster", "near", "texts", "verify"),
    "dedup.pairs": ("labels", "large-stars", "pairs", "sign", "small-stars", "stars"),
    "exchange.commands": ("group", "join", "repartition", "shuffle", "sort", "split"),
    "exchange.jobs": ("merge", "scatter"),
    "jobs.map": ("annotate", "map"),
    "jobs.one_stage": ("convert", "decontaminate", "index", "materialize", "select"),
    "jobs.pipeline": ("pipeline",),
}


def launched_job(job: JobSpec, run: str, console: RunConsole, run_dir: str | None = None) -> JobSpec:
    """Return a job to send to other processes, with the ID and the folder of a run; None keeps the job's folder."""
    # If a program called the job, other processes find modules where the program does.
    is_program = console.command is None
    path = tuple(dict.fromkeys(os.path.abspath(folder) for folder in sys.path)) if is_program else ()
    return replace(job, run=run, run_dir=run_dir or job.run_dir, import_path=path)


def dump_job_file(path: str, job: JobSpec) -> None:
    """Write a job, for `load_job_file`, to a new file."""
    with open(path, "xb") as file:
        file.write(dump_job(job))


def load_job_file(path: str) -> JobSpec:
    """Return the job of a launcher's file, and redact its secrets in this process from now on; see `open_own`."""
    storage_options = orjson.loads(os.environ[STORAGE_OPTIONS])
    register_environment()
    register_secrets(storage_options)
    redact_streams()
    with file_errors(path, "read"), open_own(path) as file:
        job = file.read()
    return load_job(job, storage_options)


def environment_of(job: JobSpec) -> dict[str, str]:
    """Return the environment for a process that calls `load_job_file`: this one, plus the job's storage options."""
    return {**os.environ, STORAGE_OPTIONS: orjson.dumps(job.storage_options).decode()}


def take_import_path(folders: Iterable[str]) -> None:
    """Add folders to the import path: after the modules of Python, which stay visible, and before installed ones."""
    installed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()}
    known = {os.path.abspath(folder) for folder in sys.path}
    place = next((number for number, folder in enumerate(sys.path) if folder in installed), len(sys.path))
    sys.path[place:place] = [folder for folder in folders if folder not in known]


def keep_job(job: JobSpec) -> None:
    """Write a job beside its ledger, for `kept_job`."""
    publish_bytes(f"{job.work_folder}/{_KEPT}", dump_job(job), job.storage_options)


def kept_job(ledger: str, storage_options: dict[str, Any]) -> JobSpec:
    """Return the job of the last run of a ledger."""
    url = f"{work_folder_of(ledger)}/{_KEPT}"
    try:
        data = read_bytes(url, storage_options)
    except SourceNotFoundError:
        why = "the file does not exist, because no run of a job with a function has finished a task"
        raise LedgerError(f"{url}: {why}; run the job first") from None
    return load_job(data, storage_options)


def dump_job(job: JobSpec) -> bytes:
    """Return a job as JSON, without the storage options, which may hold credentials and must not be in a file."""
    return encode({"command": job.command, "job": {**asdict(job), "storage_options": {}}})


def load_job(data: bytes, storage_options: dict[str, Any]) -> JobSpec:
    """Return the job that `dump_job` wrote."""
    found = decode(data)
    made = job_class(found["command"])
    job: JobSpec = _built(made, made.read_fields(found["job"]))
    return replace(job, storage_options=storage_options)


def job_class(command: str) -> Any:
    """Import the class of the jobs of a command."""
    module = next(module for module, commands in KINDS.items() if command in commands)
    return getattr(import_module(f"ledgerbeam.pipelines.{module}"), f"{command.title().replace('-', '')}Job")


def _built(kind: Any, value: Any) -> Any:
    """Return a value of JSON as the annotated type of a field: as a dataclass or a tuple, else unchanged."""
    if get_origin(kind) is UnionType:
        others = [other for other in get_args(kind) if other is not NoneType]
        # Of a name or an object that stands for one: objects are mappings here.
        (kind, *_) = sorted(others, key=lambda other: is_dataclass(other) != isinstance(value, Mapping))
    if is_dataclass(kind) and isinstance(value, Mapping):
        hints = get_type_hints(kind)
        return kind(**{name: _built(hints[name], part) for name, part in value.items()})  # type: ignore[operator]
    if get_origin(kind) is tuple:
        return tuple(_built(get_args(kind)[0], part) for part in value)
    return value


def dump_rows(path: str, rows: Iterable[Any], *, adds: bool = False) -> None:
    """Write sources of a wave or summaries of committed tasks to a new file, or add them to a file, for `load_rows`."""
    with open(path, "ab" if adds else "xb") as file:
        for row in rows:
            pickle.dump(row, file)


def load_rows(path: str) -> Iterator[Any]:
    """Yield the rows that `dump_rows` wrote; raises like `open_own`."""
    with file_errors(path, "read"), open_own(path) as file:
        size = os.fstat(file.fileno()).st_size
        while file.tell() < size:
            yield pickle.load(file)  # noqa: S301 - written by our launcher, in its folder


def touch(run_dir: str, name: str, text: str = "") -> None:
    """Write a text, without its secrets, to a file in the folder of a run."""
    path = os.path.join(run_dir, name)
    with file_errors(path), open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(without_secrets(text))


def read_text(run_dir: str, name: str) -> str:
    """Return the text of a file in the folder of a run; empty if the file does not exist."""
    path = os.path.join(run_dir, name)
    with file_errors(path, "read"):
        try:
            with open(path, encoding="utf-8") as file:
                return file.read()
        except FileNotFoundError:
            return ""


def open_own(path: str) -> IO[bytes]:
    """Open a file that the launcher wrote, and this user owns: unpickling a foreign file could run any code.

    Raises:
        StorageError: The file cannot be read, or belongs to another user.
    """
    with file_errors(path, "read"):
        file = open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")  # noqa: SIM115
    found = os.fstat(file.fileno())
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        file.close()
        raise StorageError(f"{path}: expected a file of user {os.geteuid()}, found one of user {found.st_uid}")
    return file
