"""Mistakes that somebody might make in the ledger, in reading and in publishing, each with a test that must fail.

    python -m tests.mutation.named [WORD]...

Judges those whose name has one of the words (all without one), each with its test, and prints which test failed.
"""

# ruff: noqa: E501 - texts of the library, and of its mistakes, stand as they are

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from tests.mutation.judge import ALONE, Judge, run_tests
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


NAMED: dict[str, Named] = {
    "a whole plan after another plan completes": Named(
        "ledger/lmdb/commit.py",
        "leaf.is_all and known is None and",
        "leaf.is_all and",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_a_whole_source_beside_parts_of_it_is_an_error_and_completes_nothing",
    ),
    "a whole plan beside another plan completes": Named(
        "ledger/lmdb/commit.py",
        " and len(leaves) == 1)",
        ")",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_a_whole_source_beside_parts_of_it_is_an_error_and_completes_nothing",
    ),
    "a late leaf of a retired source is an error": Named(
        "ledger/lmdb/commit.py",
        "if self._txn.get(RETIRED, source) is None:",
        "if True:",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_a_source_listed_in_two_versions_at_once_is_the_last_one",
    ),
    "outputs of a complete source are not compared": Named(
        "ledger/lmdb/commit.py",
        "                self._compare_outputs(leaf)\n            return",
        "                pass\n            return",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_other_content_under_the_same_name_is_an_error",
    ),
    "a leaf again is not compared": Named(
        "ledger/lmdb/commit.py",
        "                if self._compare_result(leaf):\n",
        "                if True:\n",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_ending_otherwise_than_before_is_an_error",
    ),
    "digests are not compared": Named(
        "ledger/lmdb/commit.py",
        "if row is None or row[DELTA.size :] == leaf.digest:",
        "if True:",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_ending_otherwise_than_before_is_an_error",
    ),
    "names of outputs are not claimed": Named(
        "ledger/lmdb/commit.py",
        "if not self._put_outputs(leaf):",
        "if not self._put_outputs(leaf) and False:",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_two_tasks_with_one_output_name_are_an_error",
    ),
    "a refused leaf keeps the names it claimed": Named(
        "ledger/lmdb/commit.py",
        "                del known[mine]",
        "                pass",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_what_was_refused_keeps_no_name_from_another_task",
    ),
    "sizes of outputs are not compared": Named(
        "ledger/lmdb/commit.py",
        "if before.size != now.size or (",
        "if (",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_an_output_that_differs_in_size_or_checksum_is_an_error",
    ),
    "checksums of outputs are not compared": Named(
        "ledger/lmdb/commit.py",
        "before.checksum != now.checksum and are_comparable(before.checksum, now.checksum)",
        "False",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_other_content_under_the_same_name_is_an_error",
    ),
    "success does not clear the failure of its task": Named(
        "ledger/lmdb/commit.py",
        "            clear_passed(self._txn, self._source + leaf.node, None)",
        "            pass",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_success_clears_worker_deaths",
    ),
    "completion does not clear failures": Named(
        "ledger/lmdb/commit.py",
        "            self._txn.delete_prefix(table, self._source)",
        "            pass",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_completion_leaves_no_failure_and_no_death_of_any_task",
    ),
    "rows of a complete source stay": Named(
        "ledger/lmdb/commit.py",
        "            self._txn.delete_prefix(APPLIED, self._source)",
        "            pass",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_a_source_that_was_done_in_steps_can_be_done_in_steps_again",
    ),
    "the count of a complete source stays": Named(
        "ledger/lmdb/commit.py",
        "            self._txn.delete(PENDING, self._source)",
        "            pass",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_a_source_that_was_done_in_steps_can_be_done_in_steps_again",
    ),
    "only the first of two refusals": Named(
        "ledger/lmdb/commit.py",
        "self._outcome.fresh += self._fresh",
        "self._outcome.fresh = self._fresh",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_what_was_recorded_when_and_how_long_it_took",
    ),
    "totals leave out what was known": Named(
        "ledger/lmdb/commit.py",
        "tally = tally.plus(total(self._fresh))",
        "tally = total(self._fresh)",
        "tests/ledger/remote/test_store.py::test_tasks_that_contradict_each_other_hold_their_source_open_on_every_host",
    ),
    "register overwrites known sources": Named(
        "ledger/lmdb/sources.py",
        "txn.put_many(SOURCES, rows, overwrite=False)",
        "txn.put_many(SOURCES, rows)",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_registering_again_does_not_forget_that_a_source_replaced_another",
    ),
    "register does not retire": Named(
        "ledger/lmdb/sources.py",
        "        retire(txn, owner, number)\n    txn.put_many",
        "        pass\n    txn.put_many",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_late_leaves_of_a_changed_source_are_ignored",
    ),
    "register leaves sources gone": Named(
        "ledger/lmdb/sources.py",
        "(RETIRED,) if number else (RETIRED, GONE)",
        "(RETIRED,)",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_sources_that_are_gone_are_counted_apart_and_keep_their_outputs",
    ),
    "a source listed twice is not retired": Named(
        "ledger/lmdb/sources.py",
        "            _put_retired(txn, late.id, number, late.urls)",
        "            pass",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_a_source_listed_in_two_versions_at_once_is_the_last_one",
    ),
    "what replaces is not marked": Named(
        "ledger/lmdb/sources.py",
        "replaces=source in replacing, ",
        "",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_progress_of_open_sources",
    ),
    "a late registration takes a URL over": Named(
        "ledger/lmdb/sources.py",
        'if row.get("number", 0) > number}',
        'if row.get("number", 0) > number + 10**9}',
        "tests/ledger/remote/test_cutoffs.py::test_the_registration_with_the_greatest_number_has_the_url_in_whatever_order_they_come",
    ),
    "an equal number counts as later": Named(
        "ledger/lmdb/sources.py",
        'if row.get("number", 0) > number}',
        'if row.get("number", 0) >= number}',
        "tests/ledger/remote/test_cutoffs.py::test_of_registrations_with_one_number_the_later_has_the_url",
    ),
    "a late registration does not mark its successor": Named(
        "ledger/lmdb/sources.py",
        'encode({**fields, "replaces": True})',
        "encode(fields)",
        "tests/ledger/remote/test_cutoffs.py::test_the_registration_with_the_greatest_number_has_the_url_in_whatever_order_they_come",
    ),
    "a retired source leaves no trace": Named(
        "ledger/lmdb/sources.py",
        "    _put_retired(txn, source, number, urls_of(row))",
        "    pass",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_late_leaves_of_a_changed_source_are_ignored",
    ),
    "restart keeps attempts": Named(
        "ledger/lmdb/sources.py",
        "FAILED, ATTEMPTS, OUTPUTS),",
        "FAILED, OUTPUTS),",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_a_restarted_job_has_nothing_of_the_former_but_what_it_published",
    ),
    "restart keeps failures": Named(
        "ledger/lmdb/sources.py",
        "FAILED, ATTEMPTS, OUTPUTS),",
        "ATTEMPTS, OUTPUTS),",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_a_restarted_job_has_nothing_of_the_former_but_what_it_published",
    ),
    "restart keeps retired sources": Named(
        "ledger/lmdb/sources.py",
        "COUNTED, RETIRED, GONE),",
        "COUNTED, GONE),",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_a_restarted_job_has_nothing_of_the_former_but_what_it_published",
    ),
    "restart keeps gone sources": Named(
        "ledger/lmdb/sources.py",
        "COUNTED, RETIRED, GONE),",
        "COUNTED, RETIRED),",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_a_restarted_job_has_nothing_of_the_former_but_what_it_published",
    ),
    "restart keeps rows of open sources": Named(
        "ledger/lmdb/sources.py",
        "SOURCES, PENDING, APPLIED,",
        "SOURCES, PENDING,",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_a_restarted_job_has_nothing_of_the_former_but_what_it_published",
    ),
    "restart keeps counts": Named(
        "ledger/lmdb/sources.py",
        "SOURCES, PENDING, APPLIED,",
        "SOURCES, APPLIED,",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_a_restarted_job_has_nothing_of_the_former_but_what_it_published",
    ),
    "restart forgets whose URLs were whose": Named(
        "ledger/lmdb/sources.py",
        "        _disown_unread(txn)",
        "        txn.clear(URLS)",
        "tests/ledger/lmdb/test_store.py::test_a_job_that_restarts_knows_which_sources_have_changed_since",
    ),
    "restart takes the index of a source that was not read for right": Named(
        "ledger/lmdb/sources.py",
        "        _disown_unread(txn)",
        "        pass",
        "tests/ledger/lmdb/test_store.py::test_a_job_that_restarts_knows_which_sources_have_changed_since",
    ),
    "restart looks at the first page of unread sources only": Named(
        "ledger/lmdb/sources.py",
        '                txn.put_many(URLS, [(url_key(url), _NOBODY) for url in urls_of(row)])\n        start = rows[-1][0] + b"\\0"',
        "                txn.put_many(URLS, [(url_key(url), _NOBODY) for url in urls_of(row)])\n        break",
        "tests/ledger/lmdb/test_store.py::test_a_job_that_restarts_looks_at_more_unread_sources_than_a_page",
    ),
    "restart of a remote ledger keeps whose URLs were whose": Named(
        "ledger/lmdb/sources.py",
        "    if number:\n        txn.clear(URLS)",
        "    if number:\n        pass",
        "tests/ledger/remote/test_order.py::test_hosts_agree_on_a_source_that_has_changed_since_a_restart",
    ),
    "restart keeps totals": Named(
        "ledger/lmdb/sources.py",
        "    txn.delete(META, KEY_TOTALS)",
        "    pass",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_a_restarted_job_begins_anew_and_old_outputs_are_stale",
    ),
    "restart is no withdrawal": Named(
        "ledger/lmdb/sources.py",
        "    txn.delete(META, KEY_TOTALS)\n    count_withdrawal(txn)",
        "    txn.delete(META, KEY_TOTALS)",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_a_withdrawn_completion_is_seen_by_who_has_looked_often",
    ),
    "restart supersedes the first page only": Named(
        "ledger/lmdb/sources.py",
        '        supersede(txn, rows, number)\n        start = rows[-1][0] + b"\\0"',
        "        supersede(txn, rows, number)\n        break",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_a_restarted_job_supersedes_more_outputs_than_a_page",
    ),
    "a withdrawn completion is not counted": Named(
        "ledger/lmdb/sources.py",
        "        count_withdrawal(txn)\n    pending",
        "    pending",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_a_withdrawn_completion_is_seen_by_who_has_looked_often",
    ),
    "forget keeps failures": Named(
        "ledger/lmdb/sources.py",
        "    clear_failures(txn, source)\n    supersede(",
        "    supersede(",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_an_open_source_can_be_forgotten",
    ),
    "forget failures clears nothing": Named(
        "ledger/lmdb/sources.py",
        "            clear_failures(txn, source)\n        else:",
        "            pass\n        else:",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_forgetting_failures_ends_quarantine_and_keeps_progress",
    ),
    "forget does not supersede": Named(
        "ledger/lmdb/sources.py",
        "    supersede(txn, txn.delete_prefix(OUTPUTS, source), number)",
        "    txn.delete_prefix(OUTPUTS, source)",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_a_name_that_another_source_uses_now_is_not_stale",
    ),
    "a listing adds to what is gone": Named(
        "ledger/lmdb/sources.py",
        "    txn.clear(GONE)\n",
        "",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_sources_that_are_gone_are_counted_apart_and_keep_their_outputs",
    ),
    "an old listing says that a newer source is gone": Named(
        "ledger/lmdb/sources.py",
        'max(fields.get("number", 0), fields.get("back", 0)) > number',
        "False",
        "tests/ledger/remote/test_cutoffs.py::test_a_listing_says_nothing_of_sources_that_were_listed_by_a_later_run",
    ),
    "an old listing says that what came back is gone": Named(
        "ledger/lmdb/sources.py",
        'max(fields.get("number", 0), fields.get("back", 0)) > number',
        'fields.get("number", 0) > number',
        "tests/ledger/remote/test_cutoffs.py::test_a_listing_says_nothing_of_sources_that_were_listed_by_a_later_run",
    ),
    "stale without its successor being complete": Named(
        "ledger/lmdb/superseded.py",
        "        return txn.get(COMPLETED, source) is not None\n",
        "        return True\n",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_outputs_of_a_forgotten_source_are_not_stale_until_it_is_complete",
    ),
    "stale when one successor is complete": Named(
        "ledger/lmdb/superseded.py",
        "bool(successors) and all(",
        "bool(successors) and any(",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_a_changed_pack_is_replaced_when_all_its_members_are_done",
    ),
    "stale without successors": Named(
        "ledger/lmdb/superseded.py",
        "bool(successors) and all(",
        "all(",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_outputs_of_a_source_whose_url_is_nobodys_now_are_not_stale",
    ),
    "stale although another source has the name": Named(
        "ledger/lmdb/superseded.py",
        "                stale.pop(key[ID_BYTES:], None)",
        "                pass",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_a_name_that_another_source_uses_now_is_not_stale",
    ),
    "quarantine one death late": Named(
        "ledger/lmdb/failures.py",
        "len(self.deaths) >= MAX_ATTEMPTS",
        "len(self.deaths) > MAX_ATTEMPTS",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_a_task_whose_workers_died_too_often_is_quarantined",
    ),
    "quarantine one death early": Named(
        "ledger/lmdb/failures.py",
        "len(self.deaths) >= MAX_ATTEMPTS",
        "len(self.deaths) >= MAX_ATTEMPTS - 1",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_a_task_whose_workers_died_too_often_is_quarantined",
    ),
    "deaths are not added up": Named(
        "ledger/lmdb/failures.py",
        "        task.deaths.add(Death(*stamp, places[key], broke=False))",
        "        task.deaths = {Death(*stamp, places[key], broke=False)}",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_a_task_whose_workers_died_too_often_is_quarantined",
    ),
    "a finished task is blamed": Named(
        "ledger/lmdb/failures.py",
        "        if not counts(txn, mark.source_id, mark.node, stamp):\n            continue\n",
        "",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_success_clears_worker_deaths",
    ),
    "an older failure replaces a newer": Named(
        "ledger/lmdb/failures.py",
        "newer = max((self.failed, dict(row)), key=_newer)",
        "newer = dict(row)",
        "tests/ledger/remote/test_cutoffs.py::test_the_newest_failure_of_a_task_is_told_whichever_comes_in_last",
    ),
    "failing again ends the quarantine": Named(
        "ledger/lmdb/failures.py",
        "        task.fail(failure_row(failure, stamp))\n",
        "        task = TaskFailures(); task.fail(failure_row(failure, stamp))\n",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_a_task_in_quarantine_stays_there_though_it_fails",
    ),
    "failures are not counted": Named(
        "ledger/lmdb/failures.py",
        'self.failed["attempts"] + row["attempts"]',
        'self.failed["attempts"]',
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_a_failure_keeps_its_source_open_until_the_task_succeeds",
    ),
    "requeue drops what came meanwhile": Named(
        "ledger/worker/writer.py",
        "self._leaves[:0], self._failures[:0] = leaves, failures",
        "self._leaves, self._failures = leaves, failures",
        "tests/ledger/lmdb/test_group_commit.py::test_a_failed_commit_keeps_its_own_entries_and_those_that_came_meanwhile",
    ),
    "requeue drops leaves": Named(
        "ledger/worker/writer.py",
        "self._leaves[:0], self._failures[:0] = leaves, failures",
        "self._failures[:0] = failures",
        "tests/ledger/lmdb/test_group_commit.py::test_a_failed_commit_keeps_its_own_entries_and_those_that_came_meanwhile",
    ),
    "requeue drops failures": Named(
        "ledger/worker/writer.py",
        "self._leaves[:0], self._failures[:0] = leaves, failures",
        "self._leaves[:0] = leaves",
        "tests/ledger/lmdb/test_group_commit.py::test_a_failed_commit_keeps_its_own_entries_and_those_that_came_meanwhile",
    ),
    "a refused leaf is offered again": Named(
        "ledger/worker/writer.py",
        "except (NonDeterministicTaskError, NegativePendingCountError) as error:",
        "except ZeroDivisionError as error:",
        "tests/ledger/lmdb/test_group_commit.py::test_a_refused_task_is_told_once_and_offered_no_more",
    ),
    "an error in the background is dropped": Named(
        "ledger/worker/writer.py",
        "            error = self._refused or self._blocked\n",
        "            error = self._blocked\n",
        "tests/ledger/lmdb/test_group_commit.py::test_a_refused_task_is_told_once_and_offered_no_more",
    ),
    "an error is raised for ever": Named(
        "ledger/worker/writer.py",
        "            self._refused = None\n        if error",
        "        if error",
        "tests/ledger/lmdb/test_group_commit.py::test_a_refused_task_is_told_once_and_offered_no_more",
    ),
    "a writer stays blocked": Named(
        "ledger/worker/writer.py",
        "                with self._changed:\n                    self._blocked = None\n",
        "                with self._changed:\n                    pass\n",
        "tests/ledger/lmdb/test_group_commit.py::test_a_failed_commit_keeps_its_own_entries_and_those_that_came_meanwhile",
    ),
    "completions in the background are lost": Named(
        "ledger/worker/writer.py",
        "self._completed += result.completed",
        "self._completed = result.completed",
        "tests/ledger/lmdb/test_group_commit.py::test_results_of_several_commits_add_up_until_they_are_taken",
    ),
    "fresh in the background is lost": Named(
        "ledger/worker/writer.py",
        "self._fresh += result.fresh",
        "self._fresh = result.fresh",
        "tests/ledger/lmdb/test_group_commit.py::test_results_of_several_commits_add_up_until_they_are_taken",
    ),
    "a writer is used after fork": Named(
        "ledger/worker/writer.py",
        "if os.getpid() != self._pid:",
        "if False:",
        "tests/ledger/lmdb/test_group_commit.py::test_a_writer_is_refused_in_a_forked_process_which_gets_a_shared_one_of_its_own",
    ),
    "close does not flush": Named(
        "ledger/worker/writer.py",
        "        self._thread.join()\n        self._flush()",
        "        self._thread.join()",
        "tests/ledger/lmdb/test_group_commit.py::test_closing_commits_what_was_added_last",
    ),
    "shared writers live on after fork": Named(
        "ledger/worker/writer.py",
        "    _shared_lock = threading.Lock()\n    _shared.clear()",
        "    _shared_lock = threading.Lock()",
        "tests/ledger/lmdb/test_group_commit.py::test_a_writer_is_refused_in_a_forked_process_which_gets_a_shared_one_of_its_own",
    ),
    "one entry more than the limit": Named(
        "ledger/worker/writer.py",
        "waiting >= self._max_entries",
        "waiting > self._max_entries",
        "tests/ledger/worker/test_writer.py::test_enough_entries_are_committed_at_once",
    ),
    "failures do not count for the limit": Named(
        "ledger/worker/writer.py",
        "waiting = len(self._leaves) + len(self._failures)",
        "waiting = len(self._leaves)",
        "tests/ledger/lmdb/test_group_commit.py::test_failures_count_for_the_limit_of_a_group",
    ),
    "a forked sink keeps its parent's name": Named(
        "ledger/remote/sink.py",
        "if self._pid != os.getpid():",
        "if False:",
        "tests/ledger/lmdb/test_group_commit.py::test_parent_and_child_record_with_one_sink_and_lose_nothing",
    ),
    "a sink never looks for another job": Named(
        "ledger/remote/sink.py",
        "                self._check_job()",
        "                self._seen = self._seen",
        "tests/ledger/lmdb/test_group_commit.py::test_a_sink_looks_for_another_job_before_it_records_and_from_time_to_time",
    ),
    "a sink looks once only": Named(
        "ledger/remote/sink.py",
        "if not self._run or not self._checked or time.monotonic() - self._checked > CHECK_SECONDS:",
        "if not self._run or not self._checked:",
        "tests/ledger/lmdb/test_group_commit.py::test_a_sink_looks_for_another_job_before_it_records_and_from_time_to_time",
    ),
    "a sink records for the newest run": Named(
        "ledger/remote/sink.py",
        "number = int(self._run or self._seen)",
        "number = int(self._seen)",
        "tests/ledger/lmdb/test_group_commit.py::test_a_sink_records_for_its_run_or_else_for_the_newest",
    ),
    "a sink names no run": Named(
        "ledger/remote/sink.py",
        "number = int(self._run or self._seen)",
        "number = int(self._run or 0)",
        "tests/ledger/lmdb/test_group_commit.py::test_a_sink_records_for_its_run_or_else_for_the_newest",
    ),
    "a sink's segments have one name": Named(
        "ledger/remote/sink.py",
        "            self._sequence += 1\n",
        "",
        "tests/ledger/lmdb/test_group_commit.py::test_a_sink_in_two_threads_names_every_segment_anew",
    ),
    "forgetting sets no cutoff": Named(
        "ledger/remote/cutoffs.py",
        "return max(self.comebacks[0] if self.comebacks else self.replaced, self.forgotten)",
        "return self.comebacks[0] if self.comebacks else self.replaced",
        "tests/ledger/remote/test_cutoffs.py::test_what_was_recorded_before_a_change_does_not_count_after_it",
    ),
    "replacing sets no cutoff": Named(
        "ledger/remote/cutoffs.py",
        "return max(self.comebacks[0] if self.comebacks else self.replaced, self.forgotten)",
        "return max(self.comebacks[0] if self.comebacks else 0, self.forgotten)",
        "tests/ledger/remote/test_order.py::test_cutoffs_merge_in_any_order",
    ),
    "coming back sets no cutoff": Named(
        "ledger/remote/cutoffs.py",
        "return max(self.comebacks[0] if self.comebacks else self.replaced, self.forgotten)",
        "return max(self.replaced, self.forgotten)",
        "tests/ledger/remote/test_order.py::test_cutoffs_merge_in_any_order",
    ),
    "the last registration is the cutoff": Named(
        "ledger/remote/cutoffs.py",
        "self.comebacks[0] if self.comebacks else self.replaced, self.forgotten",
        "self.comebacks[-1] if self.comebacks else self.replaced, self.forgotten",
        "tests/ledger/remote/test_order.py::test_cutoffs_merge_in_any_order",
    ),
    "merged cutoffs lose a replacement": Named(
        "ledger/remote/cutoffs.py",
        "        replaced = max(self.replaced, other.replaced)",
        "        replaced = other.replaced",
        "tests/ledger/remote/test_order.py::test_cutoffs_merge_in_any_order",
    ),
    "merged cutoffs lose a forgetting": Named(
        "ledger/remote/cutoffs.py",
        "Cutoff(replaced, max(self.forgotten, other.forgotten), ",
        "Cutoff(replaced, other.forgotten, ",
        "tests/ledger/remote/test_order.py::test_cutoffs_merge_in_any_order",
    ),
    "merged cutoffs lose registrations": Named(
        "ledger/remote/cutoffs.py",
        "for back in self.comebacks + other.comebacks if",
        "for back in other.comebacks if",
        "tests/ledger/remote/test_order.py::test_cutoffs_merge_in_any_order",
    ),
    "merged cutoffs keep what is ruled out": Named(
        "ledger/remote/cutoffs.py",
        "for back in self.comebacks + other.comebacks if back > replaced",
        "for back in self.comebacks + other.comebacks if True",
        "tests/ledger/remote/test_order.py::test_cutoffs_merge_in_any_order",
    ),
    "merged cutoffs keep the replacement's own number": Named(
        "ledger/remote/cutoffs.py",
        "if back > replaced}",
        "if back >= replaced}",
        "tests/ledger/remote/test_order.py::test_cutoffs_merge_in_any_order",
    ),
    "an early registration is not taken in": Named(
        "ledger/remote/cutoffs.py",
        "return self.merged(Cutoff(comebacks=(number,))) if self.comebacks else self",
        "return self",
        "tests/ledger/remote/test_order.py::test_a_source_that_two_launchers_bring_back_counts_from_the_first_of_them",
    ),
    "a leaf is never early": Named(
        "ledger/remote/cutoffs.py",
        "return max(self.replaced + 1, self.forgotten) <= number < min(self.comebacks, default=0)",
        "return False",
        "tests/ledger/remote/test_cutoffs.py::test_a_leaf_of_a_source_that_may_still_come_back_waits_for_its_registration",
    ),
    "a contradiction does not withdraw": Named(
        "ledger/remote/cutoffs.py",
        "        lmdb_sources.count_withdrawal(txn)",
        "        pass",
        "tests/ledger/remote/test_cutoffs.py::test_a_contradiction_is_seen_by_who_held_the_source_for_complete",
    ),
    "a contradiction keeps no failure": Named(
        "ledger/remote/cutoffs.py",
        "    txn.put(FAILED, leaf.source_id + node_id(leaf.source_id, leaf.lineage), row)",
        "    pass",
        "tests/ledger/remote/test_cutoffs.py::test_a_contradiction_is_seen_by_who_held_the_source_for_complete",
    ),
    "a contradiction leaves its source complete": Named(
        "ledger/remote/cutoffs.py",
        "completed = txn.pop(COMPLETED, source)",
        "completed = txn.get(COMPLETED, source)",
        "tests/ledger/remote/test_cutoffs.py::test_a_contradiction_is_seen_by_who_held_the_source_for_complete",
    ),
    "a segment at the cutoff is dropped": Named(
        "ledger/remote/apply.py",
        "    if segment.number < _number(txn, KEY_FLOOR):\n        _supersede_all",
        "    if segment.number <= _number(txn, KEY_FLOOR):\n        _supersede_all",
        "tests/ledger/remote/test_cutoffs.py::test_what_a_worker_of_a_former_job_published_is_stale_and_what_one_of_this_job_records_counts",
    ),
    "a segment below the cutoff counts": Named(
        "ledger/remote/apply.py",
        "    if segment.number < _number(txn, KEY_FLOOR):\n        _supersede_all",
        "    if False:\n        _supersede_all",
        "tests/ledger/remote/test_cutoffs.py::test_what_a_worker_of_a_former_job_published_is_stale_and_what_one_of_this_job_records_counts",
    ),
    "a late output of a former job is forgotten": Named(
        "ledger/remote/apply.py",
        "        _supersede_all(txn, segment)\n",
        "",
        "tests/ledger/remote/test_cutoffs.py::test_what_a_worker_of_a_former_job_published_is_stale_and_what_one_of_this_job_records_counts",
    ),
    "a source that came back stays gone": Named(
        "ledger/remote/apply.py",
        "            txn.delete(GONE, source)",
        "            pass",
        "tests/ledger/remote/test_store.py::TestRemoteStore::test_sources_that_are_gone_are_counted_apart_and_keep_their_outputs",
    ),
    "an old listing takes a source back": Named(
        "ledger/remote/apply.py",
        "        if segment.number >= _number(txn, KEY_GONE):\n            txn.delete",
        "        if True:\n            txn.delete",
        "tests/ledger/remote/test_cutoffs.py::test_who_lists_a_source_again_before_it_was_gone_does_not_bring_it_back",
    ),
    "an old listing replaces a newer": Named(
        "ledger/remote/apply.py",
        "if segment.gone is not None and segment.number >= _number(txn, KEY_GONE):",
        "if segment.gone is not None:",
        "tests/ledger/remote/test_cutoffs.py::test_the_newest_listing_says_what_is_gone",
    ),
    "leaves below the cutoff count": Named(
        "ledger/remote/apply.py",
        "leaves = [leaf for leaf in leaves if _counts(txn, segment.number, leaf)]",
        "pass",
        "tests/ledger/remote/test_cutoffs.py::test_what_was_recorded_before_a_change_does_not_count_after_it",
    ),
    "failures below the cutoff count": Named(
        "ledger/remote/apply.py",
        "for failure in segment.failures if segment.number >= cutoffs(txn, failure.source_id)[1]]",
        "for failure in segment.failures]",
        "tests/ledger/remote/test_cutoffs.py::test_what_was_recorded_before_a_change_does_not_count_after_it",
    ),
    "deaths below the cutoff count": Named(
        "ledger/remote/apply.py",
        "for mark in segment.deaths if segment.number >= cutoffs(txn, mark.source_id)[1]]",
        "for mark in segment.deaths]",
        "tests/ledger/remote/test_cutoffs.py::test_what_was_recorded_before_a_change_does_not_count_after_it",
    ),
    "leaves at the cutoff are dropped": Named(
        "ledger/remote/apply.py",
        "number >= cutoffs(txn, source)[0]:",
        "number > cutoffs(txn, source)[0]:",
        "tests/ledger/remote/test_cutoffs.py::test_what_was_recorded_before_a_change_does_not_count_after_it",
    ),
    "failures at the cutoff are dropped": Named(
        "ledger/remote/apply.py",
        "if segment.number >= cutoffs(txn, failure.source_id)[1]]",
        "if segment.number > cutoffs(txn, failure.source_id)[1]]",
        "tests/ledger/remote/test_cutoffs.py::test_what_was_recorded_before_a_change_does_not_count_after_it",
    ),
    "deaths at the cutoff are dropped": Named(
        "ledger/remote/apply.py",
        "if segment.number >= cutoffs(txn, mark.source_id)[1]]",
        "if segment.number > cutoffs(txn, mark.source_id)[1]]",
        "tests/ledger/remote/test_cutoffs.py::test_what_was_recorded_before_a_change_does_not_count_after_it",
    ),
    "what a late leaf published is forgotten": Named(
        "ledger/remote/apply.py",
        "    _supersede(txn, leaf, number)\n    return False",
        "    return False",
        "tests/ledger/remote/test_cutoffs.py::test_what_a_late_leaf_published_is_stale_once_its_source_is_complete",
    ),
    "a source that comes back has no cutoff": Named(
        "ledger/remote/apply.py",
        "        merge_cutoffs(txn, source.id, cutoff, cutoff)\n",
        "        pass\n",
        "tests/ledger/remote/test_cutoffs.py::test_what_was_recorded_before_a_change_does_not_count_after_it",
    ),
    "forgetting failures forgets leaves": Named(
        "ledger/remote/apply.py",
        "Cutoff() if control.failures_only else cutoff, cutoff)",
        "cutoff, cutoff)",
        "tests/ledger/remote/test_cutoffs.py::test_what_was_recorded_before_a_change_does_not_count_after_it",
    ),
    "an accepted job sets a cutoff": Named(
        "ledger/remote/apply.py",
        'if control.kind == "restart" and (',
        "if (",
        "tests/ledger/remote/test_cutoffs.py::test_only_a_restart_for_another_job_drops_what_was_recorded",
    ),
    "a snapshot completes a source below its cutoff": Named(
        "ledger/remote/snapshot.py",
        "if txn.get(SOURCES, source) is None or number < cutoffs(txn, source)[0]:",
        "if txn.get(SOURCES, source) is None:",
        "tests/ledger/remote/test_compaction.py::test_a_snapshot_of_what_was_before_takes_nothing_back",
    ),
    "a snapshot adds a completion twice": Named(
        "ledger/remote/snapshot.py",
        "if txn.get(COMPLETED, source) is not None or is_contradicted(txn, source):",
        "if is_contradicted(txn, source):",
        "tests/ledger/remote/test_compaction.py::test_a_snapshot_of_what_was_before_takes_nothing_back",
    ),
    "a snapshot's failures below the cutoff count": Named(
        "ledger/remote/snapshot.py",
        "if number < cutoffs(txn, identity(source))[1] or not counts(txn, identity(source), identity(node), stamp):",
        "if not counts(txn, identity(source), identity(node), stamp):",
        "tests/ledger/remote/test_compaction.py::test_a_snapshot_of_what_was_before_takes_nothing_back",
    ),
    "a snapshot's deaths below the cutoff count": Named(
        "ledger/remote/snapshot.py",
        "    if number < cutoffs(txn, identity(source))[1]:\n        return\n",
        "",
        "tests/ledger/remote/test_compaction.py::test_a_snapshot_of_what_was_before_takes_nothing_back",
    ),
    "a snapshot's failure of a finished task counts": Named(
        "ledger/remote/snapshot.py",
        "if number < cutoffs(txn, identity(source))[1] or not counts(txn, identity(source), identity(node), stamp):",
        "if number < cutoffs(txn, identity(source))[1]:",
        "tests/ledger/remote/test_compaction.py::test_a_snapshot_of_what_was_before_takes_nothing_back",
    ),
    "a snapshot takes attempts back": Named(
        "ledger/remote/snapshot.py",
        '"attempts": max(0, integer(attempts, 1) - before)',
        '"attempts": integer(attempts, 1) - before',
        "tests/ledger/remote/test_compaction.py::test_a_snapshot_of_what_was_before_takes_nothing_back",
    ),
    "a snapshot ends a quarantine": Named(
        "ledger/remote/snapshot.py",
        "    known = TaskFailures.read(txn, key)\n    known.task =",
        "    known = TaskFailures()\n    known.task =",
        "tests/ledger/remote/test_compaction.py::test_a_snapshot_of_what_was_before_takes_nothing_back",
    ),
    "a snapshot adds deaths": Named(
        "ledger/remote/snapshot.py",
        "death = Death(integer(of_run), seconds(at), integer(place), flag(broke))",
        "death = Death(integer(of_run), seconds(at), integer(place) + 1, flag(broke))",
        "tests/ledger/remote/test_compaction.py::test_a_snapshot_of_what_was_before_takes_nothing_back",
    ),
    "what workers of an older run record counts for the newest": Named(
        "ledger/lmdb/store.py",
        "number = int(self._run) if self._run else None",
        "number = None",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_the_history_tells_what_each_run_has_recorded",
    ),
    "runs above a million sort as text": Named(
        "ledger/lmdb/decoding.py",
        "return (letter + run).encode",
        "return run.encode",
        "tests/ledger/remote/test_history.py::test_the_million_and_first_run_is_the_last",
    ),
    "a run that showed nothing new is at work by its own clock": Named(
        "pipelines/report/hosts.py",
        "return watched if seen.is_news else max(watched, recorded)",
        "return recorded",
        "tests/pipelines/commands/ledger/test_hosts.py::test_whether_a_run_lives_is_judged_by_the_clock_of_who_looks",
    ),
    "a snapshot adds history": Named(
        "ledger/remote/snapshot.py",
        "*map(max, before, parts)",
        "*map(sum, zip(before, parts))",
        "tests/ledger/remote/test_compaction.py::test_a_snapshot_of_what_was_before_takes_nothing_back",
    ),
    "a snapshot adds durations": Named(
        "ledger/remote/snapshot.py",
        "DURATION_ROW.pack(max(before, count))",
        "DURATION_ROW.pack(before + count)",
        "tests/ledger/remote/test_compaction.py::test_a_snapshot_of_what_was_before_takes_nothing_back",
    ),
    "parts of a snapshot are deleted before what names them": Named(
        "ledger/remote/compaction.py",
        "for gone in ([*segments, *manifests], old, replayer.claims):",
        "for gone in (old, [*segments, *manifests], replayer.claims):",
        "tests/ledger/remote/test_compaction.py::test_a_compaction_that_ends_between_its_deletions_harms_nobody",
    ),
    "old parts are not deleted": Named(
        "ledger/remote/compaction.py",
        "for gone in ([*segments, *manifests], old, replayer.claims):",
        "for gone in ([*segments, *manifests],):",
        "tests/ledger/remote/test_compaction.py::test_a_compaction_leaves_one_snapshot_and_nothing_that_it_stands_for",
    ),
    "claims of the dead stay": Named(
        "ledger/remote/compaction.py",
        "for gone in ([*segments, *manifests], old, replayer.claims):",
        "for gone in ([*segments, *manifests], old):",
        "tests/ledger/remote/test_claims.py::test_a_compaction_removes_those_of_the_dead",
    ),
    "claims never expire": Named(
        "ledger/worker/sharing.py",
        "or age >= claims.seconds:",
        "or age >= 10 * claims.seconds:",
        "tests/ledger/worker/test_sharing.py::test_claims_expire_by_the_clock_of_the_reader",
    ),
    "claims of the dead hold": Named(
        "ledger/worker/sharing.py",
        "return not (claims.place == self._environment and self._place.has_died(claims))",
        "return True",
        "tests/ledger/worker/test_sharing.py::test_claims_of_the_dead_are_passed_over_where_it_is_seen",
    ),
    "what others have in work is claimed": Named(
        "ledger/worker/sharing.py",
        "if is_done or any(claims.holds(task.span) for claims in others):",
        "if is_done:",
        "tests/ledger/worker/test_sharing.py::test_what_others_claim_is_drawn_last",
    ),
    "what was drawn ahead is begun though its claim has run out": Named(
        "transforms/draw.py",
        "if following is not None and not self._may_begin():",
        "if False:",
        "tests/transforms/test_overlap.py::test_what_was_drawn_ahead_is_not_begun_once_its_claim_has_run_out",
    ),
    "what was drawn ahead is begun though it is recorded": Named(
        "transforms/draw.py",
        "        element = self._owing(following.element)\n",
        "        element = following.element\n",
        "tests/transforms/test_overlap.py::test_what_was_drawn_ahead_and_is_recorded_meanwhile_is_passed_over",
    ),
    "what is published fast waits for the next task": Named(
        "transforms/write.py",
        "return self._publishing > 0 and self._publishing >= BEHIND_SHARE * (time.monotonic() - self._since)",
        "return True",
        "tests/transforms/test_overlap.py::test_what_takes_long_to_map_and_not_to_write_is_emitted_before_the_next_one_is_mapped",
    ),
    "tasks that are published at once are recorded in another order": Named(
        "transforms/write.py",
        "encoded, published = self._behind.popleft()",
        "encoded, published = self._behind.pop()",
        "tests/transforms/test_overlap.py::test_several_tasks_are_written_at_once_and_emitted_in_their_order",
    ),
    "any number of tasks is published at once": Named(
        "transforms/write.py",
        "return len(beside) < BEHIND_TASKS and sum(beside) + encoded.size <= BEHIND_BYTES",
        "return True",
        "tests/transforms/test_overlap.py::test_several_tasks_are_written_at_once_and_emitted_in_their_order",
    ),
    "a task ends on the board while its outputs are held back": Named(
        "transforms/draw.py",
        "while len(behind) > overlap.held:",
        "while behind:",
        "tests/transforms/test_overlap.py::test_a_task_is_emitted_once_it_is_written_and_ends_after_that",
    ),
    "what comes late is superseded with the number of its cutoff": Named(
        "ledger/remote/apply.py",
        "    _supersede(txn, leaf, number)\n    return False",
        "    _supersede(txn, leaf, max(number, lmdb_superseded.retired_at(txn, source)))\n    return False",
        "tests/ledger/lmdb/test_superseded.py::test_what_was_deleted_stays_so_for_whoever_learns_first_that_it_was_superseded_again",
    ),
    "who deletes says the number of its run": Named(
        "ledger/remote/store.py",
        "self._record(lambda _: _segment(dropped=dropped), number)",
        "self._record(lambda _: _segment(dropped=dropped))",
        "tests/ledger/remote/test_snapshots.py::test_who_deletes_has_seen_what_was_superseded_since_its_run_began",
    ),
    "a snapshot repeats what former snapshots repeated": Named(
        "ledger/remote/compaction.py",
        "[name for name in names if tells_deletions(name)]",
        "names",
        "tests/ledger/remote/test_snapshots.py::test_deletions_are_repeated_by_one_snapshot_and_not_by_the_next",
    ),
    "what was claimed long ago is begun": Named(
        "ledger/worker/task_board.py",
        "return until is None or until >= time.monotonic()",
        "return True",
        "tests/ledger/worker/test_sharing.py::test_who_stands_still_begins_nothing_of_what_has_expired",
    ),
    "of two who claim the same none gives way": Named(
        "ledger/worker/sharing.py",
        "board.hold([*lost, *kept[wanted:]])",
        "board.hold(kept[wanted:])",
        "tests/ledger/worker/test_sharing.py::test_of_two_who_claim_the_same_one_gives_way",
    ),
    "a compaction deletes the first hundred only": Named(
        "ledger/remote/compaction.py",
        "objects.delete(gone[start : start + _DELETED_AT_ONCE])",
        "objects.delete(gone[:_DELETED_AT_ONCE])",
        "tests/ledger/remote/test_compaction.py::test_a_compaction_leaves_one_snapshot_and_nothing_that_it_stands_for",
    ),
    "a snapshot is of several moments": Named(
        "ledger/remote/compaction.py",
        "    with environment.hold() as held:",
        "    with contextlib.nullcontext(environment) as held:",
        "tests/ledger/remote/test_compaction.py::test_what_another_process_of_the_host_takes_in_meanwhile_is_in_no_part_of_a_snapshot",
    ),
    "what is gone from a listing is passed over": Named(
        "ledger/remote/replay.py",
        "            if data is None:\n                raise Overtaken\n",
        "            if data is None:\n                continue\n",
        "tests/ledger/remote/test_order.py::test_a_compaction_that_is_overtaken_leaves_no_leaf_out",
    ),
    "leaves of former parts are left out": Named(
        "ledger/remote/compaction.py",
        "_segments(objects, held, segments + old, snapshot.number)",
        "_segments(objects, held, segments, snapshot.number)",
        "tests/ledger/remote/test_compaction.py::test_a_compaction_that_ends_between_its_deletions_harms_nobody",
    ),
    "the second page of leaves is dropped": Named(
        "ledger/remote/compaction.py",
        "            wanted, count = {}, 0",
        "            return",
        "tests/ledger/remote/test_compaction.py::test_leaves_of_open_sources_are_kept_in_pages",
    ),
    "a snapshot forgets who was gone": Named(
        "ledger/remote/compaction.py",
        "    yield Segment(of_number, 0.0, gone=gone)",
        "    yield Segment(of_number, 0.0)",
        "tests/ledger/remote/test_store.py::TestRemoteStore::test_every_source_is_listed_with_its_state",
    ),
    "a snapshot forgets runs": Named(
        "ledger/remote/compaction.py",
        "        yield Segment(number, 0.0, runs=runs)",
        "        pass",
        "tests/ledger/remote/test_store.py::TestRemoteStore::test_an_empty_ledger_is_not_complete",
    ),
    "parts of a snapshot are folded though it is covered": Named(
        "ledger/remote/replay.py",
        "if self._unfolded(manifest.covers) else None",
        "if True else None",
        "tests/ledger/remote/test_compaction.py::test_who_has_folded_all_that_a_snapshot_covers_reads_no_part_of_it",
    ),
    "a snapshot covers nothing": Named(
        "ledger/remote/replay.py",
        "for folded in (name, *manifest.covers):",
        "for folded in (name,):",
        "tests/ledger/remote/test_compaction.py::test_a_snapshot_of_what_was_before_takes_nothing_back",
    ),
    "missing sources are not waited for": Named(
        "ledger/remote/replay.py",
        "                    self._wait_once(name)  # they were registered, and the listing had passed that place",
        "                    pass",
        "tests/ledger/remote/test_order.py::test_leaves_of_a_source_whose_registration_is_listed_later_wait_for_it",
    ),
    "LMDB does not sync": Named(
        "ledger/lmdb/files.py",
        "                sync=True,",
        "                sync=False,",
        "tests/ledger/lmdb/test_durability.py::test_a_new_ledger_is_on_the_disk_with_all_folders_above_it_before_anything_is_recorded",
    ),
    "LMDB does not sync its meta page": Named(
        "ledger/lmdb/files.py",
        "metasync=True",
        "metasync=False",
        "tests/ledger/lmdb/test_durability.py::test_a_new_ledger_is_on_the_disk_with_all_folders_above_it_before_anything_is_recorded",
    ),
    "the ledger's folder is not synced": Named(
        "ledger/lmdb/files.py",
        "    sync_folder(path)  # also",
        "    pass  # also",
        "tests/ledger/lmdb/test_durability.py::test_a_new_ledger_is_on_the_disk_with_all_folders_above_it_before_anything_is_recorded",
    ),
    "folders above the ledger are not synced": Named(
        "disk.py",
        "        sync_folder(os.path.dirname(path))",
        "        pass",
        "tests/ledger/lmdb/test_durability.py::test_a_new_ledger_is_on_the_disk_with_all_folders_above_it_before_anything_is_recorded",
    ),
    "the ledger's file is made in place": Named(
        "ledger/lmdb/files.py",
        "            _make_tables(aside, path, map_bytes)\n",
        "            raise FileNotFoundError\n",
        "tests/ledger/worker/test_writer.py::test_enough_entries_are_committed_at_once",
    ),
    "an output is not synced": Named(
        "io/storage/publish.py",
        "            os.fsync(descriptor)\n\n    def rename",
        "\n    def rename",
        "tests/transforms/test_publishing.py::test_an_output_is_on_the_disk_before_it_has_its_name_and_its_name_before_the_call_returns",
    ),
    "an output is synced before it is flushed": Named(
        "io/storage/publish.py",
        "            self.file.flush()\n",
        "",
        "tests/transforms/test_publishing.py::test_an_output_is_on_the_disk_before_it_has_its_name_and_its_name_before_the_call_returns",
    ),
    "an output's folder is not synced": Named(
        "io/storage/publish.py",
        "        sync_folder(output.folder)\n\n\ndef _publish_all_local",
        "        pass\n\n\ndef _publish_all_local",
        "tests/transforms/test_publishing.py::test_an_output_is_on_the_disk_before_it_has_its_name_and_its_name_before_the_call_returns",
    ),
    "outputs that are synced together are not": Named(
        "io/storage/publish.py",
        "        _sync_together(opened)\n",
        "        _ = [output.file.flush() for output in opened]\n",
        "tests/transforms/test_publishing.py::test_outputs_of_a_task_are_on_the_disk_before_the_first_has_its_name",
    ),
    "the folders of outputs that are synced together are not": Named(
        "io/storage/publish.py",
        "                sync_folder(folder)\n\n\ndef _sync_together",
        "                pass\n\n\ndef _sync_together",
        "tests/transforms/test_publishing.py::test_outputs_of_a_task_are_on_the_disk_before_the_first_has_its_name",
    ),
    "new folders of outputs are not synced": Named(
        "disk.py",
        "        sync_folder(os.path.dirname(path))",
        "        pass",
        "tests/transforms/test_publishing.py::test_an_output_is_on_the_disk_before_it_has_its_name_and_its_name_before_the_call_returns",
    ),
    "a live temporary is removed": Named(
        "io/storage/publish.py",
        "    except BlockingIOError:  # its writer is alive\n        return False",
        "    except BlockingIOError:  # its writer is alive\n        os.unlink(path)",
        "tests/transforms/test_publishing.py::test_what_a_killed_writer_left_is_removed_and_what_a_live_one_writes_is_not",
    ),
    "temporaries are not locked": Named(
        "io/storage/publish.py",
        "            fcntl.flock(descriptor, fcntl.LOCK_EX)\n            if",
        "            if",
        "tests/transforms/test_publishing.py::test_what_a_killed_writer_left_is_removed_and_what_a_live_one_writes_is_not",
    ),
    "an object is not synced": Named(
        "io/storage/objects.py",
        "                    os.fsync(descriptor)\n",
        "",
        "tests/ledger/lmdb/test_durability.py::test_an_object_is_on_the_disk_before_it_has_its_name_and_its_name_before_it_is_created",
    ),
    "an object is synced before it is flushed": Named(
        "io/storage/objects.py",
        "                    file.flush()\n",
        "",
        "tests/ledger/lmdb/test_durability.py::test_an_object_is_on_the_disk_before_it_has_its_name_and_its_name_before_it_is_created",
    ),
    "an object's folder is not synced": Named(
        "io/storage/objects.py",
        "            sync_folder(folder)\n        except",
        "            pass\n        except",
        "tests/ledger/lmdb/test_durability.py::test_an_object_is_on_the_disk_before_it_has_its_name_and_its_name_before_it_is_created",
    ),
    "deleting objects is not synced": Named(
        "io/storage/objects.py",
        "            sync_folder(folder)\n    except",
        "            pass\n    except",
        "tests/ledger/lmdb/test_durability.py::test_an_object_is_on_the_disk_before_it_has_its_name_and_its_name_before_it_is_created",
    ),
    "the second creator of an object wins": Named(
        "io/storage/objects.py",
        "        os.link(aside, path)",
        "        os.replace(aside, path); open(aside, 'w').close()",
        "tests/ledger/lmdb/test_durability.py::test_an_object_is_on_the_disk_before_it_has_its_name_and_its_name_before_it_is_created",
    ),
    "other content in the way is a success": Named(
        "io/storage/objects.py",
        "return created or self.read([name]) == [data]",
        "return True",
        "tests/ledger/lmdb/test_durability.py::test_an_object_is_on_the_disk_before_it_has_its_name_and_its_name_before_it_is_created",
    ),
    "the same content in the way is a failure": Named(
        "io/storage/objects.py",
        "return created or self.read([name]) == [data]",
        "return created",
        "tests/ledger/lmdb/test_durability.py::test_an_object_is_on_the_disk_before_it_has_its_name_and_its_name_before_it_is_created",
    ),
    "the checksum is of nothing": Named(
        "transforms/write.py",
        "checksum = content_checksum([file.data])",
        "checksum = content_checksum([])",
        "tests/transforms/test_publishing.py::test_what_is_recorded_of_an_output_is_what_lies_there",
    ),
    "an output is recorded and not published": Named(
        "transforms/write.py",
        '        publish_all([(f"{self._output}/{path}", file.data) for path, _, file in encoded.files], self._options)\n',
        "",
        "tests/transforms/test_publishing.py::test_what_is_recorded_of_an_output_is_what_lies_there",
    ),
    "a snapshot completes what is contradicted": Named(
        "ledger/remote/snapshot.py",
        "if txn.get(COMPLETED, source) is not None or is_contradicted(txn, source):",
        "if txn.get(COMPLETED, source) is not None:",
        "tests/ledger/remote/test_snapshots.py::test_a_snapshot_of_any_moment_says_the_same_to_a_host_of_any_moment",
    ),
    "a snapshot leaves rows of what it completes": Named(
        "ledger/remote/snapshot.py",
        "        txn.delete_prefix(APPLIED, source)",
        "        pass",
        "tests/ledger/remote/test_snapshots.py::test_what_a_snapshot_completes_can_be_done_again",
    ),
    "a snapshot counts begun tasks twice": Named(
        "ledger/remote/snapshot.py",
        "        add_totals(txn, PENDING_ROW.unpack(pending)[1:], -1)",
        "        pass",
        "tests/ledger/remote/test_snapshots.py::test_a_snapshot_of_any_moment_says_the_same_to_a_host_of_any_moment",
    ),
    "a snapshot keeps failures of what it completes": Named(
        "ledger/remote/snapshot.py",
        "    clear_failures(txn, source)\n",
        "",
        "tests/ledger/remote/test_snapshots.py::test_a_snapshot_of_any_moment_says_the_same_to_a_host_of_any_moment",
    ),
    "a snapshot contradicts below the cutoff": Named(
        "ledger/remote/snapshot.py",
        "    if number >= cutoffs(txn, identity(source))[0]:\n        contradict",
        "    if True:\n        contradict",
        "tests/ledger/remote/test_snapshots.py::test_a_snapshot_of_any_moment_says_the_same_to_a_host_of_any_moment",
    ),
    "a snapshot forgets who superseded": Named(
        "ledger/remote/snapshot.py",
        "encode_superseded(max(before, integer(number)), name)",
        "encode_superseded(integer(number), name)",
        "tests/ledger/remote/test_snapshots.py::test_a_snapshot_does_not_take_back_when_an_output_was_superseded",
    ),
    "a snapshot retires what is registered": Named(
        "ledger/remote/snapshot.py",
        'if known is not None and read_source_fields(known).get("number", 0) < number:',
        "if known is not None:",
        "tests/ledger/remote/test_snapshots.py::test_a_snapshot_of_any_moment_says_the_same_to_a_host_of_any_moment",
    ),
    "a snapshot leaves what was replaced meanwhile": Named(
        "ledger/remote/snapshot.py",
        'if known is not None and read_source_fields(known).get("number", 0) < number:',
        "if False:",
        "tests/ledger/remote/test_snapshots.py::test_a_snapshot_of_any_moment_says_the_same_to_a_host_of_any_moment",
    ),
    "a snapshot takes URLs back": Named(
        "ledger/remote/snapshot.py",
        "txn.put(URLS, url_key(url), source, overwrite=False)",
        "txn.put(URLS, url_key(url), source)",
        "tests/ledger/remote/test_snapshots.py::test_a_snapshot_of_any_moment_says_the_same_to_a_host_of_any_moment",
    ),
    "a snapshot leaves what was recorded before a source came back": Named(
        "ledger/remote/snapshot.py",
        'if known is not None and comebacks and read_source_fields(known).get("number", 0) < comebacks[0]:',
        "if False:",
        "tests/ledger/remote/test_snapshots.py::test_a_snapshot_of_any_moment_says_the_same_to_a_host_of_any_moment",
    ),
    "a snapshot registers without a number": Named(
        "ledger/remote/compaction.py",
        "            yield Segment(own, 0.0, sources=",
        "            yield Segment(0, 0.0, sources=",
        "tests/ledger/remote/test_snapshots.py::test_a_snapshot_of_any_moment_says_the_same_to_a_host_of_any_moment",
    ),
    "cutoffs of a snapshot come behind its leaves": Named(
        "ledger/remote/compaction.py",
        "    yield from _states(cutoff_pages(held), number)\n    yield from _sources(held)\n    yield from _open_leaves(objects, held, names)\n    yield from _rest(held, number)\n",
        "    yield from _sources(held)\n    yield from _open_leaves(objects, held, names)\n    yield from _rest(held, number)\n    yield from _states(cutoff_pages(held), number)\n",
        "tests/ledger/remote/test_snapshots.py::test_a_snapshot_of_any_moment_says_the_same_to_a_host_of_any_moment",
    ),
    "leaves below the cutoff are kept": Named(
        "ledger/remote/compaction.py",
        " and number >= cutoffs(txn, source)[0]\n",
        "\n",
        "tests/ledger/remote/test_compaction.py::test_leaves_that_do_not_count_are_not_kept",
    ),
    "an overtaken compaction gives up": Named(
        "ledger/remote/compaction.py",
        "            return _compact(store)\n    return Compaction(0, 0, 0)",
        "            return _compact(store)\n        break\n    return Compaction(0, 0, 0)",
        "tests/ledger/remote/test_order.py::test_a_compaction_that_is_overtaken_leaves_no_leaf_out",
    ),
    "a registration from before a source was replaced brings it back": Named(
        "ledger/lmdb/sources.py",
        "        if number_of_retired(txn, source.id) > number:\n            continue\n",
        "",
        "tests/ledger/remote/test_snapshots.py::test_a_snapshot_of_any_moment_says_the_same_to_a_host_of_any_moment",
    ),
    "a late registration takes a source out of what is gone": Named(
        "ledger/lmdb/sources.py",
        "(RETIRED,) if number else (RETIRED, GONE)",
        "(RETIRED, GONE)",
        "tests/ledger/remote/test_snapshots.py::test_a_snapshot_of_any_moment_says_the_same_to_a_host_of_any_moment",
    ),
    "a published temporary is removed": Named(
        "io/storage/publish.py",
        "        if not _still_names(path, descriptor):\n            return False\n        os.unlink",
        "        os.unlink",
        "tests/transforms/test_publishing.py::test_a_temporary_that_is_published_while_it_is_looked_at_is_not_removed",
    ),
    "done tasks are planned again": Named(
        "transforms/plan.py",
        "(source.has_quarantined(task) or source.has_done(task))",
        "source.has_quarantined(task)",
        "tests/transforms/test_plan_spans.py::test_what_is_done_or_quarantined_is_not_planned",
    ),
    "quarantined tasks are planned": Named(
        "transforms/plan.py",
        "(source.has_quarantined(task) or source.has_done(task))",
        "source.has_done(task)",
        "tests/transforms/test_plan_spans.py::test_what_is_done_or_quarantined_is_not_planned",
    ),
    "a quarantined source is planned": Named(
        "transforms/plan.py",
        "        if source.has_quarantined(_whole(source)):\n            return\n",
        "",
        "tests/transforms/test_plan_spans.py::test_what_is_done_or_quarantined_is_not_planned",
    ),
    "a source of which a worker died is planned beside others": Named(
        "transforms/plan.py",
        "        if pending.attempts:\n            return False\n",
        "",
        "tests/transforms/test_plan.py::test_a_large_source_and_one_of_which_a_worker_died_are_cut_alone",
    ),
    "sources that are cut in threads are not in work": Named(
        "transforms/plan.py",
        "        marked.enter_context(self._working_on(source))\n",
        "",
        "tests/transforms/test_plan.py::test_a_large_source_and_one_of_which_a_worker_died_are_cut_alone",
    ),
    "sources that were begun last are forgotten": Named(
        "transforms/plan.py",
        "for planned in self._ended()]",
        "for planned in ()]",
        "tests/transforms/test_plan.py::test_small_sources_of_a_store_are_cut_at_once",
    ),
    "failures that count as deaths quarantine too late": Named(
        "ledger/lmdb/failures.py",
        "len(self.deaths) >= MAX_ATTEMPTS",
        "len(self.deaths) > MAX_ATTEMPTS",
        "tests/ledger/lmdb/test_failures.py::test_failures_that_count_as_deaths_quarantine_at_the_limit",
    ),
    "failures that count as deaths quarantine too early": Named(
        "ledger/lmdb/failures.py",
        "len(self.deaths) >= MAX_ATTEMPTS",
        "len(self.deaths) >= MAX_ATTEMPTS - 1",
        "tests/ledger/lmdb/test_failures.py::test_failures_that_count_as_deaths_quarantine_at_the_limit",
    ),
    "failures do not count as deaths": Named(
        "ledger/lmdb/failures.py",
        "        if failure.broke:",
        "        if False:",
        "tests/ledger/lmdb/test_failures.py::test_failures_that_count_as_deaths_quarantine_at_the_limit",
    ),
    "every failure counts as a death": Named(
        "ledger/lmdb/failures.py",
        "        if failure.broke:",
        "        if True:",
        "tests/ledger/lmdb/test_failures.py::test_failures_that_count_as_deaths_quarantine_at_the_limit",
    ),
    "two broken tasks of one commit are one death": Named(
        "ledger/lmdb/failures.py",
        "broke=True))\n            places[key] += 1",
        "broke=True))",
        "tests/ledger/lmdb/test_failures.py::test_failures_that_count_as_deaths_quarantine_at_the_limit",
    ),
    "a quarantined task is started again": Named(
        "ledger/selection.py",
        ">= MAX_ATTEMPTS",
        "> MAX_ATTEMPTS",
        "tests/transforms/test_plan_spans.py::test_what_is_done_or_quarantined_is_not_planned",
    ),
    "a task is quarantined before its time for planning": Named(
        "ledger/selection.py",
        ">= MAX_ATTEMPTS",
        ">= MAX_ATTEMPTS - 1",
        "tests/transforms/test_plan_spans.py::test_what_is_done_or_quarantined_is_not_planned",
    ),
    "a segment is folded twice": Named(
        "ledger/remote/apply.py",
        '    """Take a segment in, once."""\n    if is_folded(txn, name):\n        return\n',
        '    """Take a segment in, once."""\n',
        "tests/ledger/remote/test_order.py::test_an_object_that_is_folded_twice_counts_once",
    ),
    "a control is folded twice": Named(
        "ledger/remote/apply.py",
        "    if is_folded(txn, name):\n        return\n    mark_folded(txn, name)\n    _put_number",
        "    mark_folded(txn, name)\n    _put_number",
        "tests/ledger/remote/test_order.py::test_an_object_that_is_folded_twice_counts_once",
    ),
    "the order of controls is not checked": Named(
        "ledger/remote/replay.py",
        "            self._follows(txn, name, control.number, highest_beyond=1)",
        "            pass",
        "tests/ledger/remote/test_hostile.py::test_an_object_whose_number_does_not_follow_is_refused_until_it_is_deleted",
    ),
    "the number of a segment is not checked": Named(
        "ledger/remote/replay.py",
        "                self._follows(txn, name, segment.number)",
        "                pass",
        "tests/ledger/remote/test_hostile.py::test_an_object_whose_number_does_not_follow_is_refused_until_it_is_deleted",
    ),
    "the number of a snapshot is not checked": Named(
        "ledger/remote/replay.py",
        "                self._follows(txn, name, manifest.number)",
        "                pass",
        "tests/ledger/remote/test_hostile.py::test_an_object_whose_number_does_not_follow_is_refused_until_it_is_deleted",
    ),
    "controls may leave one number out": Named(
        "ledger/remote/replay.py",
        "if number > highest + highest_beyond:",
        "if number > highest + 2 * highest_beyond:",
        "tests/ledger/remote/test_hostile.py::test_an_object_whose_number_does_not_follow_is_refused_until_it_is_deleted",
    ),
    "a sink does not check the order of controls": Named(
        "ledger/remote/sink.py",
        "if number > before[place] + 1), None)",
        "if False), None)",
        "tests/ledger/remote/test_hostile.py::test_an_object_whose_number_does_not_follow_is_refused_until_it_is_deleted",
    ),
    "a control that is listed early is not waited for": Named(
        "ledger/remote/replay.py",
        "            self._wait_once(name)\n            raise does",
        "            raise does",
        "tests/ledger/remote/test_hostile.py::test_a_control_that_is_listed_before_its_predecessor_is_waited_for",
    ),
    "a sink does not wait for a control": Named(
        "ledger/remote/sink.py",
        "for is_last in (False, True):",
        "for is_last in (True,):",
        "tests/ledger/remote/test_hostile.py::test_a_control_that_is_listed_before_its_predecessor_is_waited_for",
    ),
    "a watch does not compare sizes": Named(
        "io/storage/unchanged.py",
        "(found.st_size, str(found.st_mtime_ns)) != (source.size, source.version)",
        "str(found.st_mtime_ns) != source.version",
        "tests/io/storage/test_listed_versions.py::test_each_mark_of_a_file_is_compared",
    ),
    "a watch does not compare times": Named(
        "io/storage/unchanged.py",
        "(found.st_size, str(found.st_mtime_ns)) != (source.size, source.version)",
        "found.st_size != source.size",
        "tests/io/storage/test_listed_versions.py::test_each_mark_of_a_file_is_compared",
    ),
    "a watch does not compare inodes": Named(
        "io/storage/unchanged.py",
        "return found.st_dev, found.st_ino, found.st_ctime_ns",
        "return found.st_dev, 0, found.st_ctime_ns",
        "tests/io/storage/test_listed_versions.py::test_a_link_to_another_file_is_another_file",
    ),
    "a watch does not compare times of change": Named(
        "io/storage/unchanged.py",
        "return found.st_dev, found.st_ino, found.st_ctime_ns",
        "return found.st_dev, found.st_ino, 0",
        "tests/io/storage/test_listed_versions.py::test_a_watch_notices_what_happens_to_a_file",
    ),
    "a watch does not look at the end": Named(
        "io/storage/unchanged.py",
        "        if error is None:\n            self.check()\n        elif",
        "        if error is None:\n            pass\n        elif",
        "tests/io/storage/test_listed_versions.py::test_a_watch_notices_what_happens_to_a_file",
    ),
    "a watch does not compare with its first look": Named(
        "io/storage/unchanged.py",
        "            if before != now:",
        "            if False:",
        "tests/io/storage/test_listed_versions.py::test_a_watch_notices_what_happens_to_a_file",
    ),
    "a watch passes over what the planning saw": Named(
        "io/storage/unchanged.py",
        "if source.changed_ns not in (0, found.st_ctime_ns):",
        "if False:",
        "tests/transforms/test_listing_is_held.py::test_a_source_that_changes_unseen_between_planning_and_reading_is_not_complete",
    ),
    "planning does not look at the source": Named(
        "sources/files.py",
        "        source = looked_at(source, self.sources.storage_options)\n        offsets = self.sources.load_index",
        "        offsets = self.sources.load_index",
        "tests/transforms/test_listing_is_held.py::test_a_source_that_changes_unseen_between_planning_and_reading_is_not_complete",
    ),
    "planning forgets what it saw of a source": Named(
        "sources/kind.py",
        "return dataclasses.replace(source, changed_ns=marks[0][2]) if marks else source",
        "return source",
        "tests/transforms/test_listing_is_held.py::test_a_source_that_changes_unseen_between_planning_and_reading_is_not_complete",
    ),
    "a task is read unwatched": Named(
        "transforms/read.py",
        "        with SourceWatch(kind.files(source)) as watch:",
        "        with SourceWatch(()) as watch:",
        "tests/transforms/test_listing_is_held.py::test_a_source_that_changes_unseen_between_planning_and_reading_is_not_complete",
    ),
    "an open reader is used though the file changed": Named(
        "transforms/read.py",
        "if opened is None or known != marks:",
        "if opened is None:",
        "tests/transforms/test_listing_is_held.py::test_a_reader_that_is_held_open_is_of_the_file_that_is_read",
    ),
    "a source that is known to have changed keeps its index": Named(
        "sources/files.py",
        "if not (changed and kind.is_indexable) or was_written_too:",
        "if True:",
        "tests/transforms/test_listing_is_held.py::test_the_index_of_a_source_that_has_changed_is_made_anew",
    ),
    "a source is not compared with its listing": Named(
        "io/storage/stat.py",
        "if (found.size, found.version) != (listed.size, listed.version):",
        "if False:",
        "tests/transforms/test_listing_is_held.py::test_what_is_asked_for_is_what_was_listed",
    ),
    "a listed size is not compared": Named(
        "io/storage/stat.py",
        "if (found.size, found.version) != (listed.size, listed.version):",
        "if found.version != listed.version:",
        "tests/transforms/test_listing_is_held.py::test_what_is_asked_for_is_what_was_listed",
    ),
    "a listed version is not compared": Named(
        "io/storage/stat.py",
        "if (found.size, found.version) != (listed.size, listed.version):",
        "if found.size != listed.size:",
        "tests/transforms/test_listing_is_held.py::test_what_is_asked_for_is_what_was_listed",
    ),
    "an answer of another version is taken": Named(
        "io/storage/unchanged.py",
        "if found and str(found).strip('\"') != version:",
        "if False:",
        "tests/io/storage/test_listed_versions.py::test_an_answer_of_another_version_is_refused_by_whoever_gives_it",
    ),
    "a read without a condition is not looked at after": Named(
        "io/storage/unchanged.py",
        "    return info_of(url, store.info(url)).version, data",
        '    return "", data',
        "tests/io/storage/test_listed_versions.py::test_a_source_is_what_was_listed_or_an_error",
    ),
    "names that lead out are removed": Named(
        "pipelines/jobs/removal.py",
        "    for name in names:\n        if not name or",
        "    for name in ():\n        if not name or",
        "tests/pipelines/jobs/test_removal.py::test_nothing_outside_of_the_folder_is_removed",
    ),
    "links that lead out are followed": Named(
        "pipelines/jobs/removal.py",
        '        if os.path.dirname(f"{base}/{name}") in outside:',
        "        if False:",
        "tests/pipelines/jobs/test_removal.py::test_nothing_outside_of_the_folder_is_removed",
    ),
    "folders that still hold something are not kept": Named(
        "pipelines/jobs/removal.py",
        "while _is_below(empty, root):",
        "while False:",
        "tests/pipelines/jobs/test_removal.py::test_empty_folders_go_with_what_was_in_them",
    ),
    "folders are removed beyond the root": Named(
        "pipelines/jobs/removal.py",
        "while _is_below(empty, root):",
        "while True:",
        "tests/pipelines/jobs/test_removal.py::test_empty_folders_go_with_what_was_in_them",
    ),
    "a link is taken for an own folder": Named(
        "pipelines/jobs/removal.py",
        "(os.path.islink(url) or not os.path.isdir(url))",
        "not os.path.isdir(url)",
        "tests/pipelines/jobs/test_removal.py::test_a_link_or_a_file_is_no_folder_of_ours",
    ),
    "a file is taken for an own folder": Named(
        "pipelines/jobs/removal.py",
        "(os.path.islink(url) or not os.path.isdir(url))",
        "os.path.islink(url)",
        "tests/pipelines/jobs/test_removal.py::test_a_link_or_a_file_is_no_folder_of_ours",
    ),
    "the run that a mark names is not compared": Named(
        "pipelines/jobs/owner.py",
        'if own.get("run") in {info.get("token") for info in runs}:',
        "if True:",
        "tests/pipelines/jobs/test_output_owner.py::test_a_run_that_the_ledger_does_not_know_was_of_a_later_state_of_it",
    ),
    "the mark is written after the first output": Named(
        "pipelines/runners/run.py",
        (
            "                if owner is not None:\n"
            '                    owner.claim(store, info["token"])\n'
            "                runner: LocalRunner | BeamRunner = (\n"
            "                    LocalRunner(spec, store, reporter, beam_args, folder=folder, waves=waves, debug=debug)\n"
            "                    if is_local_runner(beam_args)\n"
            "                    else BeamRunner(spec, store, beam_args)\n"
            "                )\n"
            "                try:\n"
            "                    runner.run(listed)\n"
        ),
        (
            "                if force:\n"
            "                    for pattern in spec.sources().forget_patterns():\n"
            "                        store.forget(pattern)\n"
            "                _forget_misread(store)\n"
            "                if spec.keeps_shards:  # else asked when it is made: what it was made of before may be gone\n"
            "                    warn_of_lost(forget_lost(spec, store), reporter)\n"
            "                runner: LocalRunner | BeamRunner = (\n"
            "                    LocalRunner(spec, store, reporter, beam_args, folder=folder, waves=waves, debug=debug)\n"
            "                    if is_local_runner(beam_args)\n"
            "                    else BeamRunner(spec, store, beam_args)\n"
            "                )\n"
            "                try:\n"
            "                    runner.run(listed)\n"
            "                    if owner is not None:\n"
            '                        owner.claim(store, info["token"])\n'
        ),
        "tests/pipelines/jobs/test_output_owner.py::test_nothing_runs_before_the_mark_is_there_or_without_it",
    ),
    "two new ledgers at once both go on": Named(
        "pipelines/jobs/owner.py",
        "            if others:\n",
        "            if False:\n",
        "tests/pipelines/jobs/test_output_owner.py::test_of_two_new_ledgers_at_once_the_second_gives_way",
    ),
    "who gives way leaves its mark": Named(
        "pipelines/jobs/owner.py",
        "                self._folder.delete([name])\n",
        "                pass\n",
        "tests/pipelines/jobs/test_output_owner.py::test_of_two_new_ledgers_at_once_the_second_gives_way",
    ),
    "marks are read when they are compared": Named(
        "pipelines/jobs/owner.py",
        "        problem = self._problem(store)\n",
        "        self._marks = self._read_marks(); problem = self._problem(store)\n",
        "tests/pipelines/jobs/test_output_owner.py::test_a_launcher_that_looked_before_another_one_of_its_ledger_began_goes_on",
    ),
    "a mark that does not read is nobody's": Named(
        "pipelines/jobs/owner.py",
        "for name, data in found if data is not None}",
        "for name, data in found if data is not None and _parsed(data)}",
        "tests/pipelines/jobs/test_output_owner.py::test_a_mark_that_does_not_read_is_still_of_another",
    ),
    "the marks go before the shards": Named(
        "pipelines/jobs/owner.py",
        '        """Remove the shards, then the marks: a job that is killed in between finds out what it has lost."""\n',
        "        self._folder.delete(self._marks)\n",
        "tests/pipelines/jobs/test_output_owner.py::test_the_marks_go_after_the_shards",
    ),
    "shards of an inner owner are replaced": Named(
        "pipelines/jobs/owner.py",
        "[name for name in shards if not name.startswith(owned)] if owned else shards",
        "shards",
        "tests/pipelines/jobs/test_output_owner.py::test_shards_in_a_folder_with_an_owner_of_its_own_are_left",
    ),
    "a ledger owns whatever folder it is sent to": Named(
        "pipelines/jobs/owner.py",
        'info.get("output") != without_secrets(self._output)',
        'info.get("output") is None',
        "tests/pipelines/jobs/test_output_owner.py::test_a_ledger_that_has_written_elsewhere_is_new_there",
    ),
    "a restart takes shards of others for its own": Named(
        "pipelines/jobs/owner.py",
        " or self.is_new or not self.is_alone:",
        " or self.is_new:",
        "tests/pipelines/jobs/test_output_owner.py::TestRestart::test_nothing_goes_where_others_write_too",
    ),
    "a restart removes what the job has recorded": Named(
        "pipelines/jobs/owner.py",
        "for shards in unrecorded(shards_below(self._output, form, options), store):",
        "for shards in shards_below(self._output, form, options):",
        "tests/pipelines/jobs/test_output_owner.py::TestRestart::test_what_was_not_recorded_goes",
    ),
    "superseded outputs are strangers": Named(
        "pipelines/jobs/recorded.py",
        "chain([[]], names, store.superseded_names())",
        "chain([[]], names)",
        "tests/pipelines/jobs/test_lost_outputs.py::test_what_a_ledger_knows_or_has_superseded_is_recorded",
    ),
    "an output of another size counts as there": Named(
        "pipelines/jobs/recorded.py",
        "keys: _Keys = _hashes(names) ^ np.fromiter(sizes, np.uint64, len(sizes))",
        "keys: _Keys = _hashes(names)",
        "tests/pipelines/jobs/test_lost_outputs.py::test_another_size_is_refused_and_told",
    ),
    "what was put in the place of an output is written over": Named(
        "pipelines/jobs/recorded.py",
        "            _refuse_changed(spec.output, page, found)\n",
        "            pass\n",
        "tests/pipelines/jobs/test_lost_outputs.py::test_another_size_is_refused_and_told",
    ),
    "a GET of S3 without If-Match": Named(
        "io/storage/unchanged.py",
        """, "IfMatch": f'"{version}"'}""",
        "}",
        "tests/io/storage/test_unchanged.py::test_the_store_is_asked_for_the_version_that_was_listed",
    ),
    "a GET of GCS without a generation": Named(
        "io/storage/unchanged.py",
        ", ifGenerationMatch=version\n",
        "\n",
        "tests/io/storage/test_unchanged.py::test_the_store_is_asked_for_the_version_that_was_listed",
    ),
    "a GET of Azure without If-Match": Named(
        "io/storage/unchanged.py",
        "            match_condition=MatchConditions.IfNotModified,\n",
        "",
        "tests/io/storage/test_unchanged.py::test_the_store_is_asked_for_the_version_that_was_listed",
    ),
    "whatever S3 answers is believed": Named(
        "io/storage/unchanged.py",
        '            _require(version, answer.get("ETag"))\n',
        "",
        "tests/io/storage/test_unchanged.py::test_what_answers_in_another_version_is_refused",
    ),
    "a run folder of another ledger or run is ours": Named(
        "ledger/worker/run_folders.py",
        'if not isinstance(says, dict) or (says.get("ledger"), says.get("run")) != (self._ledger_id, run):',
        "if not isinstance(says, dict):",
        "tests/ledger/worker/test_run_folders.py::test_nothing_is_removed_that_the_ledger_did_not_make",
    ),
    "a run folder of another run is ours": Named(
        "ledger/worker/run_folders.py",
        '(says.get("ledger"), says.get("run")) != (self._ledger_id, run)',
        'says.get("ledger") != self._ledger_id',
        "tests/ledger/worker/test_run_folders.py::test_nothing_is_removed_that_the_ledger_did_not_make",
    ),
    "a run folder of another ledger is ours": Named(
        "ledger/worker/run_folders.py",
        '(says.get("ledger"), says.get("run")) != (self._ledger_id, run)',
        'says.get("run") != run',
        "tests/ledger/worker/test_run_folders.py::test_nothing_is_removed_that_the_ledger_did_not_make",
    ),
    "a link is a run folder": Named(
        "ledger/worker/run_folders.py",
        "os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC",
        "os.O_DIRECTORY | os.O_CLOEXEC",
        "tests/ledger/worker/test_run_folders.py::test_nothing_is_removed_that_the_ledger_did_not_make",
    ),
    "a linked marker is a marker": Named(
        "ledger/worker/run_folders.py",
        "os.open(MARKER, os.O_RDONLY | os.O_NOFOLLOW |",
        "os.open(MARKER, os.O_RDONLY |",
        "tests/ledger/worker/test_run_folders.py::test_nothing_is_removed_that_the_ledger_did_not_make",
    ),
    "a marker of another user is ours": Named(
        "ledger/worker/run_folders.py",
        " or found.st_uid != os.geteuid()",
        "",
        "tests/ledger/worker/test_run_folders.py::test_a_marker_of_another_user_is_not_ours",
    ),
    "the folder of a live run is removed": Named(
        "ledger/worker/run_folders.py",
        "if not launcher.lives:",
        "if True:",
        "tests/ledger/worker/test_run_folders.py::test_a_dead_launcher_is_told_by_its_lock_and_what_it_left_is_removed",
    ),
    "a marker is not locked": Named(
        "ledger/worker/run_folders.py",
        "            fcntl.flock(marker, fcntl.LOCK_EX)\n",
        "",
        "tests/ledger/worker/test_run_folders.py::test_a_dead_launcher_is_told_by_its_lock_and_what_it_left_is_removed",
    ),
    "the marker of a run folder goes first": Named(
        "ledger/worker/run_folders.py",
        "            if name == MARKER:\n                continue\n",
        "",
        "tests/ledger/worker/test_run_folders.py::test_a_removal_that_is_cut_short_leaves_the_marker",
    ),
    "what a forgotten source counted stays in the sums": Named(
        "ledger/lmdb/accounts.py",
        "        add_counted(txn, sum_parts(gone), -1)\n",
        "        pass\n",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_a_forgotten_source_takes_its_share_away",
    ),
    "statistics of a forgotten source stay": Named(
        "ledger/lmdb/accounts.py",
        "        txn.drop_prefix(STATISTICS, source)\n",
        "        pass\n",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_a_forgotten_source_takes_its_share_away",
    ),
    "a forgotten source keeps its accounts": Named(
        "ledger/lmdb/sources.py",
        "    drop_accounts(txn, source)\n",
        "",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_a_replaced_source_takes_its_share_away",
    ),
    "a job that begins anew keeps the sums of counts": Named(
        "ledger/lmdb/sources.py",
        "(COUNTS, STATISTICS, COUNTED, RETIRED, GONE)",
        "(COUNTS, STATISTICS, RETIRED, GONE)",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_another_job_begins_at_nothing",
    ),
    "a task that comes again brings its counts again": Named(
        "ledger/lmdb/commit.py",
        "            if not fresh:\n                if self._compare_result(leaf):\n",
        "            if not fresh:\n                self._put_accounts(leaf)\n                if self._compare_result(leaf):\n",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_the_first_counts_of_a_task_hold",
    ),
    "a task that is refused leaves its counts": Named(
        "ledger/lmdb/commit.py",
        "        if not self._put_outputs(leaf):\n            return\n        self._put_accounts(leaf)\n",
        "        self._put_accounts(leaf)\n        if not self._put_outputs(leaf):\n            return\n",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_a_refused_task_counts_nothing",
    ),
    "plain tasks are not among the records": Named(
        "ledger/lmdb/accounts.py",
        '        counted[part, ""] += plain\n',
        '        counted[part, ""] += 0\n',
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_plain_and_counted_tasks_add_up",
    ),
    "dropped and rejected records are one sum": Named(
        "ledger/lmdb/accounts.py",
        '(b"r", b"k", b"d", b"j", b"w")',
        '(b"r", b"k", b"d", b"d", b"w")',
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_names_are_kept_as_they_are",
    ),
    "tasks with any rejected record are found for any reason": Named(
        "ledger/lmdb/accounts.py",
        "if reason is None else counts.rejected.get(reason)",
        "",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_rejected_tasks_are_found_by_reason",
    ),
    "a withdrawn task stays done": Named(
        "ledger/lmdb/withdrawal.py",
        " for node, share in shares if node not in gone]",
        " for node, share in shares]",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_a_withdrawn_task_runs_again_and_the_others_stay",
    ),
    "what stays beside a withdrawn task loses its statistics": Named(
        "ledger/lmdb/withdrawal.py",
        "        {} if row is None else decode_statistics(row),\n",
        "        {},\n",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_a_withdrawn_task_runs_again_and_the_others_stay",
    ),
    "a withdrawal counts in the history": Named(
        "ledger/lmdb/store.py",
        "(), stamp, again=True)",
        "(), stamp)",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_a_withdrawn_task_runs_again_and_the_others_stay",
    ),
    "a withdrawal on objects counts in the history": Named(
        "ledger/remote/apply.py",
        ", again=segment.again)",
        ")",
        "tests/ledger/remote/test_store.py::TestRemoteStore::test_a_withdrawn_task_runs_again_and_the_others_stay",
    ),
    "tasks without a row are told apart from deeper ones": Named(
        "ledger/lmdb/withdrawal.py",
        "    if min(rest) < 0 or (rest.tasks, rest.filtered) != (len(plain), len(plain) - len(published)):",
        "    if min(rest) < 0:",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_a_task_of_which_nothing_was_counted_takes_its_source_along",
    ),
    "the bytes of a withdrawn task stay in the totals": Named(
        "ledger/lmdb/accounts.py",
        "return Totals(1, self.counts.records, self.bytes,",
        "return Totals(1, self.counts.records, 0,",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_withdrawing_again_and_again_keeps_the_sums",
    ),
    "what stays is recorded under an older number": Named(
        "ledger/remote/store.py",
        "numbered = number or int(self._run or sidecar.highest_number(txn))",
        "numbered = int(self._run or 0)",
        "tests/ledger/remote/test_store.py::TestRemoteStore::test_a_withdrawn_task_runs_again_and_the_others_stay",
    ),
    "a segment forgets the statistics of its tasks": Named(
        "ledger/remote/segment.py",
        "    if leaf.statistics:\n        accounts.append(statistics_row(leaf.statistics))\n",
        "",
        "tests/ledger/remote/test_store.py::TestRemoteStore::test_plain_and_counted_tasks_add_up",
    ),
    "a snapshot leaves out what complete sources counted": Named(
        "ledger/remote/snapshot.py",
        "complete.append([*about, accounts] if accounts else about)",
        "complete.append(about)",
        "tests/ledger/remote/test_store.py::TestRemoteStore::test_plain_and_counted_tasks_add_up",
    ),
    "a snapshot leaves out the statistics of complete sources": Named(
        "ledger/remote/snapshot.py",
        "            if key[:ID_BYTES] in completed\n",
        "            if key[:ID_BYTES] not in completed\n",
        "tests/ledger/remote/test_store.py::TestRemoteStore::test_plain_and_counted_tasks_add_up",
    ),
    "a snapshot counts a source twice that was open here": Named(
        "ledger/remote/snapshot.py",
        "    drop_accounts(txn, source)\n    clear_failures",
        "    clear_failures",
        "tests/ledger/remote/test_snapshots.py::test_a_source_that_is_open_here_and_complete_in_a_snapshot_counts_once",
    ),
    "records with NaN are duplicates of those with null": Named(
        "transforms/keys.py",
        "return dumps(value, orjson.OPT_SORT_KEYS)",
        "return orjson.dumps(value, json_form, orjson.OPT_SORT_KEYS)",
        "tests/transforms/test_keys.py::test_records_that_differ_in_what_json_lacks_are_not_equal",
    ),
    "a shuffle hangs on where the files lie": Named(
        "transforms/keys.py",
        'name = part.url.removeprefix(self.base or "")',
        "name = part.url",
        "tests/transforms/test_keys.py::test_a_shuffle_is_decided_by_the_seed_the_name_below_the_base_and_the_number",
    ),
    "the key of an enumeration is what it prints": Named(
        "io/exchange/order.py",
        "return kind.__getnewargs__(value)[0]",
        "return kind(value)",
        "tests/io/exchange/test_order.py::test_values_of_other_types_are_ordered_as_what_they_stand_for",
    ),
    "a merge goes on behind what is loaded": Named(
        "io/exchange/merge.py",
        "limit = min(ends) if ends else None",
        "limit = max(ends) if ends else None",
        "tests/io/exchange/test_merge.py::test_runs_of_many_blocks_are_merged_in_order",
    ),
    "a name that is not UTF-8 ends an exchange": Named(
        "io/exchange/slices.py",
        'json.dumps(found, separators=(",", ":"))',
        "json.dumps(found, ensure_ascii=False)",
        "tests/io/exchange/test_slices.py::test_what_is_written_is_read_whatever_the_names_are",
    ),
    "a merge forgets which file of the group a record is of": Named(
        "sources/buckets.py",
        "numbers = [firsts[run] + number for run, number in zip(part.runs, part.numbers, strict=True)]",
        "numbers = part.numbers",
        "tests/transforms/test_merge.py::test_records_keep_order_and_place_however_often_they_are_merged",
    ),
    "a merge counts the files of a run for each part of it": Named(
        "sources/buckets.py",
        "firsts = [(run.sources.start - runs[0].sources.start) << int(FILE_SHIFT) for run in runs]",
        "firsts = [sum(len(one.sources) for one in runs[:place]) << int(FILE_SHIFT) for place in range(len(runs))]",
        "tests/transforms/test_merge.py::test_records_keep_order_and_place_however_often_they_are_merged",
    ),
    "the two sides of a join are merged with each other": Named(
        "io/exchange/slices.py",
        "groupby(some, key=lambda run: runs[run].side)",
        "groupby(some, key=lambda run: 0)",
        "tests/io/exchange/test_slices.py::test_runs_of_two_sides_are_in_no_group_together",
    ),
    "a group is the same if only its places are others": Named(
        "io/exchange/slices.py",
        'digest.update(b"%d;" % (run.sources.start - runs[0].sources.start))',
        "pass",
        "tests/io/exchange/test_slices.py::test_a_group_is_another_one_if_a_place_among_its_sources_is_another",
    ),
    "a group is the same whatever run files it has": Named(
        "io/exchange/slices.py",
        "for text in (run.name, *run.sources):",
        "for text in run.sources:",
        "tests/io/exchange/test_slices.py::test_a_group_is_another_one_if_a_place_among_its_sources_is_another",
    ),
    "groups are counted off": Named(
        "io/exchange/rounds.py",
        "if len(group) >= sizes.start and (ends or len(group) == sizes.stop - 1):",
        "if len(group) == sizes.stop - 1:",
        "tests/io/exchange/test_rounds.py::test_a_run_file_that_comes_or_goes_changes_the_groups_around_it",
    ),
    "a plan looks at the last stage alone": Named(
        "io/exchange/rounds.py",
        "if max(slices) <= most]",
        "if slices[-1] <= most]",
        "tests/io/exchange/test_rounds.py::test_no_stage_of_a_plan_reads_more_than_is_allowed",
    ),
    "a merge puts the least key of a bucket into that before": Named(
        "io/exchange/run_file.py",
        "stop = bisect_left(part.keys, cuts[bucket], start) if bucket < len(cuts) else len(part.keys)",
        "stop = bisect_left(part.keys, cuts[bucket] + b'\\0', start) if bucket < len(cuts) else len(part.keys)",
        "tests/io/exchange/test_rounds.py::test_what_comes_in_its_order_is_written_as_what_is_there_at_once",
    ),
    "a bucket is the same whatever run files it is of": Named(
        "io/exchange/slices.py",
        'digest.update(b"%d:%s%s" % (len(name), name, entries["checksum"][run].tobytes()))',
        'digest.update(entries["checksum"][run].tobytes())',
        "tests/io/exchange/test_slices.py::test_a_version_is_of_the_names_and_contents_of_slices",
    ),
    "slices of another version are read": Named(
        "io/exchange/slices.py",
        "if _bucket_row(entries, runs).version != version:",
        "if False:",
        "tests/io/exchange/test_slices.py::test_tables_of_other_slices_are_refused",
    ),
    "records are moved with the keys of others": Named(
        "transforms/scatter.py",
        "keys, payloads = [keys[place] for place in kept], [payloads[place] for place in kept]",
        "keys, payloads = [keys[place] for place in kept], payloads[: len(kept)]",
        "tests/transforms/test_scatter.py::test_what_has_no_key_goes_nowhere",
    ),
    "a function that makes keys changes what is moved": Named(
        "transforms/scatter.py",
        "            payloads = self._payloads(records)\n            keys = self.keys.of(records)\n",
        "            keys = self.keys.of(records)\n            payloads = self._payloads(records)\n",
        "tests/pipelines/exchanges/test_stages.py::test_a_function_that_changes_its_record_changes_nothing",
    ),
    "of equal records the last one stays": Named(
        "transforms/duplicates.py",
        "elif score < best[0]:",
        "elif score <= best[0]:",
        "tests/transforms/test_duplicates.py::test_duplicates_are_rows_in_order_or_places_by_file",
    ),
    "records are dropped that are duplicates in another file": Named(
        "sources/listed.py",
        "np.isin(part.numbers, lists.by_url[part.url].numbers, assume_unique=True)",
        "np.isin(part.numbers, np.concatenate([one.numbers for one in lists.by_url.values()]))",
        "tests/sources/test_listed.py::test_each_file_of_a_pack_is_left_without_its_own",
    ),
    "what shares a band is near whatever it has in common": Named(
        "transforms/verify.py",
        "others[self._shares(one, others) >= self._share]",
        "others[self._shares(one, others) >= 0]",
        "tests/transforms/test_verify.py::test_many_sets_with_much_in_common_are_told_apart",
    ),
    "what has just the share of the threshold in common is not near": Named(
        "transforms/verify.py",
        "others[self._shares(one, others) >= self._share]",
        "others[self._shares(one, others) > self._share]",
        "tests/transforms/test_verify.py::test_what_shares_a_band_and_enough_is_connected",
    ),
    "of each set one n-gram too few is looked at before it is compared": Named(
        "transforms/verify.py",
        "self._sizes - common + 1)",
        "self._sizes - common)",
        "tests/transforms/test_verify.py::test_what_shares_a_band_and_enough_is_connected",
    ),
    "a cluster may have twice the n-grams of its bound": Named(
        "transforms/verify.py",
        "if batch.size - before > MOST_BYTES:",
        "if batch.size - before > 2 * MOST_BYTES:",
        "tests/pipelines/exchanges/test_verify.py"
        "::test_more_n_grams_of_one_cluster_than_are_held_fail_their_task_by_name",
    ),
    "earlier records that a later one connects go": Named(
        "transforms/near.py",
        "gone = np.flatnonzero((best != np.arange(len(forest))) & ~forest.are_earlier() & trees.own)",
        "gone = np.flatnonzero((best != np.arange(len(forest))) & trees.own)",
        "tests/pipelines/exchanges/test_against.py::test_earlier_ones_that_a_later_one_connects_stay",
    ),
    "a round ends though a record has two lesser ones": Named(
        "io/exchange/stars.py",
        "changes = np.count_nonzero(least[of] != of) + np.count_nonzero(edges.to[before] != least[edges.of[before]])",
        "changes = np.count_nonzero(least[of] != of)",
        "tests/io/exchange/test_stars.py::test_a_round_counts_what_keeps_edges_from_being_stars",
    ),
    "a round ends though a record comes to the least one by way of another": Named(
        "io/exchange/stars.py",
        "changes = np.count_nonzero(least[of] != of) + np.count_nonzero(edges.to[before] != least[edges.of[before]])",
        "changes = np.count_nonzero(edges.to[before] != least[edges.of[before]])",
        "tests/io/exchange/test_stars.py::test_a_round_counts_what_keeps_edges_from_being_stars",
    ),
    "a small star forgets all but the least one": Named(
        "io/exchange/stars.py",
        "others = edges.to != least[edges.of]",
        "others = edges.to < 0",
        "tests/io/exchange/test_stars.py::test_rounds_connect_what_union_find_connects",
    ),
    "a large star takes in what comes before": Named(
        "io/exchange/stars.py",
        "own & (edges.to > edges.of), own",
        "own & (edges.to != edges.of), own",
        "tests/io/exchange/test_stars.py::test_rounds_connect_what_union_find_connects",
    ),
    "a task of a divided record does not know its lesser ones": Named(
        "transforms/stars.py",
        "    if gathered.cut_keys:",
        "    if not gathered.cut_keys:",
        "tests/pipelines/exchanges/test_stars.py::test_large_clusters_are_divided_among_tasks",
    ),
    "a task of a divided cluster does not know which record stays": Named(
        "transforms/stars.py",
        "    if cut:\n",
        "    if not cut:\n",
        "tests/pipelines/exchanges/test_stars.py::test_large_clusters_are_divided_among_tasks",
    ),
    "of a divided cluster the first record stays, not the preferred one": Named(
        "transforms/stars.py",
        "leads = is_first | (forest.best()[places] == places)",
        "leads = is_first",
        "tests/pipelines/exchanges/test_stars.py::test_large_clusters_are_divided_among_tasks",
    ),
    "of a divided cluster the preferred record stands for the first": Named(
        "transforms/stars.py",
        "leads = is_first | (forest.best()[places] == places)",
        "leads = forest.best()[places] == places",
        "tests/pipelines/exchanges/test_stars.py::test_large_clusters_are_divided_among_tasks",
    ),
    "what stands for others of a divided cluster is counted twice": Named(
        "transforms/stars.py",
        "    is_cut[count:] = False\n",
        "    is_cut[:] = False\n",
        "tests/pipelines/exchanges/test_stars.py::test_how_large_clusters_are_is_counted_once_each",
    ),
    "a part has one of the leading records of its keys alone": Named(
        "io/exchange/hash_run.py",
        "Bound(key, one.run), Bound(key, one.run, LEADING)",
        "Bound(key, one.run), Bound(key, one.run, 1)",
        "tests/pipelines/exchanges/test_stars.py::test_large_clusters_are_divided_among_tasks",
    ),
    "a preferred record stays, though it is near an earlier one": Named(
        "io/exchange/forest.py",
        "ranks[self.are_earlier()] = -1",
        "ranks[self.are_earlier()] = len(ranked)",
        "tests/pipelines/exchanges/test_against.py::test_what_is_near_an_earlier_one_goes",
    ),
    "the last record of a span is not looked for": Named(
        "sources/listed.py",
        "np.searchsorted(one.numbers, np.array([start, stop], np.uint64))",
        "np.searchsorted(one.numbers, np.array([start, stop - 1], np.uint64))",
        "tests/sources/test_listed.py::test_records_that_are_listed_are_read_alone_with_what_stands_there",
    ),
    "a file is done whatever is dropped of it": Named(
        "sources/listed.py",
        'Source(f"{LIST_SCHEME}{source.url}", 0, version)',
        'Source(f"{LIST_SCHEME}{source.url}", 0, "")',
        "tests/sources/test_listed.py::test_a_source_is_the_file_and_what_is_dropped_of_it",
    ),
    "what is verified is compared with the first earlier record of a band alone": Named(
        "transforms/near.py",
        "_forests(gathered, 0 if self.among_earlier else gathered.earlier)",
        "_forests(gathered, gathered.earlier)",
        "tests/pipelines/exchanges/test_against_verified.py"
        "::test_any_earlier_record_of_a_band_may_be_the_near_one_and_others_are_not_read",
    ),
    "what is near no later record is read again": Named(
        "transforms/near.py",
        "later = ~self.forest.are_earlier() | self.are_cut",
        "later = np.ones(len(roots), np.bool_)",
        "tests/pipelines/exchanges/test_against_verified.py"
        "::test_any_earlier_record_of_a_band_may_be_the_near_one_and_others_are_not_read",
    ),
    "blank lines have no numbers": Named(
        "sources/placed.py",
        "lines, numbers = lines.at(~blank), numbers[~blank]",
        "lines, numbers = lines.at(~blank), numbers[: int((~blank).sum())]",
        "tests/sources/test_placed.py::test_lines_have_the_numbers_of_lines_and_blank_ones_count",
    ),
    "a line of zero bytes is moved as a sample": Named(
        "sources/placed.py",
        "            if not are_text.all():",
        "            if False:",
        "tests/sources/test_placed.py::test_a_line_that_is_no_json_is_not_moved_as_a_record_of_another_format",
    ),
    "run files that are gone are not missed": Named(
        "pipelines/jobs/pipeline_exchange.py",
        "        if lost := forget_lost(OutputFolder(self.runs, options), scattered):",
        "        if lost := 0:",
        "tests/pipelines/exchanges/test_own_exchange.py::test_run_files_that_are_gone_are_scattered_again",
    ),
    "rejects of a pipeline that scatters are taken for run files": Named(
        "pipelines/jobs/buckets.py",
        " and row.output.route != REJECTS:",
        ":",
        "tests/pipelines/exchanges/test_own_exchange.py::test_rejects_stay_behind_and_routes_are_refused",
    ),
    "groups by another key are those of the run files": Named(
        "pipelines/own_pipeline.py",
        "            _check_key(function, found)",
        "            pass",
        "tests/pipelines/exchanges/test_own_exchange.py::test_groups_are_those_of_the_key_that_was_scattered",
    ),
    "what could not be decoded is scattered as another record": Named(
        "transforms/scatter.py",
        "            if Unreadable in map(type, held):",
        "            if False:",
        "tests/transforms/test_scatter.py::test_a_record_that_cannot_be_moved_fails_its_task_by_name",
    ),
    "cuts of another number of buckets are taken": Named(
        "io/exchange/partition.py",
        "if len(found) != self.buckets - 1 or any(",
        "if any(",
        "tests/pipelines/jobs/test_partition.py::test_cuts_that_are_none_are_damage",
    ),
    "indexes are removed wherever they lie": Named(
        "pipelines/jobs/removal.py",
        "if url.endswith(_INDEX_SUFFIXES) and url.startswith(root):",
        "if url.startswith(root):",
        "tests/pipelines/jobs/test_removed_outputs.py::test_indexes_are_removed_where_the_job_writes_them",
    ),
    "parts of indexes are removed while they are needed": Named(
        "pipelines/jobs/removal.py",
        "compress(parts, done)",
        "parts",
        "tests/pipelines/jobs/test_removed_outputs.py::test_parts_of_indexes_go_once_their_sources_are_complete",
    ),
    "outputs that were removed stay out of date": Named(
        "pipelines/jobs/removal.py",
        "    store.drop_stale(stale)\n",
        "",
        "tests/pipelines/jobs/test_removed_outputs.py::test_outputs_of_what_a_source_was_are_removed_and_forgotten",
    ),
    "the files of a pack share their places": Named(
        "sources/placed.py",
        "part.numbers + (np.uint64(file) << FILE_SHIFT)",
        "part.numbers",
        "tests/sources/test_placed.py::test_records_of_several_files_are_one_sequence",
    ),
    "what is complete is not looked at again after files were lost": Named(
        "pipelines/calls/exchange_stages.py",
        "self._complete.clear()",
        "pass",
        "tests/pipelines/exchanges/test_gone.py::test_a_deduplication_of_which_all_outputs_are_gone_is_done_again",
    ),
    "what is not all scattered is gathered": Named(
        "pipelines/jobs/buckets.py",
        "            _require_complete(writer)\n",
        "",
        "tests/pipelines/exchanges/test_own_exchange.py::test_what_is_not_all_scattered_is_refused",
    ),
    "tasks are taken in before their sources": Named(
        "ledger/remote/replay.py",
        "_CONTROL, _SNAPSHOT, _SOURCES, _TASKS, _SWEEP = range(5)",
        "_CONTROL, _SNAPSHOT, _TASKS, _SOURCES, _SWEEP = range(5)",
        "tests/ledger/remote/test_cutoffs.py::test_who_lists_a_source_again_before_it_was_gone_does_not_bring_it_back",
    ),
    "deletions are taken in before the tasks that supersede": Named(
        "ledger/remote/replay.py",
        "_CONTROL, _SNAPSHOT, _SOURCES, _TASKS, _SWEEP = range(5)",
        "_CONTROL, _SNAPSHOT, _SOURCES, _SWEEP, _TASKS = range(5)",
        "tests/ledger/remote/test_store.py::TestRemoteStore::test_a_changed_source_runs_again_and_replaces_its_outputs",
    ),
    "two commits of a writer run at once": Named(
        "ledger/worker/writer.py",
        "        with self._committing:\n            with self._changed:\n                leaves",
        "        with threading.Lock():\n            with self._changed:\n                leaves",
        "tests/ledger/worker/test_writer.py::test_flush_waits_for_a_commit_that_another_thread_has_begun",
    ),
    "what a flush commits is not in its result": Named(
        "ledger/worker/writer.py",
        "        self._flush()\n        with self._changed:\n            result = CommitResult(self._completed, self._fresh, self._seconds)\n            self._completed",
        "        with self._changed:\n            result = CommitResult(self._completed, self._fresh, self._seconds)\n        self._flush()\n        with self._changed:\n            self._completed",
        "tests/ledger/worker/test_writer.py::test_nothing_is_committed_before_its_time_and_flush_commits_all",
    ),
    "two runs share a writer": Named(
        "ledger/worker/writer.py",
        "        return cls(where, job, run, json.dumps",
        '        return cls(where, job, "", json.dumps',
        "tests/ledger/worker/test_writer.py::test_what_decides_where_rows_go_has_a_writer_of_its_own",
    ),
    "ledgers reached otherwise share a writer": Named(
        "ledger/worker/writer.py",
        "json.dumps(options or {}, sort_keys=True, default=repr)",
        '"{}"',
        "tests/ledger/worker/test_writer.py::test_what_decides_where_rows_go_has_a_writer_of_its_own",
    ),
    "the first writer that fails keeps the others open": Named(
        "ledger/worker/writer.py",
        "        except BaseException as error:  # noqa: BLE001 - raised below, after the others were closed\n            errors.append(error)",
        "        except BaseException as error:  # noqa: BLE001 - raised below, after the others were closed\n            raise error",
        "tests/ledger/lmdb/test_group_commit.py::test_all_shared_writers_are_closed_though_one_of_them_fails",
    ),
    "a writer stays blocked though the rest was recorded": Named(
        "ledger/worker/writer.py",
        "self._refused, self._blocked = error, None",
        "self._refused = error",
        "tests/ledger/lmdb/test_group_commit.py::test_a_refused_task_after_a_full_disk_is_told_once",
    ),
    "statistics that were committed count for the limit": Named(
        "ledger/worker/writer.py",
        "                self._leaves, self._failures, self._sketch_bytes = [], [], 0\n",
        "                self._leaves, self._failures, self._sketch_bytes = [], [], self._sketch_bytes\n",
        "tests/ledger/worker/test_writer.py::test_enough_statistics_are_committed_at_once",
    ),
    "what waits on a board and is posted again is drawn twice": Named(
        "ledger/worker/task_board.py",
        "if txn.put(task.key, body, db=self._bodies, overwrite=False):",
        "if txn.put(task.key, body, db=self._bodies) or True:",
        "tests/ledger/worker/test_task_board.py::test_what_is_posted_again_while_it_waits_stays_where_it_is",
    ),
    "what has ended is not told while nothing may be begun": Named(
        "ledger/worker/task_board.py",
        "            for key in ended:\n                self._end(txn, key)\n            if not self._may_begin(txn):\n                return None\n",
        "            if not self._may_begin(txn):\n                return None\n            for key in ended:\n                self._end(txn, key)\n",
        "tests/ledger/worker/test_task_board.py::test_what_has_ended_is_told_though_nothing_may_be_begun",
    ),
    "a forked process uses the board of its parent": Named(
        "ledger/worker/task_board.py",
        "board = _boards.get((os.getpid(), path))",
        "board = next(iter(_boards.values()), None)",
        "tests/ledger/worker/test_task_board.py::test_a_forked_process_never_touches_the_board_of_its_parent",
    ),
    "what is posted while others share is drawn unclaimed": Named(
        "ledger/worker/task_board.py",
        "state = _WAITING if self._facts(txn).shared else _READY",
        "state = _READY",
        "tests/ledger/worker/test_task_board.py::test_a_board_is_done_when_all_that_waits_is_left_to_others",
    ),
    "a worker that draws ahead takes the last one of others": Named(
        "ledger/worker/task_board.py",
        '["entries"] <= leaving:',
        '["entries"] < leaving:',
        "tests/ledger/worker/test_task_board.py::test_a_worker_that_draws_ahead_leaves_some",
    ),
    "elements are offered before they are claimed": Named(
        "ledger/worker/sharing.py",
        "        if not self._say(spans, holds):\n            return\n        self._lease = now + _LEASE * holds\n        board.offer(task.key for task in chosen)\n",
        "        board.offer(task.key for task in chosen)\n        if not self._say(spans, holds):\n            return\n        self._lease = now + _LEASE * holds\n",
        "tests/ledger/worker/test_sharing.py::test_what_cannot_be_said_is_not_drawn",
    ),
    "others are not heard before something is claimed": Named(
        "ledger/worker/sharing.py",
        "            self._next_read = min(self._next_read, now)  # just before something is claimed\n",
        "            pass\n",
        "tests/ledger/worker/test_sharing.py::test_others_are_heard_just_before_something_is_claimed",
    ),
    "claims that are read again hold anew": Named(
        "ledger/worker/sharing.py",
        "if seen is None or (data is not None and seen.data != data):",
        "if seen is None or data is not None:",
        "tests/ledger/worker/test_sharing.py::test_claims_expire_by_the_clock_of_the_reader",
    ),
    "a run gives way to itself": Named(
        "ledger/worker/sharing.py",
        "return claims if claims.run != self._run else None",
        "return claims",
        "tests/ledger/worker/test_sharing.py::test_what_this_run_has_said_under_another_name_binds_it_not",
    ),
    "what is in work is claimed once only": Named(
        "ledger/worker/sharing.py",
        "for task in (*in_work, *ready, *chosen))",
        "for task in (*ready, *chosen))",
        "tests/ledger/worker/test_sharing.py::test_what_is_in_work_stays_claimed_until_it_has_ended",
    ),
    "a marker is locked once it is seen": Named(
        "ledger/worker/run_folders.py",
        '            fcntl.flock(marker, fcntl.LOCK_EX)\n            os.write(marker, encode({"ledger": self._ledger_id, "run": run, "pid": os.getpid()}))\n            # Nobody sees a marker that is not locked yet: it would be that of a dead run.\n            os.rename(_ASIDE, MARKER, src_dir_fd=folder, dst_dir_fd=folder)\n',
        '            os.write(marker, encode({"ledger": self._ledger_id, "run": run, "pid": os.getpid()}))\n            os.rename(_ASIDE, MARKER, src_dir_fd=folder, dst_dir_fd=folder)\n            fcntl.flock(marker, fcntl.LOCK_EX)\n',
        "tests/ledger/worker/test_run_folders.py::test_nobody_sees_a_marker_that_is_not_locked",
    ),
    "a launcher begins while another tidies up": Named(
        "ledger/worker/run_folders.py",
        "            fcntl.flock(runs, fcntl.LOCK_SH)  # waits while another launcher tidies up\n",
        "",
        "tests/ledger/worker/test_run_folders.py::test_a_launcher_is_alone_once_all_others_have_ended",
    ),
    "a launcher whose folder was replaced is alone": Named(
        "ledger/worker/run_folders.py",
        "        yield self.is_in_place() and _is_named(os.path.dirname(self._path), self._runs)",
        "        yield True",
        "tests/ledger/worker/test_run_folders.py::test_a_launcher_whose_presence_was_removed_cannot_say_that_it_is_alone",
    ),
    "two that look at marks take each other for the worker": Named(
        "ledger/worker/inflight.py",
        "fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)",
        "fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "tests/ledger/worker/test_inflight.py::test_two_that_look_at_once_do_not_take_each_other_for_the_worker",
    ),
    "a task that raises stays in work": Named(
        "ledger/worker/inflight.py",
        "        try:\n            yield\n        finally:\n            file.end(token)",
        "        yield\n        file.end(token)",
        "tests/ledger/worker/test_inflight.py::test_a_task_that_raises_is_in_work_no_more",
    ),
    "the end of a task ends all that are in work": Named(
        "ledger/worker/inflight.py",
        "            del self._working[token]\n",
        "            self._working.clear()\n",
        "tests/ledger/worker/test_inflight.py::test_marks_come_and_go_with_what_is_in_work",
    ),
    "who looks at marks of the dead removes them": Named(
        "ledger/worker/inflight.py",
        "return sorted(DeadWorker(pid, marks) for pid, marks, alive in _scan(folder, remove_dead=False) if not alive)",
        "return sorted(DeadWorker(pid, marks) for pid, marks, alive in _scan(folder, remove_dead=True) if not alive)",
        "tests/ledger/worker/test_inflight.py::test_marks_of_another_user_blame_nobody_and_stay",
    ),
    "failures are recorded before the leaves of their commit": Named(
        "ledger/lmdb/commit.py",
        "    for source, leaves in by_source:\n        _SourceCommit(txn, source, rows, outcome, passed).record(leaves, now)\n    rows.write()\n    outcome.failures = record_failures(txn, failures, stamp)\n",
        "    outcome.failures = record_failures(txn, failures, stamp)\n    for source, leaves in by_source:\n        _SourceCommit(txn, source, rows, outcome, passed).record(leaves, now)\n    rows.write()\n",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_a_failure_of_a_finished_task_is_ignored",
    ),
    "sizes are compared only with checksums of one version": Named(
        "ledger/lmdb/commit.py",
        "before.size != now.size or (",
        "are_comparable(before.checksum, now.checksum) and before.size != now.size or (",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_checksums_of_an_earlier_version_are_compared_with_none_of_this_one",
    ),
    "a withdrawal forgets what it has recorded again": Named(
        "ledger/lmdb/store.py",
        "                lmdb_sources.forget(txn, [source], failures_only=False)\n                stamp = Stamp(lmdb_jobs.newest_number(txn), now)\n                lmdb_commit.record(txn, prepare(plan.staying), (), stamp, again=True)\n",
        "                stamp = Stamp(lmdb_jobs.newest_number(txn), now)\n                lmdb_commit.record(txn, prepare(plan.staying), (), stamp, again=True)\n                lmdb_sources.forget(txn, [source], failures_only=False)\n",
        "tests/ledger/lmdb/test_store.py::TestLmdbStore::test_a_withdrawn_task_runs_again_and_the_others_stay",
    ),
    "the job of a ledger is checked before the transaction": Named(
        "ledger/lmdb/store.py",
        "        def change(txn: Transaction) -> lmdb_commit.CommitChanges:\n            if self._job is not None:\n                lmdb_jobs.check_fingerprint(txn, self._job, self._path)\n",
        "        if self._job is not None:\n            with self._open().read() as txn:\n                lmdb_jobs.check_fingerprint(txn, self._job, self._path)\n\n        def change(txn: Transaction) -> lmdb_commit.CommitChanges:\n",
        "tests/ledger/lmdb/test_group_commit.py::test_a_ledger_that_is_taken_while_a_commit_begins_records_nothing",
    ),
    "a ledger whose file was replaced is written to": Named(
        "ledger/lmdb/environment.py",
        "                    self._check_file()\n",
        "                    pass\n",
        "tests/ledger/lmdb/test_environment.py::test_a_ledger_that_was_removed_in_use_is_an_error_and_can_be_made_anew",
    ),
    "a map grows under who reads": Named(
        "ledger/lmdb/environment.py",
        "        with self.gate.alone(), translated(self.path):\n            if self._env.info()",
        "        with translated(self.path):\n            if self._env.info()",
        "tests/ledger/lmdb/test_files.py::test_a_map_does_not_grow_under_who_reads",
    ),
    "an environment is closed under its other users": Named(
        "ledger/lmdb/environment.py",
        "if environment.users > 0 or environment.pid != os.getpid():",
        "if environment.pid != os.getpid():",
        "tests/ledger/lmdb/test_files.py::test_a_users_environment_stays_open_until_the_last_of_them_gives_it_back",
    ),
    "killed readers hold old pages for ever": Named(
        "ledger/lmdb/files.py",
        "                environment.reader_check()\n",
        "                pass\n",
        "tests/ledger/lmdb/test_files.py::test_readers_that_were_killed_hold_nothing_back",
    ),
    "what is held of complete sources outlives a withdrawal": Named(
        "ledger/lmdb/completed.py",
        "if withdrawals != self._withdrawals or environment is not self._environment:",
        "if environment is not self._environment:",
        "tests/ledger/remote/test_cutoffs.py::test_a_contradiction_is_seen_by_who_held_the_source_for_complete",
    ),
    "half of an id makes a source complete": Named(
        "ledger/lmdb/completed.py",
        "(self._high[places] == asked[:, 0]) & (self._low[places] == asked[:, 1])",
        "self._high[places] == asked[:, 0]",
        "tests/ledger/lmdb/test_store.py::test_ids_that_agree_in_their_first_half_are_told_apart",
    ),
    "completeness comes in the order of the ids": Named(
        "ledger/lmdb/completed.py",
        "        mask[order] = found\n",
        "        mask[:] = found\n",
        "tests/ledger/lmdb/test_store.py::test_what_was_completed_while_all_ids_were_read_is_looked_up",
    ),
    "an older end of a run replaces a newer": Named(
        "ledger/lmdb/jobs.py",
        'if (known["ended"] or 0) > news.get("ended", 0):',
        "if False:",
        "tests/ledger/lmdb/test_jobs.py::test_what_is_said_of_a_run_comes_to_the_same_in_any_order",
    ),
    "a listing that was finished is taken back": Named(
        "ledger/lmdb/jobs.py",
        'finished = known["listing_finished"] or news.get("listing_finished", False)',
        'finished = news.get("listing_finished", known["listing_finished"])',
        "tests/ledger/lmdb/test_jobs.py::test_what_is_said_of_a_run_comes_to_the_same_in_any_order",
    ),
    "a restart supersedes outputs of another folder": Named(
        "ledger/lmdb/jobs.py",
        'supersedes=stored.parameters.get("output") == job.parameters.get("output")',
        "supersedes=True",
        "tests/ledger/lmdb/test_store.py::test_a_job_that_restarts_in_another_folder_touches_nothing_of_the_former",
    ),
    "superseding again takes the older number": Named(
        "ledger/lmdb/superseded.py",
        "max(number, decode_superseded(row)[0])",
        "min(number, decode_superseded(row)[0])",
        "tests/ledger/lmdb/test_superseded.py::test_what_is_superseded_twice_has_the_greater_number",
    ),
    "what was superseded with the number of who deletes stays": Named(
        "ledger/lmdb/superseded.py",
        "decode_superseded(row)[0] > number:",
        "decode_superseded(row)[0] >= number:",
        "tests/ledger/remote/test_snapshots.py::test_a_snapshot_does_not_take_back_when_an_output_was_superseded",
    ),
    "a change that is made again is written twice": Named(
        "ledger/remote/store.py",
        "name = names.setdefault(numbered, self._next_name(segment, numbered))",
        "name = self._next_name(segment, numbered)",
        "tests/ledger/remote/test_writing.py::test_a_change_that_is_made_again_is_written_once",
    ),
    "leaves that are refused are in the segment": Named(
        "ledger/remote/store.py",
        "                whole = dataclasses.replace(whole, leaves=good)\n",
        "",
        "tests/ledger/remote/test_writing.py::test_leaves_that_are_refused_are_not_written_and_the_rest_is",
    ),
    "a forked store keeps its parent's name": Named(
        "ledger/remote/store.py",
        '        super().forget_parent()\n        self._writer = ""\n',
        "        super().forget_parent()\n",
        "tests/ledger/lmdb/test_group_commit.py::test_parent_and_child_record_with_one_store_and_lose_nothing",
    ),
    "a number that another took counts as ours": Named(
        "ledger/remote/store.py",
        "            if created:\n                return control",
        "            if created or True:\n                return control",
        "tests/ledger/remote/test_store.py::test_runs_that_begin_at_once_have_numbers_of_their_own",
    ),
    "known sources are registered again": Named(
        "ledger/remote/store.py",
        "news = [source for source in sources if source.id not in known]",
        "news = list(sources)",
        "tests/ledger/remote/test_writing.py::test_what_changes_nothing_writes_nothing",
    ),
    "a withdrawal whose number was taken brings back what was forgotten": Named(
        "ledger/remote/store.py",
        "            plans.clear()\n",
        "",
        "tests/ledger/remote/test_writing.py::test_what_was_forgotten_while_a_withdrawal_took_its_number_stays_forgotten",
    ),
    "the sidecar of a former ledger is used": Named(
        "ledger/remote/store.py",
        "return found is None or (found == ledger and not is_old)",
        "return found is None or not is_old",
        "tests/ledger/remote/test_store.py::test_a_ledger_that_was_deleted_and_made_anew_is_not_mixed_with_what_was_read_of_the_former",
    ),
    "the sidecar of a ledger that was made meanwhile is thrown away": Named(
        "ledger/remote/store.py",
        "                data, ledger = self._read_job()  # a process",
        "                pass  # a process",
        "tests/ledger/remote/test_store.py::test_the_sidecar_of_a_ledger_that_is_made_while_it_is_opened_is_not_thrown_away",
    ),
    "two processes throw away one sidecar at once": Named(
        "ledger/remote/store.py",
        "            fcntl.flock(descriptor, fcntl.LOCK_EX)\n",
        "",
        "tests/ledger/remote/test_store.py::test_processes_that_throw_away_one_sidecar_at_once_use_one_new",
    ),
    "a sink reads the first page of controls only": Named(
        "ledger/remote/sink.py",
        "        for start in range(0, len(news), 64):\n",
        "        for start in range(0, min(len(news), 64), 64):\n",
        "tests/ledger/remote/test_sink.py::test_a_sink_sees_that_the_ledger_was_taken_wherever_it_stands",
    ),
    "a snapshot counts as taken in before its parts are": Named(
        "ledger/remote/replay.py",
        "            doubts = self._fold_parts(name, manifest) if self._unfolded(manifest.covers) else None\n",
        "            self._environment.write(lambda txn, name=name: sidecar.mark_folded(txn, name))\n            doubts = self._fold_parts(name, manifest) if self._unfolded(manifest.covers) else None\n",
        "tests/ledger/remote/test_replay.py::test_a_host_that_was_interrupted_in_a_snapshot_goes_on_where_it_was",
    ),
    "who made a snapshot reads its parts again": Named(
        "ledger/remote/compaction.py",
        "            for folded in (name, *self.parts):",
        "            for folded in (name,):",
        "tests/ledger/remote/test_compaction.py::test_a_host_does_not_read_the_snapshot_that_it_has_made",
    ),
    "a restart of the job that is there drops what it has done": Named(
        "ledger/remote/apply.py",
        'if control.kind == "restart" and (before is None or before.fingerprint != control.job.fingerprint):',
        'if control.kind == "restart":',
        "tests/ledger/remote/test_writing.py::test_who_restarts_the_job_that_is_there_restarts_nothing",
    ),
    "a control that comes late takes numbers back": Named(
        "ledger/remote/apply.py",
        "_put_number(txn, KEY_NUMBER, max(control.number, _number(txn, KEY_NUMBER)))",
        "_put_number(txn, KEY_NUMBER, control.number)",
        "tests/ledger/remote/test_writing.py::test_numbers_of_controls_never_fall",
    ),
    "how a run before a restart ended is forgotten": Named(
        "ledger/remote/apply.py",
        "    for run, changed in (segment.runs or {}).items():\n        lmdb_jobs.change_run(txn, run, changed)\n    if segment.number < _number(txn, KEY_FLOOR):\n        _supersede_all(txn, segment)\n        return lmdb_commit.CommitChanges(), []\n",
        "    if segment.number < _number(txn, KEY_FLOOR):\n        _supersede_all(txn, segment)\n        return lmdb_commit.CommitChanges(), []\n    for run, changed in (segment.runs or {}).items():\n        lmdb_jobs.change_run(txn, run, changed)\n",
        "tests/ledger/remote/test_order.py::test_how_a_run_before_a_restart_ended_is_known_to_new_hosts",
    ),
    "objects that are read together are of the version of the first": Named(
        "io/storage/fetch.py",
        "[listed[i].version for i in left]",
        "[listed[left[0]].version for i in left]",
        "tests/io/storage/test_fetch.py::test_each_object_is_of_the_version_that_was_listed_of_it",
    ),
    "answers that were asked again go to the first places": Named(
        "io/storage/fetch.py",
        "for position, answer in zip(left, answers, strict=True):",
        "for position, answer in enumerate(answers):",
        "tests/io/storage/test_fetch.py::test_what_fails_for_a_moment_is_asked_again_alone_and_comes_in_its_place",
    ),
    "a lasting error is asked again for ever": Named(
        "io/storage/fetch.py",
        "if len(left) == before or not is_transient(error.__cause__ or error):",
        "if len(left) == before and not is_transient(error.__cause__ or error):",
        "tests/io/storage/test_fetch.py::test_attempts_count_anew_while_some_succeed",
    ),
    "an object that was deleted is not found, and has not changed": Named(
        "io/storage/fetch.py",
        '    if isinstance(worded, SourceNotFoundError):\n        return changed_error(listed, "none: it was deleted")\n',
        "",
        "tests/io/storage/test_listed_versions.py::test_an_object_that_is_gone_has_changed",
    ),
    "an answer of GCS of another generation is taken": Named(
        "io/storage/unchanged.py",
        '    _require(version, headers.get("X-Goog-Generation"))\n',
        "",
        "tests/io/storage/test_unchanged.py::test_what_answers_in_another_version_is_refused",
    ),
    "an answer of Azure of another version is taken": Named(
        "io/storage/unchanged.py",
        "        _require(version, stream.properties.etag)\n",
        "",
        "tests/io/storage/test_unchanged.py::test_what_answers_in_another_version_is_refused",
    ),
    "the version of a store without conditions is looked at before the read": Named(
        "io/storage/unchanged.py",
        "    data: bytes = store.cat_file(url, start=start, end=stop)\n    store.invalidate_cache()\n    return info_of(url, store.info(url)).version, data",
        "    store.invalidate_cache()\n    version = info_of(url, store.info(url)).version\n    data: bytes = store.cat_file(url, start=start, end=stop)\n    return version, data",
        "tests/io/storage/test_fetch.py::test_a_store_without_conditions_is_asked_for_the_version_behind_the_read",
    ),
    "a watch compares times in seconds": Named(
        "io/storage/unchanged.py",
        "if (found.st_size, str(found.st_mtime_ns)) != (source.size, source.version):",
        "if (found.st_size, found.st_mtime_ns // 10**9) != (source.size, int(source.version) // 10**9):",
        "tests/io/storage/test_unchanged.py::test_a_file_that_was_written_a_moment_later_is_another",
    ),
    "a watch compares times of change in seconds": Named(
        "io/storage/unchanged.py",
        "if source.changed_ns not in (0, found.st_ctime_ns):",
        "if source.changed_ns // 10**9 not in (0, found.st_ctime_ns // 10**9):",
        "tests/io/storage/test_unchanged.py::test_a_file_that_was_written_a_moment_later_is_another",
    ),
    "times of an opened file are compared in seconds": Named(
        "io/storage/stat.py",
        "        elif (found.st_size, str(found.st_mtime_ns)) != (listed.size, listed.version):",
        "        elif (found.st_size, found.st_mtime_ns // 10**9) != (listed.size, int(listed.version) // 10**9):",
        "tests/io/storage/test_unchanged.py::test_a_file_that_was_written_a_moment_later_is_another",
    ),
    "an opened file is compared by its path": Named(
        "io/storage/stat.py",
        "        found = os.fstat(descriptor)\n        if listed is None",
        "        found = os.stat(path)\n        if listed is None",
        "tests/io/storage/test_unchanged.py::test_an_open_file_is_the_one_that_is_compared",
    ),
    "a read that failed is not looked at for a change": Named(
        "io/storage/unchanged.py",
        "        elif isinstance(error, LedgerbeamError) and not isinstance(error, (DiskFullError, LedgerError)):",
        "        elif False:",
        "tests/io/storage/test_unchanged.py::test_what_fails_in_a_source_that_changed_is_its_change",
    ),
    "what a store holds is answered by a cache": Named(
        "io/storage/stat.py",
        '        store.invalidate_cache()\n        return info_of(url, call(url, "read", store.info, url))',
        '        return info_of(url, call(url, "read", store.info, url))',
        "tests/io/storage/test_unchanged.py::test_what_a_store_is_asked_is_answered_by_no_cache",
    ),
    "a read that comes short is returned": Named(
        "io/storage/ranges.py",
        "        if len(data) != stop - start:\n            raise self._short(start, stop, len(data))\n        return data\n\n    def _pread",
        "        return data\n\n    def _pread",
        "tests/io/storage/test_reading.py::test_a_source_that_was_cut_is_a_change_not_a_short_record",
    ),
    "many ranges are read of whatever version": Named(
        "io/storage/ranges.py",
        "return fetch_many(store, [self.url] * len(starts), starts, stops, [self.listed] * len(starts))",
        "return fetch_many(store, [self.url] * len(starts), starts, stops, [self.listed] * len(starts) if len(starts) == 1 else None)",
        "tests/io/storage/test_listed_versions.py::test_a_source_is_what_was_listed_or_an_error",
    ),
    "a reader that travels forgets what was listed": Named(
        "io/storage/ranges.py",
        "return type(self), (self.url, self.options, self._size, self.listed)",
        "return type(self), (self.url, self.options, self._size)",
        "tests/io/storage/test_listed_versions.py::test_a_source_is_what_was_listed_or_an_error",
    ),
    "the folder of the first output alone is synced": Named(
        "io/storage/publish.py",
        "for folder, path in {output.folder: output.path for output in opened}.items():",
        "for folder, path in {output.folder: output.path for output in opened[:1]}.items():",
        "tests/transforms/test_publishing.py::test_outputs_of_a_task_are_on_the_disk_before_the_first_has_its_name",
    ),
    "outputs appear before they are synced": Named(
        "io/storage/publish.py",
        "        _sync_together(opened)\n        for output in opened:\n            output.rename()\n",
        "        for output in opened:\n            output.rename()\n        _sync_together(opened)\n",
        "tests/transforms/test_publishing.py::test_outputs_that_the_disk_does_not_take_do_not_appear",
    ),
    "an index appears before its shard": Named(
        "io/storage/publish.py",
        "        for output in opened:\n            output.rename()\n",
        "        for output in reversed(opened):\n            output.rename()\n",
        "tests/transforms/test_publishing.py::test_outputs_of_a_task_that_cannot_be_published_leave_nothing_but_those_before",
    ),
    "an error of one of several syncs is dropped": Named(
        "io/storage/publish.py",
        "    for other in others:\n        other.result()\n",
        "",
        "tests/transforms/test_publishing.py::test_outputs_that_the_disk_does_not_take_do_not_appear",
    ),
    "a temporary that was swept before it was locked is written": Named(
        "io/storage/publish.py",
        "            if _still_names(temporary, descriptor):\n                return temporary, descriptor\n",
        "            return temporary, descriptor\n",
        "tests/io/storage/test_publish.py::test_a_file_that_was_swept_before_it_was_locked_is_made_again",
    ),
    "the second creator of an object of a store wins": Named(
        "io/storage/objects.py",
        'store.pipe_file(url, data, mode="create")',
        "store.pipe_file(url, data)",
        "tests/io/storage/test_objects.py::test_a_creation_beside_another_is_tried_again_and_another_refusal_is_an_error",
    ),
    "a source is cut before it is in work": Named(
        "transforms/plan.py",
        '            with self._working_on(source), timed("index"), fatal_errors(self._ledger):\n                cut = self._cut(source)\n',
        '            with timed("index"), fatal_errors(self._ledger):\n                cut = self._cut(source)\n',
        "tests/transforms/test_plan.py::test_a_large_source_and_one_of_which_a_worker_died_are_cut_alone",
    ),
    "a limit of tasks lets a stream pass whole": Named(
        "transforms/plan.py",
        "tasks=element.tasks[:granted], spans=element.spans[:granted])",
        "tasks=element.tasks, spans=element.spans)",
        "tests/transforms/test_plan.py::test_no_more_tasks_pass_than_the_run_may_do",
    ),
    "what is left of a stream is read at the places of others": Named(
        "transforms/plan.py",
        "tuple(places[number] for number in left), cut.stream.format",
        "tuple(places)[: len(left)], cut.stream.format",
        "tests/transforms/test_plan.py::test_the_tasks_of_a_stream_that_are_left_go_together",
    ),
    "a reader is held under the marks of the file before": Named(
        "transforms/read.py",
        "            self._open[source.id] = marks, opened\n",
        "            self._open[source.id] = known or marks, opened\n",
        "tests/transforms/test_read.py::test_a_replaced_file_is_no_longer_held_open",
    ),
    "what is published beside is recorded last first": Named(
        "transforms/write.py",
        "encoded, published = self._behind.popleft()",
        "encoded, published = self._behind.pop()",
        "tests/transforms/test_overlap.py::test_several_tasks_are_written_at_once_and_emitted_in_their_order",
    ),
    "an error of what is published beside is dropped": Named(
        "transforms/write.py",
        "                done = published.result()\n",
        "                done = WrittenTask(encoded.task, (), 0, 0) if published.exception() else published.result()\n",
        "tests/transforms/test_overlap.py::test_a_write_that_fails_is_raised_and_nothing_behind_it_is_emitted",
    ),
    "what a bundle that failed has begun is emitted by the next": Named(
        "transforms/write.py",
        "    def start_bundle(self) -> None:\n        self._behind.clear()",
        "    def start_bundle(self) -> None:\n        pass",
        "tests/transforms/test_write.py::test_what_a_bundle_that_failed_has_begun_is_not_emitted_by_the_next",
    ),
    "what comes behind sees tasks that are not recorded": Named(
        "transforms/commit.py",
        "            if full:\n                writer.flush()\n",
        "            if full:\n                pass\n",
        "tests/transforms/test_write.py::TestCommit::test_what_comes_behind_sees_recorded_tasks_alone",
    ),
    "a task is recorded before it is noted for what comes behind": Named(
        "transforms/commit.py",
        "            if self._goes_on:\n                self._keep(element.task, leaf)\n            writer.add(leaf)\n",
        "            writer.add(leaf)\n            if self._goes_on:\n                self._keep(element.task, leaf)\n",
        "tests/transforms/test_write.py::TestCommit::test_what_cannot_be_noted_for_what_comes_behind_is_not_recorded",
    ),
    "rejected records of a repeated bundle count again": Named(
        "transforms/commit.py",
        "        self._rejected[task.node] = rejected\n",
        "        self._rejected[task.node] = self._rejected.get(task.node, 0) + rejected\n",
        "tests/transforms/test_rejects.py::test_where_nobody_looks_a_worker_stops_at_its_own_share",
    ),
    "each child of a task has its statistics": Named(
        "transforms/process.py",
        "        statistics = {} if carried else known\n",
        "        statistics = known\n",
        "tests/transforms/test_statistics.py::test_steps_one_after_the_other_add_up",
    ),
    "an index appears before its seek points": Named(
        "transforms/index.py",
        "            if points:  # before the index: if it exists, so do they\n                where.publish(*points, options, not_before_ns=found.modified_ns)\n            where.publish(url, data, options, not_before_ns=found.modified_ns)\n",
        "            where.publish(url, data, options, not_before_ns=found.modified_ns)\n            if points:\n                where.publish(*points, options, not_before_ns=found.modified_ns)\n",
        "tests/transforms/test_index.py::test_seek_points_are_there_before_the_index_that_needs_them",
    ),
    "an index is assembled while ranges of it are open": Named(
        "transforms/index.py",
        "owing = [task for task in ranges if not source.has_done(task)] or [last]",
        "owing = [*(task for task in ranges if not source.has_done(task)), last]",
        "tests/transforms/test_index.py::test_a_source_above_the_size_of_a_range_is_cut",
    ),
    "stale outputs are forgotten before they are removed": Named(
        "pipelines/jobs/removal.py",
        "    for root, below in names.items():\n        remove_below(root, below, spec.storage_options, ledger=spec.ledger)\n    store.drop_stale(stale)\n",
        "    store.drop_stale(stale)\n    for root, below in names.items():\n        remove_below(root, below, spec.storage_options, ledger=spec.ledger)\n",
        "tests/pipelines/jobs/test_removed_outputs.py::test_what_cannot_be_removed_stays_out_of_date",
    ),
    "names of a folder are checked once those of another are removed": Named(
        "pipelines/jobs/removal.py",
        "    for root, below in names.items():\n        _require_below(root, below, ledger=spec.ledger)\n",
        "",
        "tests/pipelines/jobs/test_removed_outputs.py::test_nothing_is_removed_in_any_folder_if_a_name_leads_out_of_one",
    ),
    "what is out of date is asked before others are heard": Named(
        "pipelines/jobs/removal.py",
        "    store.refresh()\n    stale = store.stale_outputs()\n",
        "    stale = store.stale_outputs()\n    store.refresh()\n",
        "tests/pipelines/jobs/test_removed_outputs.py::test_what_others_have_recorded_is_known_before_something_is_removed",
    ),
    "sources that are gone are forgotten before their outputs go": Named(
        "pipelines/jobs/removal.py",
        "    remove_below(spec.output, names, spec.storage_options, ledger=spec.ledger)\n    store.forget_sources(gone)\n",
        "    store.forget_sources(gone)\n    remove_below(spec.output, names, spec.storage_options, ledger=spec.ledger)\n",
        "tests/pipelines/jobs/test_removed_outputs.py::test_what_cannot_be_removed_stays_out_of_date",
    ),
    "a ledger is made before the folder is checked": Named(
        "pipelines/jobs/opening.py",
        "    known = _open_if_there(job)\n    if owner is not None:\n        owner.check(known)\n    job = job.decided(None if known is None else known.job(), on_change, say)\n    store = known or open_ledger(job.ledger, job.storage_options, create=True)\n",
        "    known = _open_if_there(job)\n    store = known or open_ledger(job.ledger, job.storage_options, create=True)\n    if owner is not None:\n        owner.check(known)\n    job = job.decided(None if known is None else known.job(), on_change, say)\n",
        "tests/pipelines/jobs/test_opening.py::test_a_job_that_is_refused_makes_no_ledger",
    ),
    "a restart tidies once the job before is forgotten": Named(
        "pipelines/jobs/opening.py",
        '    if owner is not None and on_change == "restart":\n        owner.begin_restart(store)\n    resumed = store.job() is not None\n    store.open_job(job.identity(), on_change=on_change)\n',
        '    resumed = store.job() is not None\n    store.open_job(job.identity(), on_change=on_change)\n    if owner is not None and on_change == "restart":\n        owner.begin_restart(store)\n',
        "tests/pipelines/jobs/test_opening.py::test_a_restart_removes_what_a_killed_run_of_the_job_before_has_left",
    ),
    "outputs in the folder before are out of date in another": Named(
        "pipelines/jobs/opening.py",
        "    if owner is not None and owner.is_new:\n        store.drop_stale(store.stale_outputs())  # they lie in another folder, where the ledger's job wrote before\n",
        "",
        "tests/pipelines/jobs/test_opening.py::test_outputs_in_the_folder_before_are_not_out_of_date_in_another",
    ),
    "a page of outputs is read without its last": Named(
        "pipelines/jobs/recorded.py",
        "keys = _keys(page.names, page.sizes)[: len(recorded) - filled]",
        "keys = _keys(page.names, page.sizes)[: len(recorded) - filled - 1]",
        "tests/pipelines/jobs/test_lost_outputs.py::test_all_is_gone",
    ),
    "an output of a store of another size is gone": Named(
        "pipelines/jobs/recorded.py",
        "            found[place] = odd_sizes[order[at]] if same_name else -1\n",
        "            found[place] = -1\n",
        "tests/pipelines/jobs/test_lost_outputs.py::test_another_size_is_refused_and_told",
    ),
    "times of files are noted before what changed is forgotten": Named(
        "pipelines/jobs/recorded.py",
        "    if changed:\n        store.forget_sources(changed)\n        found = with_progress(sources, store)\n    store.note_file_times({known: now for known, now in times.items() if any(now) and before.get(known) != now})\n",
        "    store.note_file_times({known: now for known, now in times.items() if any(now) and before.get(known) != now})\n    if changed:\n        found = with_progress(sources, store)\n",
        "tests/pipelines/jobs/test_look_at_files.py::test_a_source_that_is_replaced_after_a_part_was_done_is_begun_anew",
    ),
}


def main() -> int:
    """Judge mistakes, each with its test; gives the exit status."""
    wanted = [name for name in NAMED if not sys.argv[1:] or any(word in name for word in sys.argv[1:])]
    survived = []

    def choose(mutant: Mutant, names: Sequence[str], _: Counter[str]) -> list[str]:
        test = NAMED[mutant.function].test
        return [name for name in names if name.partition("[")[0] == test]

    def note(mutant: Mutant, killer: str | None) -> None:
        print(f"{mutant.function}: {killer}", flush=True)
        if killer is None:
            survived.append(mutant.function)

    tests = sorted({NAMED[name].test for name in wanted})
    run_tests(tests, [Judge([mutant_of(name, NAMED[name]) for name in wanted], choose, {}, note)], ALONE)
    print(f"named {len(wanted)}, survived {len(survived)}: {', '.join(survived)}")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
