"""The rows of a snapshot: the sums of the segments that it replaces, as the field ``state`` of a segment.

Sources, the leaves of open sources, and runs are ordinary columns of a segment. ``state`` maps these names to lists of
rows:

============  ==================================================================
complete      id, time, the five numbers of `store.Totals`, outputs; then, if there are any, the rows of `counts` of its
              tasks, each as node and row
tenures       id of a complete source that was replaced and came back, the least number with which its leaves count
statistics    id of a complete source, node of one of its tasks, statistics as in a segment
contradicted  id
passed        id, node of a task that fanned out, number and time of the newest leaf below it
failed        id, node, task, reason, error, attempts, last, number
attempts      id, node, task, deaths: each number, time, place, whether it was a failure
superseded    id, name of an output, number with which it was superseded
retired       id, URLs, number with which it was replaced
cutoffs       id, `Cutoff.numbers` of its leaves, `Cutoff.numbers` of its failures
replaces      id of a source that took over a URL
replaced      id of a source, greatest number with which another source owned one of its URLs
back          id of a source that was gone and came back, number of that listing
history       step, number of the run, the five numbers of `store.Totals`, completed, failures; without the run in
              older versions
durations     step, tasks
============  ==================================================================

Merging is idempotent, and commutes with folding the segments that the snapshot replaces. So a reader may have folded
some of them before, and two snapshots may replace some segments together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ledgerbeam.ledger.lmdb import accounts as lmdb_accounts
from ledgerbeam.ledger.lmdb import failures as lmdb_failures
from ledgerbeam.ledger.lmdb import tables
from ledgerbeam.ledger.lmdb.commit import add_totals, decode_output, encode_output
from ledgerbeam.ledger.lmdb.sources import come_back, put_retired
from ledgerbeam.ledger.lmdb.tables import Transaction
from ledgerbeam.ledger.lmdb.withdrawal import decode_superseded, drop_stale, encode_superseded, read_retired, supersede
from ledgerbeam.ledger.model.accounts import read_statistics, statistics_row
from ledgerbeam.ledger.model.identity import ID_BYTES, name_key, url_key
from ledgerbeam.ledger.model.rows import Totals, failure_text, output_row, read_output
from ledgerbeam.ledger.model.values import (
    decode,
    encode,
    flag,
    identity,
    integer,
    output_name,
    row,
    rows,
    seconds,
    text,
)
from ledgerbeam.ledger.remote import registration
from ledgerbeam.ledger.remote.controls import HIGHEST
from ledgerbeam.ledger.remote.segment import Segment

_Rows = list[list[Any]]

_STATISTICS_BYTES = 4 << 20
"""Size of sketches that ends a part of a snapshot, in bytes. The statistics of one task are not larger."""


def merge_state(txn: Transaction, state: Mapping[str, Any], number: int) -> None:
    """Merge the rows of a snapshot, in a write transaction. Raises ValueError for invalid rows."""
    told = (row(value, 2) for value in rows(state.get("tenures", [])))
    tenures = {identity(source): integer(first) for source, first in told}
    for name, merge in _MERGES.items():
        for value in rows(state.get(name, [])):
            values = rows(value)
            if name == "complete":
                # A cutoff of the source that was raised after the snapshot may exclude leaves in it.
                source = identity(values[0])
                if registration.read_cutoffs(txn, source)[0].tenure > tenures.get(source, 0):
                    _supersede_complete(txn, values, number)
                    continue
            merge(txn, values, number)


def supersede_state(txn: Transaction, state: Mapping[str, Any], number: int) -> None:
    """Supersede the outputs in the rows of a snapshot of a job that was restarted; raises like `merge_state`."""
    for value in rows(state.get("complete", [])):
        _supersede_complete(txn, rows(value), number)
    for value in rows(state.get("superseded", [])):
        _merge_superseded(txn, rows(value), number)


def _supersede_complete(txn: Transaction, value: list[Any], number: int) -> None:
    source, _, _, outputs, *_ = row(value, 4, 5)
    supersede(txn, _output_rows(identity(source), outputs), number)


def _output_rows(source: bytes, outputs: Any) -> list[tuple[bytes, bytes]]:
    known = [read_output(output) for output in rows(outputs)]
    return [(source + name_key(output.name), encode_output(output, "")) for output in known]


def _merge_complete(txn: Transaction, value: list[Any], number: int) -> None:
    source_hex, completed, totals, outputs, *accounted = row(value, 4, 5)
    source = identity(source_hex)
    tally = Totals(*map(integer, row(totals, 5)))
    pairs = _output_rows(source, outputs)
    accounts = _read_accounts(source, tally, accounted[0] if accounted else [])
    if txn.get(tables.SOURCES, source) is None or number < registration.cutoffs(txn, source)[0]:
        supersede(txn, pairs, number)
        return
    if txn.get(tables.COMPLETED, source) is not None or registration.is_contradicted(txn, source):
        return
    pending = txn.pop(tables.PENDING, source)
    if pending is not None:
        add_totals(txn, tables.PENDING_ROW.unpack(pending)[1:], -1)
        txn.delete_prefix(tables.APPLIED, source)
    lmdb_accounts.drop_accounts(txn, source)
    lmdb_failures.clear_failures(txn, source)
    txn.delete(tables.WITHDRAWN, source)
    add_totals(txn, tally, 1)
    lmdb_accounts.add_counted(txn, lmdb_accounts.sum_parts(account.counts for account, _ in accounts.values()), 1)
    txn.put_many(tables.COUNTS, ((key, encoded) for key, (_, encoded) in accounts.items()))
    txn.put_many(tables.OUTPUTS, pairs, overwrite=False)
    txn.put(tables.COMPLETED, source, tables.pack_completion(int(seconds(integer(completed))), tally))


def _read_accounts(source: bytes, tally: Totals, value: Any) -> dict[bytes, tuple[lmdb_accounts.TaskAccount, bytes]]:
    """Return the rows of `counts` of a complete source by key, decoded and encoded."""
    pairs = [row(pair, 2) for pair in rows(value)]
    found = {source + identity(node): (lmdb_accounts.read_account(account), encode(account)) for node, account in pairs}
    if len(found) != len(pairs) or len(found) > tally.tasks:
        rows_of = f"{len(pairs)} rows of {len(found)} different tasks"
        raise ValueError(f"expected at most {tally.tasks} tasks, one row each, found {rows_of}")
    lmdb_accounts.counts_of((account for account, _ in found.values()), tally)
    return found


def _merge_statistics(txn: Transaction, value: list[Any], number: int) -> None:
    source_hex, node, statistics = row(value, 3)
    source, encoded = identity(source_hex), lmdb_accounts.encode_statistics(read_statistics(statistics))
    if txn.get(tables.COMPLETED, source) is None or number < registration.cutoffs(txn, source)[0] or encoded is None:
        return  # the leaves of an open source have its statistics
    txn.put(tables.STATISTICS, source + identity(node), encoded, overwrite=False)


def _merge_contradicted(txn: Transaction, row: list[Any], number: int) -> None:
    (source,) = row
    if number >= registration.cutoffs(txn, identity(source))[0]:
        registration.contradict(txn, identity(source))


def _merge_passed(txn: Transaction, row: list[Any], _: int) -> None:
    source, node, number, at = row
    key, stamp = identity(source) + identity(node), lmdb_failures.Stamp(integer(number), seconds(at))
    known = txn.get(tables.APPLIED, key)
    if known is not None and tables.DELTA.unpack_from(known)[0] >= 0 and lmdb_failures.passed_at(known) < stamp:
        txn.put(tables.APPLIED, key, known[: tables.DELTA.size] + lmdb_failures.PASSED.pack(*stamp))
        lmdb_failures.clear_passed(txn, key, stamp)


def _merge_failed(txn: Transaction, row: list[Any], number: int) -> None:
    source, node, task, reason, error, attempts, last, of_run = row
    key = identity(source) + identity(node)
    stamp = lmdb_failures.Stamp(integer(of_run), seconds(last))
    if number < registration.cutoffs(txn, identity(source))[1] or not lmdb_failures.still_counts(
        txn, identity(source), identity(node), stamp
    ):
        return
    known = lmdb_failures.TaskFailures.read(txn, key)
    before = 0 if known.failed is None else known.failed["attempts"]
    known.fail(
        {
            "task": failure_text(text(task)),
            "reason": failure_text(text(reason)),
            "error": failure_text(text(error)),
            "attempts": max(0, integer(attempts, 1) - before),
            "last": stamp.at,
            "number": stamp.number,
        }
    )
    known.write(txn, key)


def _merge_attempts(txn: Transaction, row: list[Any], number: int) -> None:
    source, node, task, deaths = row
    key = identity(source) + identity(node)
    if number < registration.cutoffs(txn, identity(source))[1]:
        return
    known = lmdb_failures.TaskFailures.read(txn, key)
    known.task = known.task or failure_text(text(task))
    for value in rows(deaths):
        of_run, at, place, broke = rows(value)
        death = lmdb_failures.Death(integer(of_run), seconds(at), integer(place), flag(broke))
        if lmdb_failures.still_counts(txn, identity(source), identity(node), lmdb_failures.Stamp(*death[:2])):
            known.deaths.add(death)
    known.write(txn, key)


def _merge_superseded(txn: Transaction, row: list[Any], _: int) -> None:
    source, name, number = row
    key = identity(source) + name_key(output_name(name))
    known = txn.get(tables.SUPERSEDED, key)
    before = 0 if known is None else decode_superseded(known)[0]
    txn.put(tables.SUPERSEDED, key, encode_superseded(max(before, integer(number)), name))


def _merge_retired(txn: Transaction, row: list[Any], _: int) -> None:
    source_hex, names, of_number = row
    source, urls, number = identity(source_hex), [text(url) for url in rows(names)], integer(of_number)
    known = txn.get(tables.SOURCES, source)
    if known is not None:
        registration.note_replacement(txn, source, known, number)  # by a source that has been replaced itself
    else:
        put_retired(txn, source, number, urls)
        for url in urls:
            txn.put(tables.URLS, url_key(url), source, overwrite=False)  # the next owner replaces it


def _merge_floors(txn: Transaction, row: list[Any], _: int) -> None:
    source, *floors_of_both = row
    leaves, failures = (
        registration.Cutoff.of([integer(number) for number in rows(numbers)]) for numbers in floors_of_both
    )
    known = txn.get(tables.SOURCES, identity(source))
    if known is not None:
        registration.note_cutoff(txn, identity(source), known, leaves)
    registration.merge_cutoffs(txn, identity(source), leaves, failures)


def _merge_replaces(txn: Transaction, row: list[Any], _: int) -> None:
    (source,) = row
    fields = txn.get(tables.SOURCES, identity(source))
    if fields is not None:
        txn.put(tables.SOURCES, identity(source), encode({**decode(fields), "replaces": True}))


def _merge_replaced(txn: Transaction, row: list[Any], _: int) -> None:
    source, number = row
    known = txn.get(tables.SOURCES, identity(source))
    if known is not None:
        registration.note_replacement(txn, identity(source), known, integer(number))


def _merge_back(txn: Transaction, row: list[Any], _: int) -> None:
    source, number = row
    come_back(txn, identity(source), integer(number))


def _merge_history(txn: Transaction, row: list[Any], _: int) -> None:
    step, *numbers = (integer(value) for value in row)
    number, *parts = numbers if len(numbers) != 7 else (0, *numbers)
    if len(parts) != 7 or step >= 2**32 or number > HIGHEST:
        raise ValueError(f"expected a row of the history (the work of a run in ten seconds), found {row}")
    key = tables.HISTORY_KEY.pack(step, number)
    lmdb_accounts.combine_row(txn, tables.HISTORY, key, tables.HISTORY_ROW, parts, how=max)


def _merge_durations(txn: Transaction, row: list[Any], _: int) -> None:
    step, count = (integer(value) for value in row)
    if step >= 2**16:
        raise ValueError(f"expected a row of durations (step of the scale, number of tasks), found {row}")
    key = tables.DURATION_KEY.pack(step)
    lmdb_accounts.combine_row(txn, tables.DURATIONS, key, tables.DURATION_ROW, [count], how=max)


_MERGES: dict[str, Callable[[Transaction, list[Any], int], None]] = {
    "cutoffs": _merge_floors,
    "retired": _merge_retired,
    "replaces": _merge_replaces,
    "replaced": _merge_replaced,
    "back": _merge_back,
    "complete": _merge_complete,
    "statistics": _merge_statistics,
    "contradicted": _merge_contradicted,
    "passed": _merge_passed,
    "failed": _merge_failed,
    "attempts": _merge_attempts,
    "superseded": _merge_superseded,
    "history": _merge_history,
    "durations": _merge_durations,
}
"""Merge functions, in the order in which they must run."""


def cutoff_pages(txn: Transaction) -> Iterator[dict[str, _Rows]]:
    """Yield cutoffs and retired sources, which exclude earlier leaves, as values of ``state``, page by page."""
    for page in txn.pages(tables.CUTOFFS):
        yield {"cutoffs": [[key.hex(), *decode(row)] for key, row in page]}
    for page in txn.pages(tables.RETIRED):
        retired = ((key, *read_retired(row)) for key, row in page)
        yield {"retired": [[key.hex(), urls, number] for key, number, urls in retired]}


def state_pages(txn: Transaction) -> Iterator[dict[str, _Rows]]:
    """Yield the other rows of a sidecar that a snapshot keeps, like `cutoff_pages`."""
    for page in txn.pages(tables.SOURCES):
        yield from _source_state(txn, page)
    for page in txn.pages(tables.STATISTICS, most_bytes=_STATISTICS_BYTES):
        yield {"statistics": _statistics_rows(txn, page)}
    for page in txn.pages(tables.APPLIED):
        fanned_out = (
            (key, lmdb_failures.passed_at(row))
            for key, row in page
            if len(row) == tables.DELTA.size + lmdb_failures.PASSED.size
        )
        yield {"passed": [[*_halves(key), *stamp] for key, stamp in fanned_out]}
    for page in txn.pages(tables.FAILED):
        yield {"failed": [row for key, value in page for row in _failed_rows(key, value)]}
    for page in txn.pages(tables.ATTEMPTS):
        died = ((key, lmdb_failures.TaskFailures.of(None, row)) for key, row in page)
        yield {"attempts": [[*_halves(key), task.task, [*map(list, sorted(task.deaths))]] for key, task in died]}
    for page in txn.pages(tables.SUPERSEDED):
        named = ((key[:ID_BYTES].hex(), *decode_superseded(row)) for key, row in page)
        yield {"superseded": [[source, name, number] for source, number, name in named]}
    for page in txn.pages(tables.HISTORY):
        yield {"history": [[*tables.HISTORY_KEY.unpack(key), *tables.HISTORY_ROW.unpack(row)] for key, row in page]}
    for page in txn.pages(tables.DURATIONS):
        yield {
            "durations": [[tables.DURATION_KEY.unpack(key)[0], *tables.DURATION_ROW.unpack(row)] for key, row in page]
        }


def _source_state(txn: Transaction, page: list[tuple[bytes, bytes]]) -> Iterator[dict[str, _Rows]]:
    known = [(source, decode(row)) for source, row in page]
    complete: _Rows = []
    contradicted: _Rows = []
    tenures: _Rows = []
    for source, _ in page:
        done = txn.get(tables.COMPLETED, source)
        if done is not None:
            outputs = [decode_output(value)[0] for _, value in txn.scan(tables.OUTPUTS, source)]
            completed, tally = tables.unpack_completion(done)
            rows_of = txn.scan(tables.COUNTS, source) if txn.count(tables.COUNTS) else []
            accounts = [[key[ID_BYTES:].hex(), decode(value)] for key, value in rows_of]
            about = [source.hex(), completed, tally, [output_row(output) for output in outputs]]
            complete.append([*about, accounts] if accounts else about)
            tenure = registration.read_cutoffs(txn, source)[0].tenure
            tenures += [[source.hex(), tenure]] if tenure else []
        elif registration.is_contradicted(txn, source):
            contradicted.append([source.hex()])
    yield {
        "replaces": [[source.hex()] for source, fields in known if "replaces" in fields],
        "replaced": [[source.hex(), fields["replaced"]] for source, fields in known if "replaced" in fields],
        "back": [[source.hex(), fields["back"]] for source, fields in known if "back" in fields],
        "complete": complete,
        "tenures": tenures,
        "contradicted": contradicted,
    }


def _statistics_rows(txn: Transaction, page: list[tuple[bytes, bytes]]) -> _Rows:
    """Return the statistics of the tasks of complete sources. For other sources, the leaves have the statistics."""
    completed = txn.get_many(tables.COMPLETED, {key[:ID_BYTES] for key, _ in page})
    return [
        [*_halves(key), statistics_row(lmdb_accounts.decode_statistics(value))]
        for key, value in page
        if key[:ID_BYTES] in completed
    ]


def _halves(key: bytes) -> tuple[str, str]:
    return key[:ID_BYTES].hex(), key[ID_BYTES:].hex()


def _failed_rows(key: bytes, value: bytes) -> _Rows:
    """Return a list with the row of a failure.

    The list is empty for a row that only stands for deaths, and for a failure that folding the leaves creates again.
    """
    failed = lmdb_failures.TaskFailures.of(value, None).failed
    if failed is None or failed["number"] == lmdb_failures.NEVER_CLEARED:
        return []
    named = (failed[name] for name in ("task", "reason", "error", "attempts", "last", "number"))
    return [[*_halves(key), *named]]


class UnnamedOutputs:
    """The superseded outputs of a sidecar that no object has named yet, while a snapshot is folded.

    A snapshot has no rows of deleted outputs. So a host may know a superseded output that no object names any more: it
    has folded some of the replaced objects, but not the segment that lists the deletion. Such an output is dropped.

    Two concurrent compactions may replace different objects. One snapshot may then name an output that the other has
    dropped as deleted. So each snapshot repeats the deletions listed in the segments that it replaces. The next
    snapshot, which replaces both snapshots, leaves these deletions out, so they do not accumulate.
    """

    def __init__(self, txn: Transaction) -> None:
        """Start with all superseded outputs of the sidecar."""
        self._rows = dict(txn.scan(tables.SUPERSEDED, b""))
        self._sources = {key[:ID_BYTES] for key in self._rows}
        self._dropped: list[tuple[int, Sequence[str]]] = []

    def observe(self, segment: Segment) -> None:
        """Remove the outputs that an object names, and collect its deletions. Raises ValueError for invalid rows."""
        if segment.dropped:
            self._dropped.append((segment.number, segment.dropped))
        for source, name in _named(segment) if self._rows else ():
            if source in self._sources:
                self._rows.pop(source + name_key(name), None)

    def drop_unnamed(self, txn: Transaction) -> None:
        """Drop the outputs that no object has named, and the deleted ones."""
        for key, known in self._rows.items():
            if txn.get(tables.SUPERSEDED, key) == known:  # else another process has folded more
                txn.delete(tables.SUPERSEDED, key)
        for number, names in self._dropped:
            drop_stale(txn, names, number)


def _named(segment: Segment) -> Iterator[tuple[bytes, str]]:
    """Yield the source and the name of each output in the rows of a segment."""
    for leaf in segment.leaves:
        for output in leaf.outputs:
            yield leaf.source_id, output.name
    state = segment.state or {}
    for value in rows(state.get("complete", [])):
        source, _, _, outputs, *_ = row(value, 4, 5)
        for output in rows(outputs):
            yield identity(source), read_output(output).name
    for value in rows(state.get("superseded", [])):
        source, name, _ = row(value, 3)
        yield identity(source), output_name(name)
