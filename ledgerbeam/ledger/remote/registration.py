"""Sources of a remote ledger, independent of the order in which their registrations arrive.

Each registration has the number of its writer. A URL belongs to the source that was registered for it with the greatest
number. A replaced source may come back: it is registered again with a greater number. Then only its leaves with this
number or a greater one count. If it was never registered before it was replaced, all of its leaves count.

So the row of a registered source has its numbers (`number` and `again`), and the greatest number with which another
source owned one of its URLs (`replaced`). A replaced source has only `replaced`, in the table `retired`.

Leaves with a number below the cutoff of their source do not count, nor do leaves of a source whose tasks contradict
each other; see `apply`. Only a sidecar has a table of cutoffs, and a table of the objects that it has folded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ledgerbeam.errors import LedgerDamagedError, LedgerError
from ledgerbeam.ledger.lmdb import sources as lmdb_sources
from ledgerbeam.ledger.lmdb import tables
from ledgerbeam.ledger.lmdb.commit import decode_output
from ledgerbeam.ledger.lmdb.failures import NEVER_CLEARED, Stamp, failure_row, failures_since
from ledgerbeam.ledger.lmdb.sources import numbers_of, put_retired, read_source_fields, retire
from ledgerbeam.ledger.lmdb.tables import Transaction
from ledgerbeam.ledger.model.identity import ID_BYTES, Lineage, name_key, node_id, url_key
from ledgerbeam.ledger.model.rows import Failure, Leaf, Totals
from ledgerbeam.ledger.model.task import Source
from ledgerbeam.ledger.model.values import decode, encode


def register_sources(txn: Transaction, sources: Sequence[Source], number: int) -> None:
    """Register sources with a number. Of two sources in the list that name the same URL, the later one owns it."""
    keys = {source.id: [url_key(url) for url in source.urls] for source in sources}
    claims, claiming = lmdb_sources.claims(sources, keys)
    for source in sources:
        if source.id not in claiming:  # the source changed while it was listed
            retire(txn, source.id, number)
            put_retired(txn, source.id, number, source.urls)
    owned = txn.get_many(tables.URLS, claims)
    known = txn.get_many(tables.SOURCES, claiming)
    known |= txn.get_many(tables.RETIRED, claiming) if txn.count(tables.RETIRED) else {}
    is_new = {source: source not in known and owned.keys().isdisjoint(keys[source]) for source in claiming}
    lmdb_sources.register(txn, [source for source in claiming.values() if is_new[source.id]], number=number)
    for source in claiming.values():
        if not is_new[source.id]:
            _register_known(txn, source, keys[source.id], number)


def _register_known(txn: Transaction, source: Source, keys: Sequence[bytes], number: int) -> None:
    """Register a source that was registered before, or that has a URL with another owner."""
    row = txn.get(tables.SOURCES, source.id)
    if row is not None:
        fields = read_source_fields(row)
        _write(txn, source.id, fields, {*numbers_of(fields), number}, fields.get("replaced", 0))
        return
    owner_of = txn.get_many(tables.URLS, set(keys))
    owners = set(owner_of.values())
    rows = txn.get_many(tables.SOURCES, owners)
    last = {owner: max(numbers_of(read_source_fields(row))) for owner, row in rows.items()}
    replaced = max([lmdb_sources.number_of_retired(txn, source.id), *last.values()])
    for owner, row in rows.items():
        if last[owner] > number:
            note_replacement(txn, owner, row, number)
        else:
            retire(txn, owner, number)
    left = txn.get_many(tables.SOURCES, owners)
    txn.put_many(tables.URLS, [(key, source.id) for key in set(keys) if owner_of.get(key) not in left])
    if number < replaced:
        put_retired(txn, source.id, replaced, source.urls)
        return
    is_back = txn.delete(tables.RETIRED, source.id)
    fields = read_source_fields(lmdb_sources.encode_source(source, replaces=bool(owners), number=number))
    _write(txn, source.id, fields, {number}, replaced, is_back=is_back)


def note_cutoff(txn: Transaction, source: bytes, row: bytes, cutoff: Cutoff) -> None:
    """Merge another host's numbers of replacements and later registrations into the row of a registered source."""
    fields = read_source_fields(row)
    replaced = max(fields.get("replaced", 0), cutoff.replaced)
    numbers = {*numbers_of(fields), *cutoff.comebacks}
    _write(txn, source, fields, numbers, replaced, is_back=bool(cutoff.comebacks))


def note_replacement(txn: Transaction, source: bytes, row: bytes, number: int) -> None:
    """Record the number with which another source owned a URL of a registered source."""
    fields = read_source_fields(row)
    _write(txn, source, fields, numbers_of(fields), max(fields.get("replaced", 0), number))


def _write(
    txn: Transaction,
    source: bytes,
    fields: Mapping[str, Any],
    numbers: Iterable[int],
    replaced: int,
    *,
    is_back: bool = False,
) -> None:
    """Write the row of a registered source.

    Progress that no longer counts is removed; leaves that now count are folded again. `replaced` is the greatest number
    with which another source owned one of its URLs. `is_back`: the source was registered before it was replaced. If one
    of its `numbers` is less than `replaced`, `is_back` is not needed.
    """
    before = read_cutoffs(txn, source)[0].least
    found = sorted(numbers)
    counting = [number for number in found if number >= replaced]
    if not counting:
        retire(txn, source, replaced)
        return
    if is_back or len(counting) < len(found):
        cutoff = Cutoff(replaced, comebacks=tuple(number for number in counting if number > replaced))
        merge_cutoffs(txn, source, cutoff, cutoff)
    for number in counting:
        note_registration(txn, source, number)
    least = read_cutoffs(txn, source)[0].least
    if least > before:
        failures = failures_since(txn, source, read_cutoffs(txn, source)[1].least)
        lmdb_sources.withdraw(txn, source, replaced)
        for key, task in failures.items():
            task.write(txn, key)
    if least != before:
        fold_leaves_again(txn, least)
    row = {**fields, "number": counting[0], "again": counting[1:], "replaced": replaced}
    if replaced:
        row["replaces"] = True
    for name in ("number", "again", "replaced"):
        if not row[name]:
            del row[name]
    txn.put(tables.SOURCES, source, encode(row))


CONTRADICTION = b"\xff" * 16  # node of the entry that keeps a source open whose tasks contradict each other
_CLEARED = b"\xfe" * 16  # node of an entry that stands for the deleted entries of a complete source
_MORE_THAN_ANY_TASKS = 2**48


class Cutoff(NamedTuple):
    """The least number that the leaves, or the failures, of a source need in order to count.

    Cutoffs may be merged in any order, with the same result.
    """

    replaced: int = 0  # the greatest number with which the source was replaced; 0 if it never was
    forgotten: int = 0  # the greatest number with which it was forgotten; 0 if it never was
    # Numbers of its registrations after it was replaced, ascending. All known ones, because a late replacement may
    # exclude the first of them.
    comebacks: tuple[int, ...] = ()

    @classmethod
    def of(cls, numbers: Sequence[int]) -> Cutoff:
        """Return the cutoff that a row stores as these `numbers`."""
        replaced, forgotten, *comebacks = numbers
        return cls(replaced, forgotten, tuple(comebacks))

    @property
    def numbers(self) -> list[int]:
        """The cutoff as numbers, as a row stores them."""
        return [self.replaced, self.forgotten, *self.comebacks]

    @property
    def tenure(self) -> int:
        """The least number that counts by replacements and registrations alone, as if nothing was forgotten."""
        return self.comebacks[0] if self.comebacks else self.replaced

    @property
    def least(self) -> int:
        """The least number that counts."""
        return max(self.tenure, self.forgotten)

    def merged(self, other: Cutoff) -> Cutoff:
        """Return the cutoff merged with another one."""
        replaced = max(self.replaced, other.replaced)
        comebacks = {back for back in self.comebacks + other.comebacks if back > replaced}
        return Cutoff(replaced, max(self.forgotten, other.forgotten), tuple(sorted(comebacks)))

    def registered(self, number: int) -> Cutoff:
        """Return the cutoff with one more registration. Registrations may arrive in any order."""
        return self.merged(Cutoff(comebacks=(number,))) if self.comebacks else self

    def may_lower_to(self, number: int) -> bool:
        """Return whether a number does not count now, but would count if a registration with this number arrived."""
        return max(self.replaced + 1, self.forgotten) <= number < min(self.comebacks, default=0)


def read_cutoffs(txn: Transaction, source: bytes) -> tuple[Cutoff, Cutoff]:
    """Return the cutoffs of the leaves and of the failures of a source."""
    row = txn.get(tables.CUTOFFS, source) if txn.count(tables.CUTOFFS) else None
    if row is None:
        return Cutoff(), Cutoff()
    leaves, failures = decode(row)
    return Cutoff.of(leaves), Cutoff.of(failures)


def cutoffs(txn: Transaction, source: bytes) -> tuple[int, int]:
    """Return the least numbers that leaves, and failures, of a source must have."""
    leaves, failures = read_cutoffs(txn, source)
    return leaves.least, failures.least


def merge_cutoffs(txn: Transaction, source: bytes, leaves: Cutoff, failures: Cutoff) -> None:
    """Merge cutoffs, of leaves and of failures, into the recorded cutoffs of a source."""
    before = read_cutoffs(txn, source)
    _put_cutoffs(txn, source, before[0].merged(leaves), before[1].merged(failures))


def note_registration(txn: Transaction, source: bytes, number: int) -> None:
    """Add a registration of a registered source to its cutoffs."""
    before = read_cutoffs(txn, source)
    after = tuple(cutoff.registered(number) for cutoff in before)
    if after != before:
        _put_cutoffs(txn, source, *after)


def _put_cutoffs(txn: Transaction, source: bytes, leaves: Cutoff, failures: Cutoff) -> None:
    txn.put(tables.CUTOFFS, source, encode([leaves.numbers, failures.numbers]))


def is_contradicted(txn: Transaction, source: bytes) -> bool:
    """Return whether a source is held open by `contradict`."""
    return txn.get(tables.APPLIED, source + CONTRADICTION) is not None


def contradict(txn: Transaction, source: bytes) -> None:
    """Hold a registered source open until it is forgotten, because its leaves contradict each other."""
    if txn.get(tables.SOURCES, source) is None or is_contradicted(txn, source):
        return
    known = txn.get(tables.PENDING, source)
    pending, *tally = (1, *Totals()) if known is None else tables.PENDING_ROW.unpack(known)
    completed = txn.pop(tables.COMPLETED, source)
    if completed is not None:
        pending, tally = 0, list(tables.unpack_completion(completed)[1])
        lmdb_sources.count_withdrawal(txn)
        txn.put(tables.APPLIED, source + _CLEARED, tables.DELTA.pack(-1))
    txn.put(tables.PENDING, source, tables.PENDING_ROW.pack(pending + _MORE_THAN_ANY_TASKS, *tally))
    txn.put(tables.APPLIED, source + CONTRADICTION, tables.DELTA.pack(_MORE_THAN_ANY_TASKS))


def note_overwritten(txn: Transaction, lost: Sequence[tuple[int, Leaf]], now: float) -> None:
    """Hold registered sources open whose outputs were overwritten by tasks of unregistered sources.

    The object that registered the unregistered source is lost. The unregistered source may have replaced the other. So
    the right content of outputs is unknown.
    """
    written = {name_key(output.name): (number, output) for number, leaf in lost for output in leaf.outputs}
    beside = [row for row in txn.rows(tables.OUTPUTS, b"") if row[0][ID_BYTES:] in written] if written else []
    for key, row in beside:
        source, (number, output), (known, _) = key[:ID_BYTES], written[key[ID_BYTES:]], decode_output(row)
        is_same = (known.size, known.checksum) == (output.size, output.checksum)
        if is_same or number < cutoffs(txn, source)[0]:
            continue
        (url,) = lmdb_sources.urls_of_sources(txn, [source])
        error = LedgerDamagedError(
            f"source {url}: a task of another source has overwritten its output {output.name} (segment with number "
            f"{number}), and the object of the ledger that registered the other source was deleted. Run `ledgerbeam "
            "ledger forget` on this source, and the job again"
        )
        hold_open(txn, source, (), error, now)


def hold_open(txn: Transaction, source: bytes, lineage: Lineage, error: LedgerError, now: float) -> None:
    """Hold a source open because of a contradiction, and keep the error as its failure.

    The lineage of the contradicting task is empty if it is a task of another source.
    """
    contradict(txn, source)
    failure = Failure(source, lineage, f"task at {lineage}", type(error).__name__, str(error))
    txn.put(tables.FAILED, source + node_id(source, lineage), encode(failure_row(failure, Stamp(NEVER_CLEARED, now))))


KEY_NUMBER = b"number"

_WHOLE, _LEAVES_AGAIN = b"", b"leaves"


def highest_number(txn: Transaction) -> int:
    """Return the greatest number of a folded control object."""
    return int(txn.get(tables.META, KEY_NUMBER) or b"0")


def is_folded(txn: Transaction, name: str) -> bool:
    """Return whether an object was folded, and its leaves need not be folded again."""
    return txn.get(tables.FOLDED, name.encode()) == _WHOLE


def are_leaves_due(txn: Transaction, name: str) -> bool:
    """Return whether an object was folded, and its leaves must be folded again."""
    return txn.get(tables.FOLDED, name.encode()) == _LEAVES_AGAIN


def mark_folded(txn: Transaction, name: str) -> None:
    """Record that an object was folded."""
    txn.put(tables.FOLDED, name.encode(), _WHOLE)


def fold_leaves_again(txn: Transaction, number: int) -> None:
    """Mark the leaves of all objects with a number, or a greater one, to be folded again.

    They may include leaves that count now, but did not when they were folded.
    """
    for later in range(number, highest_number(txn) + 1):
        for prefix in (f"segments/{later:06d}/t-", f"snapshots/{later:06d}-"):
            found = [(key, _LEAVES_AGAIN) for key, _ in txn.scan(tables.FOLDED, prefix.encode())]
            txn.put_many(tables.FOLDED, found)
