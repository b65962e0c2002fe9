"""Recording finished and failed tasks: one call is one transaction.

The rows that a commit needs are read together, and the rows that it writes are written together, table by table in key
order: LMDB is several times faster with many sorted rows in one call than with one row in each call.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from itertools import groupby
from operator import attrgetter
from typing import Any

from ledgerbeam.errors import LedgerError, NonDeterministicTaskError
from ledgerbeam.ledger.lmdb import accounts, tables
from ledgerbeam.ledger.lmdb.failures import CLEARED, PASSED, Stamp, clear_passed, passed_at, record_failures
from ledgerbeam.ledger.lmdb.tables import Transaction
from ledgerbeam.ledger.model.counting import Entry, entries, fold, require_count
from ledgerbeam.ledger.model.identity import ID_BYTES, ROOT, are_comparable, name_key, node_id
from ledgerbeam.ledger.model.rows import Failure, Leaf, Output, Totals, output_row, read_output
from ledgerbeam.ledger.model.values import decode, encode, rows, text

_ONCE = (tables.OUTPUTS, tables.COUNTS, tables.STATISTICS)
"""Tables in which the keys of a commit must be free. An existing row means that the entry of its task was lost."""


@dataclass(slots=True)
class CommitChanges:
    """The changes of a commit, and the leaves that it refused."""

    completed: list[bytes] = field(default_factory=list)
    fresh: list[PreparedLeaf] = field(default_factory=list)
    failures: int = 0
    refused: list[tuple[Leaf, LedgerError]] = field(default_factory=list)


def record(
    txn: Transaction,
    by_source: Sequence[tuple[bytes, list[PreparedLeaf]]],
    failures: Iterable[Failure],
    stamp: Stamp,
    *,
    number: int | None = None,
    passed: Stamp | None = None,
    again: bool = False,
    in_history: bool = True,
) -> CommitChanges:
    """Record leaves, from `prepare`, then failures, in a write transaction. A failure of a finished task is ignored.

    A leaf clears the failures of the tasks that fanned out into it: with `passed`, the failures older than this stamp,
    also if they are recorded later; without it, all recorded ones, because a local ledger is written in order. With
    `again`, the leaves were recorded before, and are not added to history and durations again. `number` is the number
    of the run for history, by default the stamp's. Without `in_history`, history is not changed.
    """
    outcome = CommitChanges()
    rows = _Rows(txn, by_source)
    now = stamp.at
    for source, leaves in by_source:
        _SourceCommit(txn, source, rows, outcome, passed).record(leaves, now)
    rows.write()
    outcome.failures = record_failures(txn, failures, stamp)
    tally = total(outcome.fresh)
    if outcome.fresh:
        add_totals(txn, tally, 1)
        accounts.add_counted(
            txn, accounts.sum_parts(leaf.counts for leaf in outcome.fresh if leaf.counts is not None), 1
        )
    if outcome.fresh and not again:
        accounts.add_durations(txn, [leaf.leaf.seconds for leaf in outcome.fresh])
    if in_history and ((outcome.fresh and not again) or outcome.failures):
        counted = {"completed": len(outcome.completed), "failures": outcome.failures}
        accounts.add_to_history(txn, now, stamp.number if number is None else number, tally, **counted)
    return outcome


class _Rows:
    """The rows of a commit's sources as they were before the commit, and the rows that it writes."""

    def __init__(self, txn: Transaction, by_source: Sequence[tuple[bytes, list[PreparedLeaf]]]) -> None:
        ids = [source for source, _ in by_source]
        self.sources = txn.get_many(tables.SOURCES, ids)
        self.completed = txn.get_many(tables.COMPLETED, ids)
        self.pending = txn.get_many(tables.PENDING, ids)
        begun = [leaf for source, leaves in by_source if source in self.pending for leaf in leaves]
        ended = [leaf for source, leaves in by_source if source in self.completed for leaf in leaves]
        nodes = {leaf.leaf.source_id + entry.node for leaf in begun for entry in leaf.group}
        self.applied = txn.get_many(tables.APPLIED, nodes)
        # A source without recorded tasks has no outputs.
        self.outputs = txn.get_many(tables.OUTPUTS, {key for leaf in (*begun, *ended) for key, _ in leaf.outputs})
        self.clearing = [table for table in CLEARED if txn.count(table)]
        self.has_withdrawn = bool(txn.count(tables.WITHDRAWN))
        self._txn = txn
        self._written: dict[str, list[tuple[bytes, bytes]]] = defaultdict(list)

    def put(self, table: str, key: bytes, value: bytes) -> None:
        self._written[table].append((key, value))

    def write(self) -> None:
        for table, written in self._written.items():
            if self._txn.put_many(table, written, overwrite=table not in _ONCE) != len(written) and table in _ONCE:
                raise ValueError(f"expected only new keys for the table {table}, found an existing key")


class _SourceCommit:
    """The leaves of one source in one transaction."""

    def __init__(
        self, txn: Transaction, source: bytes, rows: _Rows, outcome: CommitChanges, passed: Stamp | None
    ) -> None:
        self._txn = txn
        self._passed = passed
        self._above: set[bytes] = set()
        self._source = source
        self._rows = rows
        self._outcome = outcome
        self._applied: dict[bytes, bytes] = {}  # rows of this commit
        self._pending = 1
        self._fresh: list[PreparedLeaf] = []

    def record(self, leaves: Sequence[PreparedLeaf], now: float) -> None:
        rows, source = self._rows, self._source
        if source not in rows.sources:
            if self._txn.get(tables.RETIRED, source) is None:  # else the source changed, and late leaves are useless
                message = "it was never registered; register sources before their tasks are committed"
                for leaf in leaves:
                    self._refuse(leaf, LedgerError, message)
            return
        if source in rows.completed:
            for leaf in leaves:
                self._compare_outputs(leaf)
            return
        known = rows.pending.get(source)
        tally = Totals()
        if known is not None:
            self._pending, *parts = tables.PENDING_ROW.unpack(known)
            tally = Totals(*parts)
        for leaf in leaves:
            self._apply(leaf, is_all=leaf.is_all and known is None and len(leaves) == 1)
        if not self._fresh:
            self._put_applied()
            return
        self._outcome.fresh += self._fresh
        tally = tally.plus(total(self._fresh)) if known is not None or len(self._fresh) > 1 else self._fresh[0].share
        if self._pending:
            self._put_applied()
            rows.put(tables.PENDING, source, tables.PENDING_ROW.pack(self._pending, *tally))
        else:
            self._complete(tally, had_rows=known is not None, now=now)

    def _put_applied(self) -> None:
        for node, value in self._applied.items():
            self._rows.put(tables.APPLIED, self._source + node, value)

    def _apply(self, leaf: PreparedLeaf, *, is_all: bool) -> None:
        pending, fresh = 0, list[Entry]()  # the count after this leaf
        if not is_all:
            try:
                pending, fresh = fold(self._pending, self._delta, leaf.group)
            except LedgerError as error:
                self._refuse(leaf, type(error), f"task at {leaf.leaf.lineage}: {error}")
                return
            if not fresh:
                if self._compare_result(leaf):
                    self._pass(leaf)
                return
        if not self._put_outputs(leaf):
            return
        for table, row in ((tables.COUNTS, leaf.account), (tables.STATISTICS, leaf.statistics)):
            if row is not None:
                self._rows.put(table, self._source + leaf.node, row)
        self._pending = pending
        self._fresh.append(leaf)
        for node, delta in fresh:
            self._applied[node] = tables.DELTA.pack(delta)
        if is_all:  # the completion of the source clears the recorded failures of its tasks
            return
        self._applied[leaf.node] += leaf.digest
        if self._rows.clearing:
            clear_passed(self._txn, self._source + leaf.node, None)
        self._pass(leaf)

    def _pass(self, leaf: PreparedLeaf) -> None:
        """Clear the failures of the tasks that fanned out into this leaf, directly or through others."""
        for node, delta in leaf.group[1:-1]:
            if node in self._above:
                continue
            self._above.add(node)
            if self._passed is not None:
                row = self._row(node)
                if row is None or passed_at(row) < self._passed:
                    self._applied[node] = tables.DELTA.pack(delta) + PASSED.pack(*self._passed)
            if self._rows.clearing:
                clear_passed(self._txn, self._source + node, self._passed)

    def _row(self, node: bytes) -> bytes | None:
        return self._applied.get(node) or self._rows.applied.get(self._source + node)

    def _delta(self, node: bytes) -> int | None:
        if node == ROOT:
            return 1
        row = self._row(node)
        return None if row is None else tables.DELTA.unpack_from(row)[0]

    def _put_outputs(self, leaf: PreparedLeaf) -> bool:
        known = self._rows.outputs
        for done, (key, row) in enumerate(leaf.outputs):
            if key not in known:
                known[key] = row
                continue
            for mine, _ in leaf.outputs[:done]:
                del known[mine]
            self._refuse(
                leaf,
                NonDeterministicTaskError,
                f"task at {leaf.leaf.lineage} published {decode_output(row)[0].name!r}, and so did another task of the "
                "source; give each task other names for its outputs. If the names differ already, the ledger is "
                "damaged: restore it from a copy",
            )
            return False
        for key, row in leaf.outputs:
            self._rows.put(tables.OUTPUTS, key, row)
        return True

    def _compare_result(self, leaf: PreparedLeaf) -> bool:
        """Check that a task that was recorded before has the same result; return False if an error was recorded."""
        row = self._row(leaf.node)
        if row is None or row[tables.DELTA.size :] == leaf.digest:
            return True
        if not self._compare_outputs(leaf):
            return False
        # All outputs may be recorded, but with checksums that are not comparable.
        known = [(self._rows.outputs.get(key), now) for key, now in leaf.outputs]
        pairs = [(decode_output(was)[0].checksum, decode_output(now)[0].checksum) for was, now in known if was]
        if 0 < len(pairs) == len(known) and not all(are_comparable(*pair) for pair in pairs):
            return True
        self._refuse(
            leaf,
            NonDeterministicTaskError,
            f"task at {leaf.leaf.lineage} published the outputs {[output.name for output in leaf.leaf.outputs]} now, "
            "and others or none when it ran before; make the function depend on its input only, then run `ledgerbeam "
            "ledger forget` on the source",
        )
        return False

    def _compare_outputs(self, leaf: PreparedLeaf) -> bool:
        """Compare outputs with the recorded outputs of the same names; return False if an error was recorded."""
        for key, row in leaf.outputs:
            known = self._rows.outputs.get(key)
            if known is None or known == row:
                continue
            (before, _), (now, _) = decode_output(known), decode_output(row)
            if before.size != now.size or (
                before.checksum != now.checksum and are_comparable(before.checksum, now.checksum)
            ):
                self._refuse(
                    leaf,
                    NonDeterministicTaskError,
                    f"task at {leaf.leaf.lineage}: its output {now.name!r} had {before.size} bytes and the checksum "
                    f"{before.checksum} before, and has {now.size} bytes and the checksum {now.checksum} now; make "
                    "the function depend on its input only, then run `ledgerbeam ledger forget` on the source",
                )
                return False
        return True

    def _complete(self, tally: Totals, *, had_rows: bool, now: float) -> None:
        if had_rows:
            known = self._txn.delete_prefix(tables.APPLIED, self._source)
            rows = {key[ID_BYTES:]: row for key, row in known} | self._applied
            require_count(0, (tables.DELTA.unpack_from(row)[0] for row in rows.values()))
            self._txn.delete(tables.PENDING, self._source)
        for table in self._rows.clearing:
            self._txn.delete_prefix(table, self._source)
        if self._rows.has_withdrawn:
            self._txn.delete(tables.WITHDRAWN, self._source)
        self._rows.put(tables.COMPLETED, self._source, tables.pack_completion(int(now), tally))
        self._outcome.completed.append(self._source)

    def _refuse(self, leaf: PreparedLeaf, kind: type[LedgerError], message: str) -> None:
        row = self._rows.sources.get(self._source)
        name = self._source.hex() if row is None else decode(row)["url"]
        self._outcome.refused.append((leaf.leaf, kind(f"source {name}: {message}")))


def total(leaves: Sequence[PreparedLeaf]) -> Totals:
    """Return the sum of the amounts that leaves add to the totals of the ledger."""
    return Totals(*map(sum, zip(*(leaf.share for leaf in leaves), strict=True)))


def read_totals(txn: Transaction) -> Totals:
    """Return the totals of the ledger."""
    row = txn.get(tables.META, tables.KEY_TOTALS)
    return Totals() if row is None else Totals(*tables.TALLY_ROW.unpack(row))


def add_totals(txn: Transaction, change: Iterable[int], sign: int) -> None:
    """Add amounts to the totals of the ledger; a sign of -1 subtracts them."""
    sums = (before + sign * part for before, part in zip(read_totals(txn), change, strict=True))
    txn.put(tables.META, tables.KEY_TOTALS, tables.TALLY_ROW.pack(*sums))


class PreparedLeaf:
    """A leaf with its rows: of `outputs` in key order; of `counts` and of `statistics`, None if it needs none."""

    def __init__(self, leaf: Leaf) -> None:
        self.leaf = leaf
        # No task above it fanned out into more than one: it is the only task of its source.
        self.is_all = leaf.lineage == ((0, 1),) * len(leaf.lineage)
        self.node = node_id(leaf.source_id, leaf.lineage) if self.is_all else self.group[-1].node
        node, source = self.node.hex(), leaf.source_id
        self.outputs = sorted((source + name_key(output.name), encode_output(output, node)) for output in leaf.outputs)
        self.share = leaf.share()
        self.counts = leaf.special_counts()
        self.account = accounts.encode_account(leaf)
        self.statistics = accounts.encode_statistics(leaf.statistics)
        if not self.is_all:
            self.digest  # noqa: B018 - computed now, since it is needed inside the transaction

    @cached_property
    def group(self) -> tuple[Entry, ...]:
        """The changes of the source's count that follow from the leaf; see `counting.entries`."""
        return entries(self.leaf.source_id, self.leaf.lineage)

    @cached_property
    def digest(self) -> bytes:
        """8 bytes that identify the result of the leaf."""
        digest = blake2b(self.leaf.kind.encode(), digest_size=8, person=b"lb.result")
        for output in sorted(self.leaf.outputs, key=attrgetter("name")):
            digest.update(self.leaf.source_id + name_key(output.name) + encode([output.size, output.checksum]))
        return digest.digest()


def prepare(leaves: Iterable[Leaf]) -> list[tuple[bytes, list[PreparedLeaf]]]:
    """Group leaves by source, in key order, with their rows computed."""
    ordered = sorted(leaves, key=attrgetter("source_id"))
    return [
        (source, [PreparedLeaf(leaf) for leaf in group])
        for source, group in groupby(ordered, key=attrgetter("source_id"))
    ]


def encode_output(output: Output, node: str) -> bytes:
    """Encode a row of `outputs`."""
    return encode([*output_row(output), node])


def decode_output(row: bytes) -> tuple[Output, str]:
    """Decode a row of `outputs`: the output, and the hexadecimal id of its task. Raises ValueError."""
    *output, node = rows(decode(row))
    return read_output(output), text(node)


def decode_outputs(encoded: Sequence[bytes]) -> list[list[Any]]:
    """Decode many rows of `outputs` together: for each a list that starts with name and size. Raises ValueError."""
    found = rows(decode(b"[%b]" % b",".join(encoded)))
    if len(found) != len(encoded):
        raise ValueError(f"expected one output in each of {len(encoded)} rows, found {len(found)} outputs")
    for row in found:
        if type(row) is not list or len(row) not in (6, 7, 8) or type(row[0]) is not str or type(row[1]) is not int:
            raise ValueError(f"expected the name of an output, its size and 4 to 6 more values, found {row!r:.80}")
    return found
