"""Recording finished and failed tasks: one call is one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any

from ledgerbeam.errors import LedgerError, NonDeterministicTaskError
from ledgerbeam.ledger.counting import Entry, entries, fold
from ledgerbeam.ledger.identity import ROOT, name_key, node_id
from ledgerbeam.ledger.json_rows import decode, encode
from ledgerbeam.ledger.lmdb_history import add_durations, add_to_history, duration_steps
from ledgerbeam.ledger.lmdb_rows import (
    APPLIED,
    ATTEMPTS,
    ATTEMPTS_ROW,
    COMPLETED,
    COMPLETED_ROW,
    DELTA,
    FAILED,
    KEY_TOTALS,
    META,
    OUTPUTS,
    PENDING,
    PENDING_ROW,
    RETIRED,
    SOURCES,
    TALLY_ROW,
    Transaction,
)
from ledgerbeam.ledger.store import MAX_ATTEMPTS, Failure, Leaf, Mark, Output, Totals

ERROR_CHARACTERS = 4000
"""Longer error messages of failures are cut."""

_TASKS_LIMIT = 2**32 - 1


@dataclass(slots=True)
class PreparedLeaf:
    """A leaf with what can be computed outside of the transaction."""

    leaf: Leaf
    group: tuple[Entry, ...]
    outputs: list[tuple[bytes, bytes]]
    digest: bytes

    @property
    def node(self) -> bytes:
        """The leaf's own node: the last entry of its group."""
        return self.group[-1].node


@dataclass(slots=True)
class Outcome:
    """What a commit changed, and the leaves that it left out."""

    completed: list[bytes] = field(default_factory=list)
    fresh: int = 0
    tally: Totals = field(default_factory=Totals)
    seconds: list[float] = field(default_factory=list)
    failures: int = 0
    refused: list[tuple[Leaf, LedgerError]] = field(default_factory=list)


def prepare(leaves: Iterable[Leaf]) -> list[tuple[bytes, list[PreparedLeaf]]]:
    """Group leaves by source, in key order, with their entries and rows computed."""
    by_source: list[tuple[bytes, list[PreparedLeaf]]] = []
    for source, group in groupby(sorted(leaves, key=attrgetter("source_id")), key=attrgetter("source_id")):
        by_source.append((source, [_prepare(leaf) for leaf in group]))
    return by_source


def _prepare(leaf: Leaf) -> PreparedLeaf:
    group = entries(leaf.source_id, leaf.lineage, terminal=leaf.kind)
    node = group[-1].node.hex()
    rows = []
    digest = blake2b(leaf.kind.encode(), digest_size=8, person=b"lb.result")
    for output in sorted(leaf.outputs, key=attrgetter("name")):
        key = leaf.source_id + name_key(output.name)
        digest.update(key + encode([output.size, output.checksum]))
        rows.append((key, encode_output(output, node)))
    return PreparedLeaf(leaf, group, rows, digest.digest())


def encode_output(output: Output, node: str) -> bytes:
    """Make a row of `outputs`."""
    return encode([output.name, output.size, output.checksum, output.records, output.first, node])


def decode_output(row: bytes) -> tuple[Output, str]:
    """Read a row of `outputs`: the output and the hexadecimal node that published it."""
    name, size, checksum, records, first, node = decode(row)
    return Output(name, size, checksum, records, first), node


def record(
    txn: Transaction, by_source: Sequence[tuple[bytes, list[PreparedLeaf]]], failures: Iterable[Failure], now: float
) -> Outcome:
    """Record leaves, then failures, in a write transaction.

    Args:
        txn: open for writing.
        by_source: from `prepare`.
        failures: a failure of a task that is finished by now is ignored.
        now: seconds since 1970 UTC.
    """
    outcome = Outcome()
    clearing = [table for table in (FAILED, ATTEMPTS) if txn.count(table)]
    for source, leaves in by_source:
        _SourceCommit(txn, source, outcome, clearing).record(leaves, now)
    for failure in sorted(failures, key=attrgetter("source_id")):
        outcome.failures += _record_failure(txn, failure, now)
    if outcome.fresh:
        add_totals(txn, outcome.tally, 1)
        add_durations(txn, duration_steps(outcome.seconds))
    if outcome.fresh or outcome.failures:
        add_to_history(txn, now, outcome.tally, completed=len(outcome.completed), failures=outcome.failures)
    return outcome


class _SourceCommit:
    """The leaves of one source in one transaction."""

    def __init__(self, txn: Transaction, source: bytes, outcome: Outcome, clearing: Sequence[str]) -> None:
        self._txn = txn
        self._source = source
        self._outcome = outcome
        self._clearing = clearing  # tables that may have rows of finished tasks
        self._applied: dict[bytes, bytes] = {}  # rows of this transaction, not written yet
        self._pending = 1
        self._tally = Totals()
        self._fresh = 0

    def record(self, leaves: Sequence[PreparedLeaf], now: float) -> None:
        txn, source = self._txn, self._source
        row = txn.get(SOURCES, source)
        if row is None:
            if txn.get(RETIRED, source) is None:  # else it changed, and what is late is of no use
                message = "it was never registered; register sources before their tasks are committed"
                for leaf in leaves:
                    self._refuse(leaf, LedgerError, message)
            return
        if txn.get(COMPLETED, source) is not None:
            for leaf in leaves:
                self._compare_outputs(leaf)
            return
        known = txn.get(PENDING, source)
        if known is not None:
            self._pending, *tally = PENDING_ROW.unpack(known)
            self._tally = Totals(*tally)
        for leaf in leaves:
            self._apply(leaf)
        if not self._fresh:
            return
        self._outcome.fresh += self._fresh
        if self._pending:
            txn.put_many(APPLIED, sorted((source + node, value) for node, value in self._applied.items()))
            txn.put(PENDING, source, PENDING_ROW.pack(self._pending, *self._tally))
        else:
            self._complete(row, had_rows=known is not None, now=now)

    def _apply(self, leaf: PreparedLeaf) -> None:
        try:
            pending, fresh = fold(self._pending, self._delta, leaf.group)
        except LedgerError as error:
            self._refuse(leaf, type(error), f"task at {leaf.leaf.lineage}: {error}")
            return
        if not fresh:
            self._compare_result(leaf)
            return
        if not self._put_outputs(leaf):
            return
        self._pending = pending
        for node, delta in fresh:
            self._applied[node] = DELTA.pack(delta)
        self._applied[leaf.node] += leaf.digest
        self._fresh += 1
        share = leaf.leaf.share()
        self._tally = self._tally.plus(share)
        self._outcome.tally = self._outcome.tally.plus(share)
        self._outcome.seconds.append(leaf.leaf.seconds)
        for table in self._clearing:
            for node, _ in fresh:  # what fanned out has succeeded as well
                self._txn.delete(table, self._source + node)

    def _row(self, node: bytes) -> bytes | None:
        return self._applied.get(node) or self._txn.get(APPLIED, self._source + node)

    def _delta(self, node: bytes) -> int | None:
        if node == ROOT:
            return 1
        row = self._row(node)
        return None if row is None else DELTA.unpack_from(row)[0]

    def _put_outputs(self, leaf: PreparedLeaf) -> bool:
        for done, (key, row) in enumerate(leaf.outputs):
            if self._txn.put(OUTPUTS, key, row, overwrite=False):
                continue
            for mine, _ in leaf.outputs[:done]:
                self._txn.delete(OUTPUTS, mine)
            name = decode_output(row)[0].name
            self._refuse(
                leaf,
                NonDeterministicTaskError,
                f"task at {leaf.leaf.lineage} published {name!r}, which another task of the source has published; give "
                "every task names of its own",
            )
            return False
        return True

    def _compare_result(self, leaf: PreparedLeaf) -> None:
        """Check that a leaf that arrived again is the same leaf."""
        row = self._row(leaf.node)
        if row is None or row[DELTA.size :] == leaf.digest or not self._compare_outputs(leaf):
            return
        self._refuse(
            leaf,
            NonDeterministicTaskError,
            f"task at {leaf.leaf.lineage} published other objects, or none, when it ran before: now "
            f"{[output.name for output in leaf.leaf.outputs]}; make processing a pure function of its input, then run "
            "`ledgerbeam ledger forget` on the source",
        )

    def _compare_outputs(self, leaf: PreparedLeaf) -> bool:
        """Check outputs against those recorded under the same names; False if an error was noted."""
        for key, row in leaf.outputs:
            known = self._txn.get(OUTPUTS, key)
            if known is None or known == row:
                continue
            (before, _), (now, _) = decode_output(known), decode_output(row)
            if (before.size, before.checksum) != (now.size, now.checksum):
                self._refuse(
                    leaf,
                    NonDeterministicTaskError,
                    f"task at {leaf.leaf.lineage} published {now.name!r} with {before.size} bytes, {before.checksum} "
                    f"before, and with {now.size} bytes, {now.checksum} now; make processing a pure function of its "
                    "input, then run `ledgerbeam ledger forget` on the source",
                )
                return False
        return True

    def _complete(self, row: bytes, *, had_rows: bool, now: float) -> None:
        txn, source = self._txn, self._source
        if had_rows:
            txn.delete_prefix(APPLIED, source)
            txn.delete(PENDING, source)
        for table in self._clearing:
            txn.delete_prefix(table, source)
        txn.put(COMPLETED, source, COMPLETED_ROW.pack(int(now), min(self._tally.tasks, _TASKS_LIMIT)))
        txn.put(SOURCES, source, encode({**decode(row), "tally": list(self._tally)}))
        self._outcome.completed.append(source)

    def _refuse(self, leaf: PreparedLeaf, kind: type[LedgerError], message: str) -> None:
        row = self._txn.get(SOURCES, self._source)
        name = self._source.hex() if row is None else decode(row)["url"]
        self._outcome.refused.append((leaf.leaf, kind(f"source {name}: {message}")))


def read_totals(txn: Transaction) -> Totals:
    """The sum of all tallies."""
    row = txn.get(META, KEY_TOTALS)
    return Totals() if row is None else Totals(*TALLY_ROW.unpack(row))


def add_totals(txn: Transaction, change: Iterable[int], sign: int) -> None:
    """Add a tally to the sum, or take it away with a sign of -1."""
    sums = (total + sign * part for total, part in zip(read_totals(txn), change, strict=True))
    txn.put(META, KEY_TOTALS, TALLY_ROW.pack(*sums))


def clear_failures(txn: Transaction, source: bytes) -> None:
    """Drop the failures and worker deaths of a source."""
    for table in (FAILED, ATTEMPTS):
        if txn.count(table):
            txn.delete_prefix(table, source)


def is_open(txn: Transaction, source: bytes, node: bytes) -> bool:
    """Tell whether a task of a registered source is still to be finished."""
    return (
        txn.get(SOURCES, source) is not None
        and txn.get(COMPLETED, source) is None
        and txn.get(APPLIED, source + node) is None
    )


def _record_failure(txn: Transaction, failure: Failure, now: float) -> bool:
    node = node_id(failure.source_id, failure.lineage)
    if not is_open(txn, failure.source_id, node):
        return False
    key = failure.source_id + node
    known = txn.get(FAILED, key)
    row = failure_row(failure, now)
    if known is not None:
        before = decode(known)
        newer = row if now >= before["last"] else before  # they may come in late
        row = {**newer, "attempts": before["attempts"] + 1, "quarantined": before["quarantined"]}
    txn.put(FAILED, key, encode(row))
    return True


def failure_row(failure: Failure, now: float) -> dict[str, Any]:
    """The row of a task that failed for the first time."""
    return {
        "task": failure.task,
        "reason": failure.reason,
        "error": failure.error[:ERROR_CHARACTERS],
        "attempts": 1,
        "last": now,
        "quarantined": False,
    }


def count_deaths(txn: Transaction, marks: Iterable[Mark], now: float) -> list[Mark]:
    """Count a worker's death against the open tasks it had in work; gives those that are quarantined by it."""
    quarantined = []
    for mark in sorted(marks, key=itemgetter(0, 1)):
        key = mark.source_id + mark.node
        if not is_open(txn, mark.source_id, mark.node):
            continue
        row = txn.get(ATTEMPTS, key)
        deaths = 1 + (0 if row is None else ATTEMPTS_ROW.unpack(row)[0])
        txn.put(ATTEMPTS, key, ATTEMPTS_ROW.pack(deaths))
        if deaths < MAX_ATTEMPTS:
            continue
        known = txn.get(FAILED, key)
        failure = {
            "task": mark.name,
            "reason": f"its worker died {deaths} times",
            "error": "" if known is None else decode(known)["error"],
            "attempts": deaths + (0 if known is None else decode(known)["attempts"]),
            "last": now,
            "quarantined": True,
        }
        txn.put(FAILED, key, encode(failure))
        quarantined.append(mark)
    return quarantined
