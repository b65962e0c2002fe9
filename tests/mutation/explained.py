"""Mutants that no test can or should notice, each with the reason.

A key is what `make mutants` prints of a survivor: the module, the function, the text and what takes its place. An
entry that fits no mutant is an error, so that none outlives the code that it speaks of.
"""

from __future__ import annotations

_SPARED = "it spares work that comes to the same"
_STRICT = "lists of one length are zipped"
_TYPED = "for the type checker: it is never None there"
_ONE_NAME = "a task has one name, whoever tells it"
_PLACE = "places differ all the same"
_BY_SOURCES = "whether a source is registered is looked for in `sources` first"

EXPLAINED: dict[tuple[str, str, str, str], str] = {
    (
        "ledgerbeam/ledger/counting.py",
        "is_done",
        "children > len(applied)",
        "children >= len(applied)",
    ): "the task itself has an entry besides those of its children",
    ("ledgerbeam/ledger/lmdb_commit.py", "Outcome", "0", "1"): "whoever makes one sets it",
    (
        "ledgerbeam/ledger/lmdb_commit.py",
        "_Rows.__init__",
        "[leaf for source, leaves in by_source if source in self.pending for leaf in leaves]",
        "[leaf for source, leaves in by_source for leaf in leaves]",
    ): _SPARED,
    ("ledgerbeam/ledger/lmdb_commit.py", "_Rows.__init__", "source in self.pending", "True"): _SPARED,
    (
        "ledgerbeam/ledger/lmdb_commit.py",
        "_Rows.__init__",
        "[leaf for source, leaves in by_source if source in self.completed for leaf in leaves]",
        "[leaf for source, leaves in by_source for leaf in leaves]",
    ): _SPARED,
    ("ledgerbeam/ledger/lmdb_commit.py", "_Rows.__init__", "source in self.completed", "True"): _SPARED,
    (
        "ledgerbeam/ledger/lmdb_commit.py",
        "_Rows.__init__",
        "[table for table in CLEARED if txn.count(table)]",
        "[table for table in CLEARED]",
    ): _SPARED,
    ("ledgerbeam/ledger/lmdb_commit.py", "_SourceCommit.record", "known is None", "False"): _SPARED,
    ("ledgerbeam/ledger/lmdb_commit.py", "_SourceCommit.record", "len(leaves) == 1", "False"): _SPARED,
    ("ledgerbeam/ledger/lmdb_commit.py", "_SourceCommit.record", "1", "0"): _SPARED,
    (
        "ledgerbeam/ledger/lmdb_commit.py",
        "_SourceCommit.record",
        "return",
        "pass",
    ): "the row of what is pending is written as it was",
    (
        "ledgerbeam/ledger/lmdb_commit.py",
        "_SourceCommit.record",
        "tally.plus(total(self._fresh)) if known is not None or len(self._fresh) > 1 else self._fresh[0].share",
        "tally.plus(total(self._fresh))",
    ): _SPARED,
    ("ledgerbeam/ledger/lmdb_commit.py", "_SourceCommit.record", "known is not None", "True"): _SPARED,
    (
        "ledgerbeam/ledger/lmdb_commit.py",
        "_SourceCommit.record",
        "len(self._fresh) > 1",
        "len(self._fresh) >= 1",
    ): _SPARED,
    ("ledgerbeam/ledger/lmdb_commit.py", "_SourceCommit.record", "len(self._fresh) > 1", "True"): _SPARED,
    (
        "ledgerbeam/ledger/lmdb_commit.py",
        "_SourceCommit._pass",
        "1",
        "0",
    ): "that a source has entered is known, with or without a row of its own",
    ("ledgerbeam/ledger/lmdb_commit.py", "_SourceCommit._pass", "node in self._above", "False"): _SPARED,
    ("ledgerbeam/ledger/lmdb_commit.py", "_SourceCommit._pass", "continue", "pass"): _SPARED,
    ("ledgerbeam/ledger/lmdb_commit.py", "_SourceCommit._pass", "self._above.add(node)", "pass"): _SPARED,
    (
        "ledgerbeam/ledger/lmdb_commit.py",
        "_SourceCommit._pass",
        "row is None or passed_at(row) < self._passed",
        "passed_at(row) < self._passed",
    ): _TYPED,
    ("ledgerbeam/ledger/lmdb_commit.py", "_SourceCommit._pass", "row is None", "False"): _TYPED,
    (
        "ledgerbeam/ledger/lmdb_commit.py",
        "_SourceCommit._pass",
        "passed_at(row) < self._passed",
        "passed_at(row) <= self._passed",
    ): "the row is written as it was",
    (
        "ledgerbeam/ledger/lmdb_commit.py",
        "_SourceCommit._compare_result",
        "row is None or row[DELTA.size :] == leaf.digest",
        "row[DELTA.size:] == leaf.digest",
    ): _TYPED,
    ("ledgerbeam/ledger/lmdb_commit.py", "_SourceCommit._compare_result", "row is None", "False"): _TYPED,
    (
        "ledgerbeam/ledger/lmdb_commit.py",
        "_SourceCommit._compare_outputs",
        "known is None or known == row",
        "known is None",
    ): _SPARED,
    ("ledgerbeam/ledger/lmdb_commit.py", "_SourceCommit._compare_outputs", "known == row", "False"): _SPARED,
    ("ledgerbeam/ledger/lmdb_commit.py", "total", "True", "False"): _STRICT,
    ("ledgerbeam/ledger/lmdb_commit.py", "add_totals", "True", "False"): _STRICT,
    ("ledgerbeam/ledger/lmdb_decoding.py", "read_source_fields", "0", "1"): "either is a number",
    ("ledgerbeam/ledger/lmdb_decoding.py", "check_info", "0", "1"): "either is a number",
    ("ledgerbeam/ledger/lmdb_failures.py", "TaskFailures.fail", 'self.task or row["task"]', "row['task']"): _ONE_NAME,
    ("ledgerbeam/ledger/lmdb_failures.py", "count_deaths", "task.task or mark.name", "mark.name"): _ONE_NAME,
    (
        "ledgerbeam/ledger/lmdb_failures.py",
        "TaskFailures.clear",
        "2",
        "3",
    ): "a death is longer than a stamp: with its place it is no less than a stamp that it equals",
    (
        "ledgerbeam/ledger/lmdb_failures.py",
        "TaskFailures.write",
        "max(self.deaths)",
        "min(self.deaths)",
    ): "of a row that only says that a task is in quarantine nobody reads when",
    (
        "ledgerbeam/ledger/lmdb_failures.py",
        "TaskFailures.shown",
        "0.0",
        "1.0",
    ): "every death is later than the first second of 1970",
    (
        "ledgerbeam/ledger/lmdb_failures.py",
        "passed_at",
        "0.0",
        "1.0",
    ): "every failure is later than the first second of 1970",
    ("ledgerbeam/ledger/lmdb_failures.py", "clear_passed", "task.failed is None", "False"): _SPARED,
    ("ledgerbeam/ledger/lmdb_failures.py", "clear_passed", "return", "pass"): _SPARED,
    ("ledgerbeam/ledger/lmdb_failures.py", "record_failures", "1", "2"): _PLACE,
    ("ledgerbeam/ledger/lmdb_failures.py", "count_deaths", "1", "2"): _PLACE,
    ("ledgerbeam/ledger/lmdb_jobs.py", "change_run", "0", "1"): "every run ends later than the first second of 1970",
    (
        "ledgerbeam/ledger/lmdb_sources.py",
        "register",
        "late.id not in claiming and txn.get(SOURCES, late.id) is None",
        "txn.get(SOURCES, late.id) is None",
    ): "the row of a source that claims all its URLs is deleted below",
    (
        "ledgerbeam/ledger/lmdb_sources.py",
        "register",
        "late.id not in claiming",
        "True",
    ): "the row of a source that claims all its URLs is deleted below",
    ("ledgerbeam/ledger/lmdb_sources.py", "register", "(RETIRED, GONE)", "(GONE,)"): _BY_SOURCES,
    ("ledgerbeam/ledger/lmdb_sources.py", "count_withdrawal", "1", "2"): "any other number than before says it",
    (
        "ledgerbeam/ledger/lmdb_sources.py",
        "set_gone",
        'max(fields.get("number", 0), fields.get("back", 0)) > number',
        "max(fields.get('number', 0), fields.get('back', 0)) >= number",
    ): "nobody says with one number that a source is back and that it is gone",
    (
        "ledgerbeam/ledger/lmdb_superseded.py",
        "_successors",
        "owner is not None and txn.get(SOURCES, owner) is not None",
        "txn.get(SOURCES, owner) is not None",
    ): _TYPED,
    ("ledgerbeam/ledger/lmdb_superseded.py", "_successors", "owner is not None", "True"): _TYPED,
    (
        "ledgerbeam/ledger/lmdb_views.py",
        "applied",
        "txn.scan(APPLIED, source) if txn.get(PENDING, source) is not None else []",
        "txn.scan(APPLIED, source)",
    ): _SPARED,
    ("ledgerbeam/ledger/lmdb_views.py", "applied", "txn.get(PENDING, source) is not None", "True"): _SPARED,
    ("ledgerbeam/ledger/lmdb_views.py", "progress", "not known or row is None", "not known"): _TYPED,
    ("ledgerbeam/ledger/lmdb_views.py", "progress", "row is None", "False"): _TYPED,
    (
        "ledgerbeam/ledger/lmdb_views.py",
        "sources",
        "set(txn.prefixes(FAILED, ID_BYTES)) if txn.count(FAILED) else set()",
        "set(txn.prefixes(FAILED, ID_BYTES))",
    ): _SPARED,
    (
        "ledgerbeam/ledger/packing.py",
        "_ends_pack",
        "draw * target_bytes < member.size * _HASH_RANGE",
        "draw * target_bytes <= member.size * _HASH_RANGE",
    ): "they are equal for one hash in 2**64",
    (
        "ledgerbeam/ledger/selection.py",
        "OpenSource.has_done",
        "bool(self.applied) and is_done(task.lineage, self.source.id, self.applied)",
        "is_done(task.lineage, self.source.id, self.applied)",
    ): _SPARED,
    (
        "ledgerbeam/ledger/selection.py",
        "OpenSource.has_quarantined",
        "bool(self.attempts) and self.attempts.get(task.node, 0) >= MAX_ATTEMPTS",
        "self.attempts.get(task.node, 0) >= MAX_ATTEMPTS",
    ): _SPARED,
    ("ledgerbeam/ledger/selection.py", "OpenSource.has_quarantined", "0", "1"): "neither is enough for quarantine",
    ("ledgerbeam/ledger/selection.py", "with_progress", "True", "False"): _STRICT,
    (
        "ledgerbeam/ledger/task.py",
        "Source.__post_init__",
        "self.members and any(member.members for member in self.members)",
        "any((member.members for member in self.members))",
    ): _SPARED,
}
