"""Folding: applying the objects of a remote ledger to the sidecar, the local environment in which it is read.

The entries of a ledger are a set, so segments may be folded in any order, each once (table `folded`). The rest (the
owner of a URL, forgotten sources, the ledger's job) is ordered by numbers (`controls`):

- each object carries the greatest number that its writer had seen;
- a URL belongs to the source that was registered for it with the greatest number (`registration`);
- a source that is forgotten, or registered again after it was replaced, gets a cutoff: leaves with a lower number do
  not count, even if they arrive later (table `cutoffs`);
- a job that restarts sets a cutoff for all sources. A process that starts a run knows every number below the run's
  number. So an object with a number was recorded for the job that the ledger had at that number.

Two leaves of one task that contradict each other must not make a source complete on one host and not on another. So
their source stays open (`registration`), with a failure that gives the reason, until it is forgotten.
"""

from __future__ import annotations

from ledgerbeam.ledger.lmdb import commit as lmdb_commit
from ledgerbeam.ledger.lmdb import jobs as lmdb_jobs
from ledgerbeam.ledger.lmdb import sources as lmdb_sources
from ledgerbeam.ledger.lmdb import withdrawal as lmdb_withdrawal
from ledgerbeam.ledger.lmdb.commit import prepare
from ledgerbeam.ledger.lmdb.failures import Stamp, count_deaths
from ledgerbeam.ledger.lmdb.tables import COMPLETED, CUTOFFS, GONE, META, RETIRED, SOURCES, WITHDRAWN, Transaction
from ledgerbeam.ledger.model.rows import Leaf, Mark
from ledgerbeam.ledger.remote import registration
from ledgerbeam.ledger.remote.controls import Control
from ledgerbeam.ledger.remote.segment import Segment
from ledgerbeam.ledger.remote.snapshot import merge_state, supersede_state

KEY_LEDGER = b"ledger"
KEY_GONE = b"gone"
_KEY_FLOOR = b"cutoff"


def fold_segment(txn: Transaction, name: str, segment: Segment, *, of_snapshot: bool = False) -> list[Leaf]:
    """Fold a segment, once. Return its leaves of unknown sources; see `registration.note_overwritten`."""
    if registration.is_folded(txn, name):
        return []
    once_more = registration.are_leaves_due(txn, name)
    registration.mark_folded(txn, name)
    if once_more:  # record leaves that count now, but did not when it was folded; see `fold_leaves_again`
        if segment.number < read_number(txn, _KEY_FLOOR):  # the job was restarted since
            return []
        cut = [leaf for leaf in segment.leaves if 0 < registration.cutoffs(txn, leaf.source_id)[0] <= segment.number]
        stamp = Stamp(segment.number, segment.at)
        passed = stamp._replace(at=0.0) if of_snapshot else stamp
        outcome = lmdb_commit.record(txn, prepare(cut), (), stamp, passed=passed, again=True)
    else:
        outcome, _ = apply_segment(txn, segment, of_snapshot=of_snapshot)
    lost = []
    for leaf, error in outcome.refused:
        if txn.get(SOURCES, leaf.source_id) is None:
            lost.append(leaf)
        else:
            registration.hold_open(txn, leaf.source_id, leaf.lineage, error, segment.at)
    return lost


def apply_segment(
    txn: Transaction, segment: Segment, *, of_snapshot: bool = False
) -> tuple[lmdb_commit.CommitChanges, list[Mark]]:
    """Apply a segment. Return the changes that its leaves make, and the tasks that its deaths have quarantined.

    The writer and the readers of a segment get the same rows. `of_snapshot`: the segment is a part of a snapshot, so
    its time is not the time of its leaves.
    """
    for run, changed in (segment.runs or {}).items():
        lmdb_jobs.change_run(txn, run, changed)
    if segment.number < read_number(txn, _KEY_FLOOR):
        for leaf in segment.leaves:  # recorded before a restart of the job, but folded after it
            _supersede(txn, leaf, segment.number)
        if segment.state is not None:
            supersede_state(txn, segment.state, segment.number)
        if segment.dropped:
            lmdb_withdrawal.drop_stale(txn, segment.dropped, segment.number)
        return lmdb_commit.CommitChanges(), []
    registration.register_sources(txn, segment.sources, segment.number)
    for source in segment.back:
        lmdb_sources.come_back(txn, source, segment.number)
    if segment.number >= read_number(txn, KEY_GONE):
        for source in (*(source.id for source in segment.sources), *segment.back):
            txn.delete(GONE, source)
    leaves = segment.leaves
    if txn.count(CUTOFFS) or txn.count(RETIRED):
        leaves = [leaf for leaf in leaves if _counts(txn, segment.number, leaf)]
    failures = [
        failure for failure in segment.failures if segment.number >= registration.cutoffs(txn, failure.source_id)[1]
    ]
    stamp = Stamp(segment.number, segment.at)
    passed = stamp._replace(at=0.0) if of_snapshot else stamp
    outcome = lmdb_commit.record(
        txn, prepare(leaves), failures, stamp, passed=passed, again=segment.again, in_history=not of_snapshot
    )
    deaths = [mark for mark in segment.deaths if segment.number >= registration.cutoffs(txn, mark.source_id)[1]]
    quarantined = count_deaths(txn, deaths, stamp)
    if segment.dropped:
        lmdb_withdrawal.drop_stale(txn, segment.dropped, segment.number)
    if segment.gone is not None and segment.number >= read_number(txn, KEY_GONE):
        _put_number(txn, KEY_GONE, segment.number)
        lmdb_sources.set_gone(txn, segment.gone, segment.number)
    if segment.state is not None:
        merge_state(txn, segment.state, segment.number)
    return outcome, quarantined


def lacks_sources(txn: Transaction, segment: Segment) -> bool:
    """Return whether a segment names unknown sources, or sources with registrations that may not be folded yet."""
    known = {source.id for source in segment.sources}
    named = {task.source_id for tasks in (segment.leaves, segment.failures, segment.deaths) for task in tasks}
    named.update(segment.back, segment.gone or ())
    if segment.number < read_number(txn, _KEY_FLOOR):
        return False
    others = list(named - known)
    registered = txn.get_many(SOURCES, others)
    return any(source not in registered and txn.get(RETIRED, source) is None for source in others) or (
        txn.count(CUTOFFS) > 0
        and any(registration.read_cutoffs(txn, source)[0].may_lower_to(segment.number) for source in others)
    )


def _counts(txn: Transaction, number: int, leaf: Leaf) -> bool:
    """Return whether a leaf counts; if not, its outputs are superseded."""
    source = leaf.source_id
    if txn.get(RETIRED, source) is None and number >= registration.cutoffs(txn, source)[0]:
        return True
    _supersede(txn, leaf, number)
    return False


def _supersede(txn: Transaction, leaf: Leaf, number: int) -> None:
    ((_, (prepared,)),) = prepare([leaf])
    lmdb_withdrawal.supersede(txn, prepared.outputs, number)


def fold_control(txn: Transaction, name: str, control: Control, url: str) -> None:
    """Fold a control object, once. The URL of the ledger is for messages."""
    if registration.is_folded(txn, name):
        return
    registration.mark_folded(txn, name)
    _put_number(txn, registration.KEY_NUMBER, max(control.number, read_number(txn, registration.KEY_NUMBER)))
    if control.kind == "run":
        lmdb_jobs.add_run(txn, control.run, control.info, control.at)
    elif control.kind == "forget":
        for source in control.sources:
            cutoff = registration.Cutoff(forgotten=control.number)
            registration.merge_cutoffs(txn, source, registration.Cutoff() if control.failures_only else cutoff, cutoff)
        lmdb_sources.forget(txn, control.sources, failures_only=control.failures_only, number=control.number)
        for source in () if control.failures_only else control.sources:
            txn.delete(WITHDRAWN, source)
        for source, why in control.withdrawn.items():
            if txn.get(COMPLETED, source) is None:
                lmdb_withdrawal.note(txn, source, why)
    elif control.job is not None:
        before = lmdb_jobs.read_job(txn)
        if control.kind == "restart" and (before is None or before.fingerprint != control.job.fingerprint):
            _put_number(txn, _KEY_FLOOR, max(control.number, read_number(txn, _KEY_FLOOR)))
        lmdb_jobs.open_job(txn, control.job, "restart" if control.kind == "restart" else "accept", url, control.number)


def read_number(txn: Transaction, key: bytes) -> int:
    """Return a number in `meta`; 0 if it was never set."""
    row = txn.get(META, key)
    return 0 if row is None else int(row)


def _put_number(txn: Transaction, key: bytes, number: int) -> None:
    txn.put(META, key, str(number).encode())
