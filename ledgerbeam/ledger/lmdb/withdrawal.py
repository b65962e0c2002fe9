"""Work that no longer counts: outputs that are superseded, and single tasks that are withdrawn.

An output is superseded if its source was replaced or forgotten, or its job restarted, after it was recorded. It is
stale, and its object can be deleted, once no source has an output of this name and the following sources are complete:

- its source, if that is registered (it was forgotten, or its job restarted);
- else every source that now owns a URL of its source: several if a pack was cut again, none if the listing lacks its
  URLs;
- none, if the restarted job does not know its source.

To withdraw single tasks of a source, the lineages of its other tasks must be known. A ledger stores the outputs and
record counts of a task, but not its lineage. A source that was cut into N tasks, none of which fanned out, has leaves
at ``((0, N),)`` to ``((N - 1, N),)``, so their nodes distinguish them. Withdrawn tasks have rows of `counts`, with
their shares of the source's totals. The rest of the totals is divided among the remaining tasks without such a row. No
number that the ledger reports depends on this division.

The reasons of a withdrawal are stored until the source is complete: the withdrawn rows had them, and a run may be
killed before it records new ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from ledgerbeam.ledger.lmdb import tables
from ledgerbeam.ledger.lmdb.accounts import TaskAccount, decode_account, decode_statistics
from ledgerbeam.ledger.lmdb.commit import decode_output
from ledgerbeam.ledger.lmdb.environment import Environment, key_pages, row_pages
from ledgerbeam.ledger.lmdb.errors import translated
from ledgerbeam.ledger.lmdb.tables import Transaction
from ledgerbeam.ledger.model.identity import ID_BYTES, Lineage, name_key, node_id, url_key
from ledgerbeam.ledger.model.rows import Leaf, Output, Totals, Withdrawn, read_withdrawn, withdrawn_row
from ledgerbeam.ledger.model.values import decode, encode, integer, output_name, rows, text

MOST_TASKS = 2**20
"""Largest number of tasks of a source whose tasks are withdrawn singly. If there are more, all are withdrawn."""


class Withdrawal(NamedTuple):
    """The effect of withdrawing tasks of a source."""

    staying: Sequence[Leaf]  # the leaves that stay, to be recorded again after the source was forgotten
    withdrawn: int  # number of tasks that run again
    why: Withdrawn  # the reasons of their rejected records


class _Recorded(NamedTuple):
    """The recorded leaves of a source: their sum, and rows by node.

    `lineages` is empty if they are unknown, because a task of the source has fanned out.
    """

    source: bytes
    tally: Totals
    lineages: dict[bytes, Lineage]
    accounts: dict[bytes, TaskAccount]
    outputs: dict[bytes, list[Output]]

    def why(self, nodes: Iterable[bytes]) -> Withdrawn:
        """Return the reasons of the rejected records of tasks that have rows of `counts`."""
        return Withdrawn(rejected=tuple(sorted({why for node in nodes for why in self.accounts[node].counts.rejected})))


def plan(txn: Transaction, source: bytes, nodes: Collection[bytes]) -> Withdrawal | None:
    """Return the effect of withdrawing the tasks `nodes` of a source; None if none of them is finished."""
    recorded = _read(txn, source)
    if recorded is None:
        return None
    gone = recorded.lineages.keys() & set(nodes)
    with_rows = recorded.accounts.keys() | recorded.outputs.keys()
    whole = Withdrawal((), recorded.tally.tasks, recorded.why(recorded.accounts))
    if not with_rows <= recorded.lineages.keys():
        return whole if (with_rows | recorded.lineages.keys()) & set(nodes) else None
    if not gone:
        return None
    if not gone <= recorded.accounts.keys():
        return whole
    shares = _shares(recorded)
    if shares is None:
        return whole
    staying = [_leaf(txn, recorded, node, share) for node, share in shares if node not in gone]
    return Withdrawal(staying, len(gone), recorded.why(gone))


def note(txn: Transaction, source: bytes, why: Withdrawn) -> None:
    """Record that tasks of an open source were withdrawn, with the reasons, in place of earlier reasons."""
    txn.put(tables.WITHDRAWN, source, encode(withdrawn_row(why)))


def noted(txn: Transaction, source: bytes) -> Withdrawn:
    """Return the recorded reasons of a source; no reasons if nothing is recorded."""
    row = txn.get(tables.WITHDRAWN, source)
    return Withdrawn() if row is None else read_withdrawn(decode(row))


def withdrawn(environment: Environment) -> Iterator[tuple[bytes, Withdrawn]]:
    """Yield the open sources with withdrawn tasks, and the reasons; see `store.LedgerStore`."""
    for page in row_pages(environment, tables.WITHDRAWN):
        with translated(environment.path), environment.read() as txn:
            known = txn.get_many(tables.SOURCES, [source for source, _ in page])
            done = txn.get_many(tables.COMPLETED, known)
            found = [(source, read_withdrawn(decode(row))) for source, row in page if source in known.keys() - done]
        yield from found


def _read(txn: Transaction, source: bytes) -> _Recorded | None:
    if txn.get(tables.SOURCES, source) is None:
        return None
    done, pending = txn.get(tables.COMPLETED, source), txn.get(tables.PENDING, source)
    outputs = defaultdict(list)
    for _, value in txn.rows(tables.OUTPUTS, source):
        output, node = decode_output(value)
        outputs[bytes.fromhex(node)].append(output)
    accounts = {key[ID_BYTES:]: decode_account(value) for key, value in txn.rows(tables.COUNTS, source)}
    if done is not None:
        tally = tables.unpack_completion(done)[1]
        lineages = _lineages(source, tally.tasks, accounts.keys() | outputs.keys())
    elif pending is not None:
        tally = Totals(*tables.PENDING_ROW.unpack(pending)[1:])
        deltas = {key[ID_BYTES:]: tables.DELTA.unpack_from(row)[0] for key, row in txn.rows(tables.APPLIED, source)}
        count = 1 + deltas.pop(node_id(source, ()), -1)
        has_fanned_out = max(deltas.values(), default=0) >= 0
        lineages = {} if has_fanned_out else _lineages(source, count, deltas.keys())
    else:
        return None
    return _Recorded(source, tally, lineages, accounts, dict(outputs))


def _lineages(source: bytes, count: int, nodes: Collection[bytes]) -> dict[bytes, Lineage]:
    """Return the lineages of tasks of a source with `count` tasks, by node; empty if one comes from a later fan-out."""
    found: dict[bytes, Lineage] = {}
    for ordinal in range(min(count, MOST_TASKS)):
        if len(found) == len(nodes):
            break
        node = node_id(source, ((ordinal, count),))
        if node in nodes:
            found[node] = ((ordinal, count),)
    return found if len(found) == len(nodes) else {}


def _shares(recorded: _Recorded) -> list[tuple[bytes, Totals]] | None:
    """Return the share of each task in the totals of the source; see the module's docstring.

    Return None if the shares cannot add up to the totals: a task without a row of `counts` had fanned out.
    """
    shares = {node: account.share(filtered=node not in recorded.outputs) for node, account in recorded.accounts.items()}
    rest = recorded.tally
    for share in shares.values():
        rest = rest.minus(share)
    plain = [node for node in recorded.lineages if node not in recorded.accounts]
    published = [node for node in plain if node in recorded.outputs]
    if min(rest) < 0 or (rest.tasks, rest.filtered) != (len(plain), len(plain) - len(published)):
        return None
    if (rest.records or rest.bytes) and not published:
        return None
    records, sizes = (dict(_divided(amount, published)) for amount in (rest.records, rest.bytes))
    for node, time in _divided(rest.milliseconds, plain):
        filtered = int(node not in recorded.outputs)
        shares[node] = Totals(1, records.get(node, 0), sizes.get(node, 0), filtered, time)
    return list(shares.items())


def _divided(amount: int, nodes: Sequence[bytes]) -> Iterator[tuple[bytes, int]]:
    """Divide an amount equally among tasks; the first task gets the remainder."""
    for place, node in enumerate(nodes):
        yield node, amount // len(nodes) + (0 if place else amount % len(nodes))


def _leaf(txn: Transaction, recorded: _Recorded, node: bytes, share: Totals) -> Leaf:
    account, outputs = recorded.accounts.get(node), tuple(recorded.outputs.get(node, ()))
    row = txn.get(tables.STATISTICS, recorded.source + node)
    return Leaf(
        recorded.source,
        recorded.lineages[node],
        "published" if outputs else "filtered",
        outputs,
        share.records,
        share.bytes,
        share.milliseconds / 1000,
        None if account is None else account.counts,
        {} if row is None else decode_statistics(row),
    )


def supersede(txn: Transaction, rows: Iterable[tuple[bytes, bytes]], number: int) -> None:
    """Move rows of `outputs`, with different keys, to `superseded`.

    In a remote ledger, `number` is the number of the control object that supersedes the outputs; for rows that arrive
    later, the number of their segment. A process with a greater number may delete the outputs: it knows that they are
    superseded. An output that is superseded twice keeps the greater number. A local ledger has only the number 0.
    """
    found = list(rows)
    known = txn.get_many(tables.SUPERSEDED, [key for key, _ in found]) if txn.count(tables.SUPERSEDED) else {}
    numbers = {key: max(number, decode_superseded(row)[0]) for key, row in known.items()}
    txn.put_many(
        tables.SUPERSEDED,
        [(key, encode_superseded(numbers.get(key, number), decode_output(row)[0].name)) for key, row in found],
    )


def encode_superseded(number: int, name: str) -> bytes:
    """Encode a row of `superseded`."""
    return tables.SUPERSEDED_ROW.pack(number) + name.encode("utf-8", "surrogateescape")


def decode_superseded(row: bytes) -> tuple[int, str]:
    """Decode a row of `superseded`: the superseding number, and the name.

    Raises ValueError, struct.error.
    """
    name = row[tables.SUPERSEDED_ROW.size :].decode("utf-8", "surrogateescape")
    return tables.SUPERSEDED_ROW.unpack_from(row)[0], output_name(name)


def stale_outputs(environment: Environment) -> list[str]:
    """Return the names of superseded outputs whose objects may be deleted, sorted."""
    with environment.read() as txn:
        if not txn.count(tables.SUPERSEDED):
            return []
        stale = {
            key[ID_BYTES:]: decode_superseded(row)[1]
            for source, rows in groupby(txn.rows(tables.SUPERSEDED, b""), key=lambda row: row[0][:ID_BYTES])
            if _is_replaced(txn, source)
            for key, row in rows
        }
    if stale:
        for page in key_pages(environment, tables.OUTPUTS):
            for key in page:
                stale.pop(key[ID_BYTES:], None)
    return sorted(stale.values())


def superseded_names(environment: Environment) -> Iterator[list[str]]:
    """Yield the names of all superseded outputs, in pages."""
    for page in row_pages(environment, tables.SUPERSEDED):
        with translated(environment.path):
            yield [decode_superseded(row)[1] for _, row in page]


def drop_stale(txn: Transaction, names: Iterable[str], number: int | None = None) -> None:
    """Delete rows of superseded outputs of replaced sources: of `names`, and of outputs that were written again.

    In a remote ledger, `number` is the number of the process that deleted the objects. It had not seen rows with a
    greater number, so they stay. Other rows of `names` are deleted, also if their source is running again.
    """
    dropped = {name_key(name) for name in names}
    for source in list(txn.prefixes(tables.SUPERSEDED, ID_BYTES)):
        replaced = _is_replaced(txn, source)
        if not replaced and number is None:
            continue
        owners = (successors(txn, source) or {source}) if replaced else set()
        for key, row in txn.scan(tables.SUPERSEDED, source):
            name = key[ID_BYTES:]
            if number is not None and decode_superseded(row)[0] > number:
                continue
            if name in dropped or any(txn.get(tables.OUTPUTS, owner + name) is not None for owner in owners):
                txn.delete(tables.SUPERSEDED, key)


def _is_replaced(txn: Transaction, source: bytes) -> bool:
    """Return whether the replacement of a source is complete; see the rule in the module's docstring."""
    if txn.get(tables.SOURCES, source) is not None:
        return txn.get(tables.COMPLETED, source) is not None
    if txn.get(tables.RETIRED, source) is None:
        return True
    owners = successors(txn, source)
    return bool(owners) and all(txn.get(tables.COMPLETED, owner) is not None for owner in owners)


def successors(txn: Transaction, source: bytes) -> set[bytes]:
    """Return the registered sources that now own a URL of a retired source."""
    row = txn.get(tables.RETIRED, source)
    keys = {url_key(url) for url in ([] if row is None else read_retired(row)[1])}
    owner_of = txn.get_many(tables.URLS, keys)
    owners = set(owner_of.values())
    registered = {owner for owner in owners if txn.get(tables.SOURCES, owner) is not None}
    if len(owner_of) < len(keys) or any(txn.get(tables.COMPLETED, owner) is not None for owner in owners - registered):
        raise ValueError(f"the source {source.hex()} was replaced, but a source that replaced it has no row")
    return registered


def read_retired(row: bytes) -> tuple[int, list[str]]:
    """Decode a row of `retired`: the number of the control object that replaced the source, and its URLs."""
    number, *urls = rows(decode(row))
    return integer(number), [text(url) for url in urls]
