"""The job of a ledger, and its runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

from ledgerbeam.errors import JobMismatchError, LedgerError, UsageError
from ledgerbeam.ledger.lmdb import tables
from ledgerbeam.ledger.lmdb.sources import restart
from ledgerbeam.ledger.lmdb.tables import Transaction
from ledgerbeam.ledger.model.identity import run_id
from ledgerbeam.ledger.model.job import Job, OnJobChange, job_changed_error
from ledgerbeam.ledger.model.rows import Audit, SetUps, WorkTime, read_audit, read_set_ups, read_work_time
from ledgerbeam.ledger.model.store import Noted
from ledgerbeam.ledger.model.values import decode, encode, flag, integer, mapping, recordable, rows, seconds, text

MOST_LINES = 60  # largest number of lines of a message about the differences of two jobs

RUN_FIELDS: dict[str, Callable[[Any], Any]] = {
    "began": seconds,
    "ended": seconds,
    "outcome": text,
    "tidied": flag,
    "listed": integer,
    "listing_finished": flag,
    "set_ups": read_set_ups,
    "time": read_work_time,
    "audit": read_audit,
    "info": mapping,
}
"""Functions that check and decode the fields of a run."""

_ID = re.compile(rb"[0-9a-f]{32}")


def read_id(txn: Transaction, key: bytes = tables.KEY_ID) -> str:
    """Return the id of an environment, or the id under another key of `meta`.

    Raises ValueError if it is missing.
    """
    row = txn.get(tables.META, key)
    if row is None or _ID.fullmatch(row) is None:
        raise ValueError(f"expected an id of 32 hexadecimal digits in the table {tables.META}, found {row!r}")
    return row.decode()


def read_job(txn: Transaction) -> Job | None:
    """Return the job that the ledger was last opened for."""
    row = txn.get(tables.META, tables.KEY_JOB)
    return None if row is None else decode_job(row)


def open_job(txn: Transaction, job: Job, on_change: OnJobChange, path: str, number: int = 0) -> None:
    """Open the ledger for a job; see `store.LedgerStore.open_job`."""
    stored = read_job(txn)
    fingerprint = job.fingerprint.encode()
    if txn.get(tables.META, tables.KEY_FINGERPRINT) == fingerprint:
        return
    if stored is not None and on_change == "refuse":
        raise JobMismatchError(mismatch(job, stored, path))
    if stored is not None and on_change == "restart":
        # Names of outputs are relative to their folder. This job does not touch outputs in another folder.
        restart(txn, number, supersedes=stored.parameters.get("output") == job.parameters.get("output"))
    txn.put(tables.META, tables.KEY_JOB, encode(job.with_texts().as_row()))
    txn.put(tables.META, tables.KEY_FINGERPRINT, fingerprint)


def mismatch(job: Job, stored: Job, path: str) -> str:
    """Return the message for a job that differs from the ledger's job, with the remedies."""
    found = job.differences(stored) or ["the format of the ledger's jobs"]
    lines = [f"  {line}" for difference in found for line in difference.splitlines()]
    more = [f"  and {len(lines) - MOST_LINES:,} more lines"] if len(lines) > MOST_LINES else []
    return "\n".join(
        [
            f"ledger {path}: it belongs to a job that differs in",
            *lines[:MOST_LINES],
            *more,
            "run with --on-job-change=restart to do everything again,",
            "with --on-job-change=accept to keep what is done, or give another --ledger",
            "(in Python: on_job_change='restart', 'accept', or another ledger=)",
        ]
    )


def check_fingerprint(txn: Transaction, fingerprint: str, path: str) -> None:
    """Check that the ledger still has the job of a writer. Raises JobMismatchError."""
    found = txn.get(tables.META, tables.KEY_FINGERPRINT)
    if found != fingerprint.encode():
        raise job_changed_error(path, fingerprint, found.decode() if found else "none")


def require_info(info: Mapping[str, Any]) -> None:
    """Check the info of a run. Raises UsageError if the ledger could not decode a value after storing it."""
    with recordable("the info of a run", UsageError):
        _check_info(dict(info))


def begin_run(txn: Transaction, info: Mapping[str, Any], now: float) -> str:
    """Add a run and return its id."""
    known = all_runs(txn)  # all of them: the outcome of a hidden run would be unknown
    run = run_id(1 + (int(known[-1]["id"]) if known else 0))
    add_run(txn, run, info, now)
    return run


def add_run(txn: Transaction, run: str, info: Mapping[str, Any], now: float) -> None:
    """Add a run under its id. Raises ValueError for info that `require_info` refuses."""
    _check_info(info)
    _put(txn, run, {"began": now, "listing_finished": False, "info": dict(info)})


def change_run(txn: Transaction, run: str, changed: Mapping[str, Any]) -> None:
    """Merge changed fields into the row of a run. Changes may arrive in any order. An unknown run is ignored."""
    if txn.get(tables.RUNS, tables.run_key(run)) is None:
        return
    known = get_run(txn, run)
    news = {name: value for name, value in changed.items() if value is not None}
    if (known["ended"] or 0) > news.get("ended", 0):
        news = {name: value for name, value in news.items() if name not in ("ended", "outcome", "tidied")}
    listed = max((row["listed"] for row in (known, news) if row.get("listed") is not None), default=None)
    finished = known["listing_finished"] or news.get("listing_finished", False)
    # The listing's fields only grow.
    set_ups = max(_noted("set_ups", known, news), key=itemgetter("times"), default=None)
    time = max(_noted("time", known, news), key=lambda found: sum(found["seconds"].values()), default=None)
    audit = max(_noted("audit", known, news), key=itemgetter("tasks"), default=None)
    most = {"set_ups": set_ups, "time": time, "audit": audit}
    _put(txn, run, {**known, **news, "listed": listed, "listing_finished": finished, **most})


def update_run(txn: Transaction, run: str, changed: Mapping[str, Any]) -> None:
    """Replace fields of the row of a run. Raises LedgerError for an unknown run."""
    _put(txn, run, {**get_run(txn, run), **changed})


def noted(found: Noted) -> dict[str, Any]:
    """Return the field of a run's row that stores a measurement: its name and its value."""
    match found:
        case SetUps():
            return {"set_ups": found._asdict()}
        case WorkTime():
            return {"time": found.as_dict()}
        case Audit():
            return {"audit": found._asdict()}


def last_run(txn: Transaction) -> dict[str, Any] | None:
    """Return the newest run, with its id; None without runs."""
    newest = txn.last(tables.RUNS)
    return None if newest is None else {"id": tables.read_run_key(newest[0]), **read_run(newest[1])}


def newest_number(txn: Transaction) -> int:
    """Return the number of the newest run; 0 without runs."""
    newest = txn.last(tables.RUNS)
    return 0 if newest is None else int(tables.read_run_key(newest[0]))


def all_runs(txn: Transaction) -> list[dict[str, Any]]:
    """Return all runs in order."""
    return [{"id": tables.read_run_key(key), **read_run(row)} for key, row in txn.scan(tables.RUNS, b"")]


def _noted(name: str, *rows: Mapping[str, Any]) -> list[Any]:
    return [row[name] for row in rows if row.get(name)]


def get_run(txn: Transaction, run: str) -> dict[str, Any]:
    """Return the row of a run. Raises LedgerError for an unknown run."""
    row = txn.get(tables.RUNS, tables.run_key(run))
    if row is None:
        raise LedgerError(f"run {run!r} is not in this ledger; pass an id that begin_run has returned")
    return read_run(row)


def _put(txn: Transaction, run: str, row: Mapping[str, Any]) -> None:
    txn.put(tables.RUNS, tables.run_key(run), encode(row))


_DEEPEST = 64


def decode_job(row: bytes) -> Job:
    """Decode the job in `meta`."""
    return Job.from_row(shallow(mapping(decode(row))))


def read_run(row: bytes) -> dict[str, Any]:
    """Decode a row of `runs`."""
    found = mapping(decode(row))
    found.pop("id", None)
    for name, read in RUN_FIELDS.items():
        value = found.get(name)
        found[name] = None if value is None and name not in ("began", "listing_finished", "info") else read(value)
    _check_info(found["info"])
    return found


def _check_info(value: Any) -> dict[str, Any]:
    """Check the types of the values in a run's info that commands read. Other values are not checked."""
    info = shallow(mapping(value))
    for name in ("host", "runner", "folder", "place"):
        text(info.get(name, ""))
    for name in ("pid", "workers"):
        integer(info.get(name, 0))
    for word in rows(info.get("command", [])):
        text(word)
    return info


def shallow(value: Any, deepest: int = _DEEPEST) -> Any:
    """Check that a JSON value is not nested too deeply for Python, and return it."""
    if not deepest:
        raise ValueError(f"expected a value of at most {_DEEPEST} levels of nesting, found more")
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    for item in inner:
        shallow(item, deepest - 1)
    return value
