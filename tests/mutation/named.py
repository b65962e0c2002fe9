"""Mistakes that somebody might make in the ledger, in reading and in publishing, each with a test that must fail.

    python -m tests.mutation.named [WORD]...

Judges those whose name has one of the words with every test that runs their lines, and prints which test fails first:
so the test of a new one is found. `test_named.py` holds that each still fails with its test.
"""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

from tests.mutation.loading import ROOT
from tests.mutation.operators import Mutant


class Named(NamedTuple):
    """A mistake: a text that stands once in a module, what stands there instead, and the test that must fail."""

    path: str
    old: str
    new: str
    test: str = ""


def mutant_of(name: str, named: Named) -> Mutant:
    """Make the mutant of a mistake.

    Raises:
        ValueError: its text does not stand in the module exactly once.
    """
    path = f"ledgerbeam/{named.path}"
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        source = file.read()
    if source.count(named.old) != 1:
        raise ValueError(f"{name}: expected its text once in {path}, found it {source.count(named.old)} times")
    before, _, rest = source.partition(named.old)
    line = before.count("\n") + 1
    last = line + named.old.count("\n")
    end = rest.index("\n")
    blank = "\n" * (named.old.count("\n") - named.new.count("\n"))  # all other lines keep their places
    changed = (before + named.new + rest[:end] + blank + rest[end:]).encode()
    compile(changed, path, "exec")
    return Mutant(path, name, line, last, named.old, named.new, named.old, changed, at_import=False)


_COMMIT, _SOURCES, _FLOORS = "ledger/lmdb_commit.py", "ledger/lmdb_sources.py", "ledger/lmdb_floors.py"
_SIDECAR, _ROWS, _SUPERSEDED = "ledger/sidecar.py", "ledger/snapshot_rows.py", "ledger/lmdb_superseded.py"
_WRITER, _SINK, _STORE = "ledger/writer.py", "ledger/remote_sink.py", "ledger/remote_store.py"
_OPENING, _FAILURES, _COMPACTION = "ledger/lmdb_opening.py", "ledger/lmdb_failures.py", "ledger/compaction.py"
_FOLDING, _PUBLISH, _OBJECTS = "ledger/folding.py", "io/publish.py", "io/objects.py"
_READ, _PLAN, _WRITE = "transforms/read.py", "transforms/plan.py", "transforms/write.py"

NAMED: dict[str, Named] = {
    # Counting and recording
    "a whole plan after another plan completes": Named(_COMMIT, "leaf.is_all and known is None and", "leaf.is_all and"),
    "a whole plan beside another plan completes": Named(_COMMIT, " and len(leaves) == 1)", ")"),
    "a late leaf of a retired source is an error": Named(
        _COMMIT, "if self._txn.get(RETIRED, source) is None:", "if True:"
    ),
    "outputs of a complete source are not compared": Named(
        _COMMIT,
        "                self._compare_outputs(leaf)\n            return",
        "                pass\n            return",
    ),
    "a leaf again is not compared": Named(
        _COMMIT, "                self._compare_result(leaf)\n", "                pass\n"
    ),
    "digests are not compared": Named(_COMMIT, "row[DELTA.size :] == leaf.digest or", "True or"),
    "names of outputs are not claimed": Named(
        _COMMIT, "if not self._put_outputs(leaf):", "if not self._put_outputs(leaf) and False:"
    ),
    "a refused leaf keeps the names it claimed": Named(
        _COMMIT, "                del known[mine]", "                pass"
    ),
    "sizes of outputs are not compared": Named(
        _COMMIT, "(before.size, before.checksum) != (now.size, now.checksum)", "before.checksum != now.checksum"
    ),
    "checksums of outputs are not compared": Named(
        _COMMIT, "(before.size, before.checksum) != (now.size, now.checksum)", "before.size != now.size"
    ),
    "success does not clear the failure of its task": Named(
        _COMMIT, "                self._txn.delete(table, self._source + node)", "                pass"
    ),
    "completion does not clear failures": Named(
        _COMMIT, "            self._txn.delete_prefix(table, self._source)", "            pass"
    ),
    "rows of a complete source stay": Named(
        _COMMIT, "            self._txn.delete_prefix(APPLIED, self._source)", "            pass"
    ),
    "the count of a complete source stays": Named(
        _COMMIT, "            self._txn.delete(PENDING, self._source)", "            pass"
    ),
    "only the first of two refusals": Named(
        _COMMIT, "self._outcome.fresh += self._fresh", "self._outcome.fresh = self._fresh"
    ),
    "totals leave out what was known": Named(
        _COMMIT, "tally = tally.plus(total(self._fresh))", "tally = total(self._fresh)"
    ),
    # Sources
    "register overwrites known sources": Named(
        _SOURCES, "txn.put_many(SOURCES, rows, overwrite=False)", "txn.put_many(SOURCES, rows)"
    ),
    "register does not retire": Named(
        _SOURCES, "        retire(txn, owner, number)\n    txn.put_many", "        pass\n    txn.put_many"
    ),
    "register leaves sources gone": Named(_SOURCES, "for table in (RETIRED, GONE):", "for table in (RETIRED,):"),
    "register leaves sources retired": Named(_SOURCES, "for table in (RETIRED, GONE):", "for table in (GONE,):"),
    "a source listed twice is not retired": Named(
        _SOURCES, "            txn.put(RETIRED, late.id, encode(list(late.urls)))", "            pass"
    ),
    "what replaces is not marked": Named(_SOURCES, "replaces=source in replacing, ", ""),
    "a late registration takes a URL over": Named(
        _SOURCES, 'if row.get("number", 0) > number}', 'if row.get("number", 0) > number + 10**9}'
    ),
    "an equal number counts as later": Named(
        _SOURCES, 'if row.get("number", 0) > number}', 'if row.get("number", 0) >= number}'
    ),
    "a late registration is not retired": Named(
        _SOURCES,
        "            txn.put(RETIRED, source.id, encode(list(source.urls)))\n            for",
        "            for",
    ),
    "a late registration does not mark its successor": Named(
        _SOURCES, 'encode({**fields, "replaces": True})', "encode(fields)"
    ),
    "a retired source leaves no trace": Named(
        _SOURCES, "    txn.put(RETIRED, source, encode(urls_of(row)))", "    pass"
    ),
    "restart keeps attempts": Named(
        _SOURCES, "FAILED, ATTEMPTS, OUTPUTS, RETIRED, GONE):", "FAILED, OUTPUTS, RETIRED, GONE):"
    ),
    "restart keeps failures": Named(
        _SOURCES, "FAILED, ATTEMPTS, OUTPUTS, RETIRED, GONE):", "ATTEMPTS, OUTPUTS, RETIRED, GONE):"
    ),
    "restart keeps retired sources": Named(
        _SOURCES, "FAILED, ATTEMPTS, OUTPUTS, RETIRED, GONE):", "FAILED, ATTEMPTS, OUTPUTS, GONE):"
    ),
    "restart keeps gone sources": Named(
        _SOURCES, "FAILED, ATTEMPTS, OUTPUTS, RETIRED, GONE):", "FAILED, ATTEMPTS, OUTPUTS, RETIRED):"
    ),
    "restart keeps rows of open sources": Named(_SOURCES, "URLS, PENDING, APPLIED,", "URLS, PENDING,"),
    "restart keeps counts": Named(_SOURCES, "URLS, PENDING, APPLIED,", "URLS, APPLIED,"),
    "restart keeps owners of URLs": Named(_SOURCES, "SOURCES, URLS, PENDING, APPLIED,", "SOURCES, PENDING, APPLIED,"),
    "restart keeps totals": Named(_SOURCES, "    txn.delete(META, KEY_TOTALS)", "    pass"),
    "restart is no withdrawal": Named(
        _SOURCES, "    txn.delete(META, KEY_TOTALS)\n    count_withdrawal(txn)", "    txn.delete(META, KEY_TOTALS)"
    ),
    "restart supersedes the first page only": Named(_SOURCES, '        start = rows[-1][0] + b"\\0"', "        break"),
    "a withdrawn completion is not counted": Named(
        _SOURCES, "        count_withdrawal(txn)\n    pending", "    pending"
    ),
    "forget keeps failures": Named(_SOURCES, "    clear_failures(txn, source)\n    supersede(", "    supersede("),
    "forget failures clears nothing": Named(
        _SOURCES, "            clear_failures(txn, source)\n        else:", "            pass\n        else:"
    ),
    "forget does not supersede": Named(
        _SOURCES,
        "    supersede(txn, txn.delete_prefix(OUTPUTS, source), number)",
        "    txn.delete_prefix(OUTPUTS, source)",
    ),
    "a listing adds to what is gone": Named(_SOURCES, "    txn.clear(GONE)\n", ""),
    "an old listing says that a newer source is gone": Named(
        _SOURCES, 'max(fields.get("number", 0), fields.get("back", 0)) > number', "False"
    ),
    "an old listing says that what came back is gone": Named(
        _SOURCES, 'max(fields.get("number", 0), fields.get("back", 0)) > number', 'fields.get("number", 0) > number'
    ),
    "stale without its successor being complete": Named(
        _SUPERSEDED, "        return txn.get(COMPLETED, source) is not None\n", "        return True\n"
    ),
    "stale when one successor is complete": Named(
        _SUPERSEDED, "bool(successors) and all(", "bool(successors) and any("
    ),
    "stale without successors": Named(_SUPERSEDED, "bool(successors) and all(", "all("),
    "stale although another source has the name": Named(
        _SUPERSEDED, "                stale.pop(key[ID_BYTES:], None)", "                pass"
    ),
    # Failures
    "quarantine one death late": Named(_FAILURES, "if deaths < MAX_ATTEMPTS:", "if deaths <= MAX_ATTEMPTS:"),
    "quarantine one death early": Named(_FAILURES, "if deaths < MAX_ATTEMPTS:", "if deaths < MAX_ATTEMPTS - 1:"),
    "deaths are not added up": Named(_FAILURES, "deaths = 1 + (", "deaths = 1 + 0 * ("),
    "a finished task is blamed": Named(
        _FAILURES, "        if not is_open(txn, mark.source_id, mark.node):\n            continue\n", ""
    ),
    "an older failure replaces a newer": Named(
        _FAILURES, 'newer = row if now >= before["last"] else before', "newer = row"
    ),
    "failing again ends the quarantine": Named(_FAILURES, ', "quarantined": before["quarantined"]}', "}"),
    "failures are not counted": Named(
        _FAILURES, '"attempts": before["attempts"] + 1', '"attempts": before["attempts"]'
    ),
    # Group commit
    "requeue drops what came meanwhile": Named(
        _WRITER,
        "self._leaves[:0], self._failures[:0] = leaves, failures",
        "self._leaves, self._failures = leaves, failures",
    ),
    "requeue drops leaves": Named(
        _WRITER, "self._leaves[:0], self._failures[:0] = leaves, failures", "self._failures[:0] = failures"
    ),
    "requeue drops failures": Named(
        _WRITER, "self._leaves[:0], self._failures[:0] = leaves, failures", "self._leaves[:0] = leaves"
    ),
    "a refused leaf is offered again": Named(
        _WRITER,
        "except (NonDeterministicTaskError, NegativePendingCountError) as error:",
        "except ZeroDivisionError as error:",
    ),
    "an error in the background is dropped": Named(
        _WRITER, "            error = self._refused or self._blocked\n", "            error = self._blocked\n"
    ),
    "an error is raised for ever": Named(
        _WRITER, "            self._refused = None\n        if error", "        if error"
    ),
    "a writer stays blocked": Named(
        _WRITER,
        "                with self._changed:\n                    self._blocked = None\n",
        "                with self._changed:\n                    pass\n",
    ),
    "completions in the background are lost": Named(
        _WRITER, "self._completed += result.completed", "self._completed = result.completed"
    ),
    "fresh in the background is lost": Named(_WRITER, "self._fresh += result.fresh", "self._fresh = result.fresh"),
    "a writer is used after fork": Named(_WRITER, "if os.getpid() != self._pid:", "if False:"),
    "close does not flush": Named(
        _WRITER, "        self._thread.join()\n        self._flush()", "        self._thread.join()"
    ),
    "shared writers live on after fork": Named(
        _WRITER, "    _shared_lock = threading.Lock()\n    _shared.clear()", "    _shared_lock = threading.Lock()"
    ),
    "one entry more than the limit": Named(_WRITER, "waiting >= self._max_entries", "waiting > self._max_entries"),
    "failures do not count for the limit": Named(
        _WRITER, "waiting = len(self._leaves) + len(self._failures)", "waiting = len(self._leaves)"
    ),
    # The sink of remote ledgers
    "a forked sink keeps its parent's name": Named(_SINK, "if self._pid != os.getpid():", "if False:"),
    "a sink never looks for another job": Named(
        _SINK, "                self._check_job()", "                self._seen = self._seen"
    ),
    "a sink looks once only": Named(
        _SINK, "time.monotonic() - self._checked > CHECK_SECONDS or not self._checked", "not self._checked"
    ),
    "a sink records for the newest run": Named(
        _SINK, "number = int(self._run or self._seen)", "number = int(self._seen)"
    ),
    "a sink names no run": Named(_SINK, "number = int(self._run or self._seen)", "number = int(self._run or 0)"),
    "a sink's segments have one name": Named(_SINK, "            self._sequence += 1\n", ""),
    "a sink that was pickled forgets its job": Named(
        _SINK, "return _sink, (self._objects, self._job, self._run)", "return _sink, (self._objects, None, self._run)"
    ),
    "a sink that was pickled forgets its run": Named(
        _SINK, "return _sink, (self._objects, self._job, self._run)", 'return _sink, (self._objects, self._job, "")'
    ),
    # Floors
    "forgetting sets no floor": Named(
        _FLOORS,
        "return max(self.backs[0] if self.backs else self.replaced, self.forgotten)",
        "return self.backs[0] if self.backs else self.replaced",
    ),
    "replacing sets no floor": Named(
        _FLOORS,
        "return max(self.backs[0] if self.backs else self.replaced, self.forgotten)",
        "return max(self.backs[0] if self.backs else 0, self.forgotten)",
    ),
    "coming back sets no floor": Named(
        _FLOORS,
        "return max(self.backs[0] if self.backs else self.replaced, self.forgotten)",
        "return max(self.replaced, self.forgotten)",
    ),
    "the last registration is the floor": Named(
        _FLOORS,
        "self.backs[0] if self.backs else self.replaced, self.forgotten",
        "self.backs[-1] if self.backs else self.replaced, self.forgotten",
    ),
    "merged floors lose a replacement": Named(
        _FLOORS, "        replaced = max(self.replaced, other.replaced)", "        replaced = other.replaced"
    ),
    "merged floors lose a forgetting": Named(
        _FLOORS, "Floor(replaced, max(self.forgotten, other.forgotten), ", "Floor(replaced, other.forgotten, "
    ),
    "merged floors lose registrations": Named(
        _FLOORS, "for back in self.backs + other.backs if", "for back in other.backs if"
    ),
    "merged floors keep what is ruled out": Named(
        _FLOORS,
        "for back in self.backs + other.backs if back > replaced",
        "for back in self.backs + other.backs if True",
    ),
    "merged floors keep the replacement's own number": Named(_FLOORS, "if back > replaced}", "if back >= replaced}"),
    "an early registration is not taken in": Named(
        _FLOORS, "return self.merged(Floor(backs=(number,))) if self.backs else self", "return self"
    ),
    "a leaf is never early": Named(
        _FLOORS, "return max(self.replaced + 1, self.forgotten) <= number < min(self.backs, default=0)", "return False"
    ),
    "a contradiction does not withdraw": Named(_FLOORS, "        lmdb_sources.count_withdrawal(txn)", "        pass"),
    "a contradiction keeps no failure": Named(
        _FLOORS, "    txn.put(FAILED, leaf.source_id + node_id(leaf.source_id, leaf.lineage), row)", "    pass"
    ),
    "a contradiction leaves its source complete": Named(
        _FLOORS, "completed = txn.pop(COMPLETED, source)", "completed = txn.get(COMPLETED, source)"
    ),
    # Folding
    "a segment at the floor is dropped": Named(
        _SIDECAR,
        "    if segment.number < _number(txn, KEY_FLOOR):\n        _supersede_all",
        "    if segment.number <= _number(txn, KEY_FLOOR):\n        _supersede_all",
    ),
    "a segment below the floor counts": Named(
        _SIDECAR,
        "    if segment.number < _number(txn, KEY_FLOOR):\n        _supersede_all",
        "    if False:\n        _supersede_all",
    ),
    "a late output of a former job is forgotten": Named(_SIDECAR, "        _supersede_all(txn, segment)\n", ""),
    "a source that came back stays gone": Named(_SIDECAR, "            txn.delete(GONE, source)", "            pass"),
    "an old listing takes a source back": Named(
        _SIDECAR,
        "        if segment.number >= _number(txn, KEY_GONE):\n            txn.delete",
        "        if True:\n            txn.delete",
    ),
    "an old listing replaces a newer": Named(
        _SIDECAR,
        "if segment.gone is not None and segment.number >= _number(txn, KEY_GONE):",
        "if segment.gone is not None:",
    ),
    "leaves below the floor count": Named(
        _SIDECAR, "leaves = [leaf for leaf in leaves if _counts(txn, segment.number, leaf)]", "pass"
    ),
    "failures below the floor count": Named(
        _SIDECAR,
        "for failure in segment.failures if segment.number >= floors(txn, failure.source_id)[1]]",
        "for failure in segment.failures]",
    ),
    "deaths below the floor count": Named(
        _SIDECAR,
        "for mark in segment.deaths if segment.number >= floors(txn, mark.source_id)[1]]",
        "for mark in segment.deaths]",
    ),
    "leaves at the floor are dropped": Named(_SIDECAR, "    elif number >= floor:", "    elif number > floor:"),
    "failures at the floor are dropped": Named(
        _SIDECAR,
        "if segment.number >= floors(txn, failure.source_id)[1]]",
        "if segment.number > floors(txn, failure.source_id)[1]]",
    ),
    "deaths at the floor are dropped": Named(
        _SIDECAR,
        "if segment.number >= floors(txn, mark.source_id)[1]]",
        "if segment.number > floors(txn, mark.source_id)[1]]",
    ),
    "what a late leaf published is forgotten": Named(
        _SIDECAR, "    _supersede(txn, leaf, floor)\n    return False", "    return False"
    ),
    "a source that comes back has no floor": Named(
        _SIDECAR, "        merge_floors(txn, source.id, floor, floor)\n", "        pass\n"
    ),
    "forgetting failures forgets leaves": Named(
        _SIDECAR, "Floor() if control.failures_only else floor, floor)", "floor, floor)"
    ),
    "a restart of the same job sets a floor": Named(
        _SIDECAR,
        'if control.kind == "restart" and (before is None or before.fingerprint != control.job.fingerprint):',
        'if control.kind == "restart":',
    ),
    "an accepted job sets a floor": Named(_SIDECAR, 'if control.kind == "restart" and (', "if ("),
    "a folded segment is folded again": Named(
        _SIDECAR,
        "    if is_folded(txn, name):\n        return\n    mark_folded(txn, name)\n    outcome",
        "    mark_folded(txn, name)\n    outcome",
    ),
    "a folded control is folded again": Named(
        _SIDECAR,
        "    if is_folded(txn, name):\n        return\n    mark_folded(txn, name)\n    _put_number",
        "    mark_folded(txn, name)\n    _put_number",
    ),
    # Snapshots
    "a snapshot completes a source below its floor": Named(
        _ROWS,
        "if txn.get(SOURCES, source) is None or number < floors(txn, source)[0]:",
        "if txn.get(SOURCES, source) is None:",
    ),
    "a snapshot completes what is contradicted": Named(
        _ROWS,
        "if txn.get(COMPLETED, source) is not None or is_contradicted(txn, source):",
        "if txn.get(COMPLETED, source) is not None:",
    ),
    "a snapshot adds a completion twice": Named(
        _ROWS,
        "if txn.get(COMPLETED, source) is not None or is_contradicted(txn, source):",
        "if is_contradicted(txn, source):",
    ),
    "a snapshot leaves rows of what it completes": Named(
        _ROWS, "        txn.delete_prefix(APPLIED, source)", "        pass"
    ),
    "a snapshot counts begun tasks twice": Named(
        _ROWS, "        add_totals(txn, PENDING_ROW.unpack(pending)[1:], -1)", "        pass"
    ),
    "a snapshot keeps failures of what it completes": Named(_ROWS, "    clear_failures(txn, source)\n", ""),
    "a snapshot contradicts below the floor": Named(
        _ROWS,
        "    if number >= floors(txn, identity(source))[0]:\n        contradict",
        "    if True:\n        contradict",
    ),
    "a snapshot's failures below the floor count": Named(
        _ROWS,
        "    if number < floors(txn, identity(source))[1] or not is_open(txn, identity(source), identity(node)):\n        return\n    known = txn.get(FAILED, key)",
        "    if not is_open(txn, identity(source), identity(node)):\n        return\n    known = txn.get(FAILED, key)",
    ),
    "a snapshot's deaths below the floor count": Named(
        _ROWS,
        "    if number < floors(txn, identity(source))[1] or not is_open(txn, identity(source), identity(node)):\n        return\n    known = txn.get(ATTEMPTS, key)",
        "    if not is_open(txn, identity(source), identity(node)):\n        return\n    known = txn.get(ATTEMPTS, key)",
    ),
    "a snapshot's failure of a finished task counts": Named(
        _ROWS,
        "    if number < floors(txn, identity(source))[1] or not is_open(txn, identity(source), identity(node)):\n        return\n    known = txn.get(FAILED, key)",
        "    if number < floors(txn, identity(source))[1]:\n        return\n    known = txn.get(FAILED, key)",
    ),
    "a snapshot takes attempts back": Named(
        _ROWS, '"attempts": max(integer(attempts), before["attempts"])', '"attempts": integer(attempts)'
    ),
    "a snapshot ends a quarantine": Named(
        _ROWS, '"quarantined": quarantined is True or before["quarantined"]', '"quarantined": quarantined is True'
    ),
    "a snapshot adds deaths": Named(
        _ROWS, "max(before, min(integer(deaths), 2**32 - 1))", "before + min(integer(deaths), 2**32 - 1)"
    ),
    "a snapshot supersedes what is published": Named(
        _ROWS, "    if txn.get(OUTPUTS, key) is None:\n", "    if True:\n"
    ),
    "a snapshot retires what is registered": Named(
        _ROWS,
        "    if txn.get(SOURCES, source) is None:\n        txn.put(RETIRED",
        "    if True:\n        txn.put(RETIRED",
    ),
    "a snapshot takes URLs back": Named(
        _ROWS, "txn.put(URLS, url_key(url), source, overwrite=False)", "txn.put(URLS, url_key(url), source)"
    ),
    "a snapshot adds history": Named(_ROWS, "*map(max, before, parts)", "*map(sum, zip(before, parts))"),
    "a snapshot adds durations": Named(
        _ROWS, "DURATION_ROW.pack(max(before, count))", "DURATION_ROW.pack(before + count)"
    ),
    # Compaction
    "parts of a snapshot are deleted before what names them": Named(
        _COMPACTION, "for gone in ([*segments, *manifests], old):", "for gone in (old, [*segments, *manifests]):"
    ),
    "old parts are not deleted": Named(
        _COMPACTION, "for gone in ([*segments, *manifests], old):", "for gone in ([*segments, *manifests],):"
    ),
    "a compaction deletes the first hundred only": Named(
        _COMPACTION, "objects.delete(gone[start : start + _DELETED_AT_ONCE])", "objects.delete(gone[:_DELETED_AT_ONCE])"
    ),
    "leaves are gathered after completions": Named(
        _COMPACTION,
        "    leaves = [snapshot.add(segment) for segment in _open_leaves(objects, environment, segments + old)]\n    sources = [snapshot.add(segment) for segment in _sources(environment)]\n    rest = [snapshot.add(segment) for segment in _rest(environment, snapshot.number)]\n",
        "    sources = [snapshot.add(segment) for segment in _sources(environment)]\n    rest = [snapshot.add(segment) for segment in _rest(environment, snapshot.number)]\n    leaves = [snapshot.add(segment) for segment in _open_leaves(objects, environment, segments + old)]\n",
    ),
    "leaves of former parts are left out": Named(
        _COMPACTION,
        "_open_leaves(objects, environment, segments + old)",
        "_open_leaves(objects, environment, segments)",
    ),
    "leaves below the floor are kept": Named(_COMPACTION, " and number >= floors(txn, source)[0]\n", "\n"),
    "the second page of leaves is dropped": Named(_COMPACTION, "            held, count = {}, 0", "            return"),
    "an overtaken compaction gives up": Named(
        _COMPACTION,
        "            continue\n    return Compaction(0, 0, 0)",
        "            break\n    return Compaction(0, 0, 0)",
    ),
    "a snapshot forgets who was gone": Named(
        _COMPACTION, "    yield Segment(of_number, 0.0, gone=gone)", "    yield Segment(of_number, 0.0)"
    ),
    "a snapshot forgets runs": Named(_COMPACTION, "        yield Segment(number, 0.0, runs=runs)", "        pass"),
    "a snapshot registers with its own number": Named(
        _COMPACTION, "            yield Segment(own, 0.0, sources=", "            yield Segment(0, 0.0, sources="
    ),
    "parts of a snapshot are folded though it is covered": Named(
        _FOLDING, "            if self._unfolded(manifest.covers):\n", "            if True:\n"
    ),
    "a snapshot covers nothing": Named(_FOLDING, "for folded in (name, *manifest.covers):", "for folded in (name,):"),
    "a missing control is not waited for": Named(
        _FOLDING, "                self._wait_once(number)", "                pass"
    ),
    "a late control is not listed again": Named(
        _FOLDING, "            controls = _controls(self._objects.names(CONTROLS))", "            pass"
    ),
    "missing sources are not waited for": Named(
        _FOLDING,
        "                    self._wait_once(name)  # they were registered, and the listing had passed that place",
        "                    pass",
    ),
    # Durability
    "LMDB does not sync": Named(_OPENING, "                sync=True,", "                sync=False,"),
    "LMDB does not sync its meta page": Named(_OPENING, "metasync=True", "metasync=False"),
    "the ledger's folder is not synced": Named(_OPENING, "    _sync_folder(path)  # also", "    pass  # also"),
    "folders above the ledger are not synced": Named(
        _OPENING, "        _sync_folder(os.path.dirname(folder))", "        pass"
    ),
    "the ledger's file is made in place": Named(
        _OPENING, "            _make_tables(aside, path, map_bytes)\n", "            raise FileNotFoundError\n"
    ),
    "an output is not synced": Named(
        _PUBLISH, "            os.fsync(descriptor)\n            os.replace", "            os.replace"
    ),
    "an output is synced before it is flushed": Named(
        _PUBLISH, "            file.flush()\n            os.fsync(descriptor)\n", "            os.fsync(descriptor)\n"
    ),
    "an output's folder is not synced": Named(
        _PUBLISH, "        sync_folder(folder)\n\n\ndef _require_plain", "        pass\n\n\ndef _require_plain"
    ),
    "new folders of outputs are not synced": Named(
        _PUBLISH, "        sync_folder(os.path.dirname(path))", "        pass"
    ),
    "a live temporary is removed": Named(
        _PUBLISH,
        "    except BlockingIOError:  # its writer lives\n        return False",
        "    except BlockingIOError:  # its writer lives\n        os.unlink(path)",
    ),
    "a published temporary is removed": Named(
        _PUBLISH,
        "        if not _still_names(path, descriptor):\n            return False\n        os.unlink",
        "        os.unlink",
    ),
    "temporaries are not locked": Named(
        _PUBLISH, "            fcntl.flock(descriptor, fcntl.LOCK_EX)\n            if", "            if"
    ),
    "an object is not synced": Named(_OBJECTS, "                    os.fsync(descriptor)\n", ""),
    "an object is synced before it is flushed": Named(_OBJECTS, "                    file.flush()\n", ""),
    "an object's folder is not synced": Named(
        _OBJECTS, "            sync_folder(folder)\n        except", "            pass\n        except"
    ),
    "deleting objects is not synced": Named(
        _OBJECTS, "            sync_folder(folder)\n    except", "            pass\n    except"
    ),
    "the second creator of an object wins": Named(
        _OBJECTS, "        os.link(aside, path)", "        os.replace(aside, path); open(aside, 'w').close()"
    ),
    "other content in the way is a success": Named(
        _OBJECTS, "return created or self.read([name]) == [data]", "return True"
    ),
    "the same content in the way is a failure": Named(
        _OBJECTS, "return created or self.read([name]) == [data]", "return created"
    ),
    # Reading
    "sources are not compared with their listing": Named(
        _READ, "if (found.size, found.version) != (source.size, source.version):", "if False:"
    ),
    "versions are not compared": Named(
        _READ, "if (found.size, found.version) != (source.size, source.version):", "if found.size != source.size:"
    ),
    "members of a pack are not compared": Named(
        _READ,
        "        for member in pack.members:\n            self._check_unchanged(member)",
        "        for member in pack.members:\n            pass",
    ),
    "sizes of members are not compared": Named(_READ, "if len(data) != member.size:", "if False:"),
    "streams are not compared with their listing": Named(
        _READ, "        self._check_unchanged(source)\n        options", "        options"
    ),
    "opened sources are not compared with their listing": Named(
        _READ,
        "        for part in source.members or (source,):\n            self._check_unchanged(part)",
        "        pass",
    ),
    "tasks are read without a mark": Named(
        _READ,
        "return nullcontext() if self._ledger is None else self._ledger.working_on([task])",
        "return nullcontext()",
    ),
    # Planning and writing
    "done tasks are planned again": Named(
        _PLAN, "(source.has_quarantined(item) or source.has_done(item))", "source.has_quarantined(item)"
    ),
    "quarantined tasks are planned again": Named(
        _PLAN, "(source.has_quarantined(item) or source.has_done(item))", "source.has_done(item)"
    ),
    "a quarantined source is planned again": Named(
        _PLAN, "        if source.has_quarantined(whole):\n            return\n", ""
    ),
    "a full disk fails a source": Named(_PLAN, "        except (DiskFullError, LedgerError):\n            raise\n", ""),
    "the checksum is of nothing": Named(
        _WRITE, "checksum = content_checksum([file.data])", "checksum = content_checksum([])"
    ),
    "an output is recorded and not published": Named(
        _WRITE, '        publish_bytes(f"{self._output}/{name}", file.data, self._options)\n', ""
    ),
}


def main() -> int:
    """Run the command; returns its exit status."""
    from tests.mutation.__main__ import covers_of
    from tests.mutation.judge import Judge, run_tests

    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    cache = next((word[8:] for word in sys.argv[1:] if word.startswith("--cache=")), f"{ROOT}/.cache/mutation")
    mutants = []
    for name, named in NAMED.items():
        if not words or any(word in name for word in words):
            try:
                mutants.append(mutant_of(name, named))
            except ValueError as error:
                print(error)
    covers, seconds = covers_of(["tests/ledger", "tests/transforms"], cache)
    below = next((float(word[8:]) for word in sys.argv[1:] if word.startswith("--below=")), 1e9)
    seconds = {name: took for name, took in seconds.items() if took < below}
    covers = {place: {name for name in names if name in seconds} for place, names in covers.items()}
    survived = []

    def note(mutant: Mutant, killer: str | None) -> None:
        print(f"{mutant.function}: {killer}", flush=True)
        if killer is None:
            survived.append(mutant)

    run_tests(sorted({name.partition("::")[0] for name in seconds}), [Judge(mutants, covers, seconds, note)])
    print(f"named {len(mutants)}, survived {len(survived)}: {', '.join(mutant.function for mutant in survived)}")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
