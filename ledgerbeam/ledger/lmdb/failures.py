"""Failed tasks and worker deaths. They keep a source open, are shown to people, and quarantine a task.

A task can also fail after it has fanned out, while its other children are planned. Its failures count until a task
below it finishes in a later run. In a remote ledger, failures, deaths and leaves arrive in any order. So each has a
`Stamp`, and stamps alone decide: a failure counts unless a leaf below the task has a later stamp.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from struct import Struct
from typing import Any, NamedTuple

from ledgerbeam.ledger.lmdb.tables import APPLIED, ATTEMPTS, COMPLETED, DELTA, FAILED, SOURCES, Transaction
from ledgerbeam.ledger.model.identity import ID_BYTES, node_id
from ledgerbeam.ledger.model.rows import Failure, FailureRow, Mark, failure_text
from ledgerbeam.ledger.model.store import MAX_ATTEMPTS
from ledgerbeam.ledger.model.values import decode, encode, integer, mapping, rows, seconds, text

CLEARED = (FAILED, ATTEMPTS)  # tables that have no row of a finished task

KEPT_DEATHS = 64
"""Number of newest deaths of a task that are kept. A task is not started again after `MAX_ATTEMPTS` deaths."""

PASSED = Struct("<Qd")
"""The greatest `Stamp` of a leaf below a task that fanned out. In a sidecar, it follows the delta in `applied`."""


class Stamp(NamedTuple):
    """The time of a failure, death or leaf: the number of its run, then seconds since 1970 UTC."""

    number: int
    at: float


NEVER_CLEARED = 2**62  # the number of failures that no leaf clears


class Death(NamedTuple):
    """A death of a worker, or a failure that counts as one."""

    number: int
    at: float
    place: int  # index among several deaths of the task in one commit
    broke: bool  # whether it was a failure


@dataclass(slots=True)
class TaskFailures:
    """The failures and worker deaths of one task."""

    task: str = ""
    failed: dict[str, Any] | None = None  # row of `failed`; None if only workers died
    deaths: set[Death] = field(default_factory=set)  # deaths of its workers, the newest `KEPT_DEATHS`

    @classmethod
    def of(cls, failed: bytes | None, attempts: bytes | None) -> TaskFailures:
        """Decode the rows of a task in the tables `failed` and `attempts`; None stands for a missing row."""
        found = cls()
        if failed is not None:
            row = read_failure(failed)
            found.task = row["task"]
            found.failed = row if row["attempts"] else None
        if attempts is not None:
            found.task, deaths = read_deaths(attempts)
            found.deaths = {Death(*death) for death in deaths}
        return found

    @classmethod
    def read(cls, txn: Transaction, key: bytes) -> TaskFailures:
        """Read the rows of a task; `key` is its source and its node."""
        return cls.of(txn.get(FAILED, key), txn.get(ATTEMPTS, key))

    @property
    def quarantined(self) -> bool:
        """Whether the task is not started again until its failure is forgotten."""
        return len(self.deaths) >= MAX_ATTEMPTS

    def fail(self, row: Mapping[str, Any]) -> None:
        """Add a failure, given as a row of `failed`. The text of the newest failure is kept."""
        self.task = self.task or row["task"]
        if self.failed is None:
            self.failed = dict(row)
        else:
            attempts = self.failed["attempts"] + row["attempts"]
            newer = max((self.failed, dict(row)), key=itemgetter("number", "last", "task", "reason", "error"))
            self.failed = {**newer, "attempts": attempts}

    def clear(self, passed: Stamp) -> None:
        """Drop the failures and deaths that are older than a leaf below the task."""
        if self.failed is not None and Stamp(self.failed["number"], self.failed["last"]) < passed:
            self.failed = None
        self.deaths = {death for death in self.deaths if death[:2] >= passed}

    def write(self, txn: Transaction, key: bytes) -> None:
        """Write the rows of the task, or delete them."""
        failed = self.failed
        if failed is None and self.quarantined:
            number, at, *_ = max(self.deaths)
            failed = {"task": self.task, "reason": "", "error": "", "attempts": 0, "last": at, "number": number}
        _put_or_delete(txn, FAILED, key, failed)
        deaths = [list(death) for death in sorted(self.deaths)[-KEPT_DEATHS:]]
        _put_or_delete(txn, ATTEMPTS, key, {"task": self.task, "deaths": deaths} if deaths else None)

    def shown(self, url: str, key: bytes) -> FailureRow:
        """Return the failure as a row for people."""
        row = self.failed or {"reason": "", "error": "", "attempts": 0, "last": 0.0}
        died = [death for death in self.deaths if not death.broke]
        by_death = self.quarantined and bool(died)
        return FailureRow(
            url=url,
            source_id=key[:ID_BYTES],
            node=key[ID_BYTES:],
            task=failure_text(self.task),
            reason=f"its worker died {len(self.deaths)} times" if by_death else failure_text(row["reason"]),
            error=failure_text(row["error"]),
            attempts=row["attempts"] + len(died),
            last=max([row["last"], *(death.at for death in self.deaths)]) if self.quarantined else row["last"],
            quarantined=self.quarantined,
        )


def clear_failures(txn: Transaction, source: bytes) -> None:
    """Drop the failures and worker deaths of a source."""
    for table in CLEARED:
        if txn.count(table):
            txn.delete_prefix(table, source)


def failures_since(txn: Transaction, source: bytes, number: int) -> dict[bytes, TaskFailures]:
    """Return the failures of a source that were recorded with `number` or a greater one, by the key of the task."""
    found = {key: TaskFailures.read(txn, key) for table in CLEARED for key, _ in txn.scan(table, source)}
    for task in found.values():
        task.clear(Stamp(number, 0.0))
    return found


def still_counts(txn: Transaction, source: bytes, node: bytes, stamp: Stamp) -> bool:
    """Return whether a failure or death of a task counts: the task is unfinished, and no leaf below it is newer."""
    if txn.get(SOURCES, source) is None or txn.get(COMPLETED, source) is not None:
        return False
    row = txn.get(APPLIED, source + node)
    return row is None or (DELTA.unpack_from(row)[0] >= 0 and stamp >= passed_at(row))


def passed_at(row: bytes) -> Stamp:
    """Return the stamp of the newest leaf below a task that fanned out, from its row of `applied`.

    A local ledger does not store it: the result is then the lowest stamp.
    """
    return Stamp(*PASSED.unpack_from(row, DELTA.size)) if len(row) > DELTA.size else Stamp(0, 0.0)


def clear_passed(txn: Transaction, key: bytes, passed: Stamp | None) -> None:
    """Drop failures of a task after a leaf below it was recorded: failures older than `passed`, or all for None."""
    task = TaskFailures() if passed is None else TaskFailures.read(txn, key)
    if passed is not None:
        if task.failed is None and not task.deaths:
            return
        task.clear(passed)
    task.write(txn, key)


def record_failures(txn: Transaction, failures: Iterable[Failure], stamp: Stamp) -> int:
    """Record those failures of a commit that count (see `still_counts`), and return their number."""
    recorded = 0
    places: Counter[bytes] = Counter()
    for failure in failures:
        node = node_id(failure.source_id, failure.lineage)
        if not still_counts(txn, failure.source_id, node, stamp):
            continue
        key = failure.source_id + node
        task = TaskFailures.read(txn, key)
        task.fail(failure_row(failure, stamp))
        if failure.broke:
            task.deaths.add(Death(*stamp, places[key], broke=True))
            places[key] += 1
        task.write(txn, key)
        recorded += 1
    return recorded


def failure_row(failure: Failure, stamp: Stamp) -> dict[str, Any]:
    """Return the row of a task that failed for the first time."""
    return {
        "task": failure.task,
        "reason": failure.reason,
        "error": failure.error,
        "attempts": 1,
        "last": stamp.at,
        "number": stamp.number,
    }


def count_deaths(txn: Transaction, marks: Iterable[Mark], stamp: Stamp) -> list[Mark]:
    """Count worker deaths against the marked tasks that are unfinished; return those that are now quarantined."""
    quarantined = []
    places: Counter[bytes] = Counter()
    for mark in marks:
        if not still_counts(txn, mark.source_id, mark.node, stamp):
            continue
        key = mark.source_id + mark.node
        task = TaskFailures.read(txn, key)
        task.task = task.task or mark.name
        task.deaths.add(Death(*stamp, places[key], broke=False))
        places[key] += 1
        task.write(txn, key)
        if task.quarantined:
            quarantined.append(mark)
    return quarantined


def has_failed(txn: Transaction, source: bytes, number: int) -> bool:
    """Return whether a source has a quarantined task, or a failure of a run with this number or a greater one."""
    return any(
        read_failure(row)["number"] >= number or TaskFailures.of(None, txn.get(ATTEMPTS, key)).quarantined
        for key, row in txn.rows(FAILED, source)
    )


def _put_or_delete(txn: Transaction, table: str, key: bytes, row: Mapping[str, Any] | None) -> None:
    if row is not None:
        txn.put(table, key, encode(row))
    elif txn.count(table):
        txn.delete(table, key)


def read_failure(row: bytes) -> dict[str, Any]:
    """Decode a row of `failed`."""
    fields = mapping(decode(row))
    found: dict[str, Any] = {name: text(fields.get(name)) for name in ("task", "reason", "error")}
    found |= {name: integer(fields.get(name)) for name in ("attempts", "number")}
    return {**found, "last": seconds(fields.get("last"))}


def read_deaths(row: bytes) -> tuple[str, list[tuple[int, float, int, bool]]]:
    """Decode a row of `attempts`: the name of the task, and the values of `Death` for each death."""
    fields = mapping(decode(row))
    deaths = [rows(death) for death in rows(fields.get("deaths"))]
    if not all(len(death) == 4 and isinstance(death[3], bool) for death in deaths):
        raise ValueError(f"expected four values for each death of a worker, found {deaths!r:.80}")
    return text(fields.get("task")), [
        (integer(number), seconds(at), integer(place), broke) for number, at, place, broke in deaths
    ]
