"""What changes the sources of a job: before it goes on, while it works, and between listing and planning."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from tests.changes.places import RECORDS, LocalPlace, Place, S3Place, check_right, failures
from tests.servers.leash import descendants
from tests.servers.process import command_of

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

CHANGES = (
    "overwritten",
    "replaced",
    "replaced, with an older time",
    "replaced, with the time that it had",
    "replaced, with a time to come",
    "appended",
    "truncated",
    "emptied",
    "touched",
    "deleted",
)
_OF_FILES = "replaced"
"""What a change begins with that an object store does not know: there an object is put, or deleted."""

WHOLE = "1000000"  # task size of jobs that read each source with one task
_FORKER = "ledgerbeam.pipelines.runners.wave"
"""In the command line of the process that waves are forked from, which imports Beam while the launcher lists."""

_UNNOTICED = "replaced, with the time that it had"
"""Between two runs a file of the same size and time is the same source: identity is URL, size and time."""


_Found = TypeVar("_Found")


def _skip_foreign(place: Place, change: str) -> None:
    if change.startswith(_OF_FILES) and not isinstance(place, LocalPlace):
        pytest.skip("an object store has no files to replace: see 'overwritten'")


@pytest.mark.parametrize("change", CHANGES)
class TestSources:
    """One source of two changes."""

    def test_while_the_job_works(self, place: Place, change: str) -> None:
        """The tasks that were read before the change stand for what was listed; those after it fail, by name."""
        _skip_foreign(place, change)
        place.write_sources(do=change)
        ran = place.job()
        if change == "touched" and not isinstance(place, LocalPlace):  # the same object was put again
            check_right(place, ran)
            return
        assert ran.status == 3, (ran.status, ran.err)
        assert ran.json["sources"]["complete"] == 1
        found = failures(place)
        assert found
        assert all(failure["source"].endswith("in/a.jsonl") for failure in found)
        assert {failure["reason"] for failure in found} <= {"ChangedSourceError", "SourceNotFoundError"}, found
        assert "run the same command again" in ran.err
        place.disarm()
        check_right(place, place.job())

    @pytest.mark.parametrize("before", ["after it was done", "after a part of it was done"])
    def test_between_two_runs(self, place: Place, change: str, before: str) -> None:
        _skip_foreign(place, change)
        in_part = before == "after a part of it was done"
        if change == _UNNOTICED and not in_part:
            pytest.skip("size and time are what tells one version of a file from another")
        place.write_sources(do="fail" if in_part else "nothing")
        first = place.job()
        assert first.status == (3 if in_part else 0), first.err
        if in_part:
            place.disarm()
        place.change(change)
        check_right(place, place.job())

    def test_between_listing_and_planning(self, place: Place, change: str) -> None:
        """On the local runner a source is listed by the launcher, and looked into by a worker of a wave."""
        _skip_foreign(place, change)
        if type(place) not in (LocalPlace, S3Place):
            pytest.skip("on a cluster a source is listed and planned by one worker in one go")
        place.write_sources()
        process = place.workspace.start(*place.command(), env=place.env)
        with _waves_held(place, process):
            place.disarm()
            place.change(change)
        out = process.communicate(timeout=240)[0]
        if change == "touched" and not isinstance(place, LocalPlace):
            assert process.returncode == 0, out
        else:
            assert process.returncode == 3, out
            assert "a.jsonl" in out
        check_right(place, place.job())


@contextmanager
def _waves_held(place: Place, launcher: subprocess.Popen[str]) -> Iterator[None]:
    """Run the body once the sources are listed, and hold what forks the waves until it ends."""
    forkers = _awaited(lambda: [pid for pid in descendants(launcher.pid) if _FORKER in command_of(pid)], launcher)
    for pid in forkers:
        os.kill(pid, signal.SIGSTOP)
    try:
        _awaited(lambda: list(place.workspace.root.rglob("pass-0001/wave")), launcher)
        yield
    finally:
        for pid in forkers:
            os.kill(pid, signal.SIGCONT)


def _awaited(find: Callable[[], list[_Found]], launcher: subprocess.Popen[str]) -> list[_Found]:
    """Return what a launcher brings about, however slow the machine is; pytest ends a test that hangs."""
    while not (found := find()):
        assert launcher.poll() is None, launcher.communicate()[0]
        time.sleep(0.005)
    return found


def test_what_was_read_before_a_change_stands_for_what_was_listed(place: Place) -> None:
    """A change after the last read cannot be told from one after the run; the next run of the command finds it."""
    place.write_sources(do="overwritten")
    first = place.job(task_bytes=WHOLE)
    assert first.status == 0, first.err
    assert _words(place) == {"FIRST"}
    again = place.job(task_bytes=WHOLE)
    assert again.status == 0, again.err
    assert _words(place) == {"OTHER"}
    place.check_bystanders()


def _words(place: Place) -> set[str]:
    """Return the first words of what was made of the source that changes."""
    (shard,) = (data for name, data in place.outputs().items() if re.fullmatch(r"a\.jsonl.*\.jsonl", name))
    texts = [json.loads(line)["text"] for line in shard.splitlines()]
    assert len(texts) == RECORDS
    return {text.split()[0] for text in texts}


def test_a_source_that_ends_in_a_record_is_named_until_it_is_whole(place: Place) -> None:
    place.write_sources()
    assert place.job().status == 0
    place.change("truncated in a record")
    ran = place.job()
    assert ran.status == 3, ran.err
    (failure,) = failures(place)
    assert failure["source"].endswith("in/a.jsonl")
    assert "expected JSON, found" in failure["error"], failure
    place.change("overwritten")
    check_right(place, place.job())


def test_a_source_that_was_changed_and_restored(place: Place) -> None:
    """Object stores tell by the content, files by the time: either way nothing is wrong."""
    place.write_sources()
    before = place.get("in/a.jsonl")
    first = place.job()
    assert first.status == 0, first.err
    outputs = place.outputs()
    place.change("truncated")
    check_right(place, place.job())
    place.put("in/a.jsonl", before)
    check_right(place, place.job())
    assert place.outputs() == outputs
