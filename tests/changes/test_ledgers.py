"""What becomes of a job's ledger and indexes while nobody looks."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.changes.places import LocalPlace, Place, check_refused, check_right, failures

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def test_a_moved_ledger_goes_on(partly: Place) -> None:
    partly.copy("ledger", "moved")
    partly.remove("ledger")
    check_right(partly, partly.job(ledger="moved"), ledger="moved")


def test_of_two_copies_of_a_ledger_one_goes_on(partly: Place) -> None:
    partly.copy("ledger", "copy")
    check_right(partly, partly.job())
    check_refused(partly, partly.job(ledger="copy"), partly.url("copy"), before=partly.outputs())


def test_an_older_copy_that_is_put_back(partly: Place) -> None:
    partly.copy("ledger", "saved")
    check_right(partly, partly.job())
    partly.remove("ledger")
    partly.remove("cache") if isinstance(partly, LocalPlace) and (partly.workspace.root / "cache").exists() else None
    partly.copy("saved", "ledger")
    if isinstance(partly, LocalPlace):
        check_refused(partly, partly.job(), "ledger", before=partly.outputs())
    else:  # what the older copy lacks is known to this host, and is right
        check_right(partly, partly.job())


def test_a_lost_ledger_is_a_new_one_over_shards(partly: Place) -> None:
    partly.remove("ledger")
    check_refused(partly, partly.job(), "--existing", before=partly.outputs())
    check_right(partly, partly.job(more=["--existing", "replace"]))


def test_a_damaged_ledger_is_told(partly: Place) -> None:
    names = [name for name in partly.files("ledger") if name == "data.mdb" or "/t-" in name]
    assert names
    for name in names:
        data = bytearray(partly.get(f"ledger/{name}"))
        for place in range(64, len(data), 97):
            data[place] ^= 0x5A
        partly.put(f"ledger/{name}", bytes(data))
    env = {"LEDGERBEAM_CACHE": str(partly.workspace.root / "another-cache")}
    check_refused(partly, partly.job(env=env), "ledger", before=partly.outputs())


def test_a_folder_with_other_things_is_no_ledger(place: Place) -> None:
    place.write_sources()
    place.put("ledger/notes.md", b"mine")
    place.put("ledger/run/mine.txt", b"mine too")
    ran = place.job()
    if isinstance(place, LocalPlace):
        check_refused(place, ran, "notes.md", before={})
    else:
        check_right(place, ran)
    assert place.get("ledger/notes.md") == b"mine"
    assert place.get("ledger/run/mine.txt") == b"mine too"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting read only needs root")
def test_a_ledger_that_cannot_be_written_is_told(partly: Place) -> None:
    if not isinstance(partly, LocalPlace):
        pytest.skip("a store that refuses is tested by tests/pipelines/stores/test_s3.py")
    ledger = partly.url("ledger")
    mount = f'mount --bind {ledger} {ledger} && mount -o remount,ro,bind {ledger} && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", mount, "sh", sys.executable, "-m", "ledgerbeam", *partly.command()]
    env = {**partly.workspace.env, **partly.env}
    done = subprocess.run(command, cwd=partly.workspace.root, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert ledger in done.stderr
    assert "Traceback" not in done.stderr
    check_right(partly, partly.job())


class TestIndexes:
    """The index of a source is not the job's, and may be anybody's."""

    @pytest.mark.parametrize("damage", ["truncated", "random", "of another source", "of the content before"])
    def test_a_bad_index_is_never_read_wrongly(self, place: Place, damage: str) -> None:
        place.write_sources()
        assert place.run("index", place.url("in/*.jsonl"), "--ledger", place.url("indexing")).status == 0
        index = place.get("in/a.jsonl.idx")
        if damage == "truncated":
            index = index[: len(index) // 2]
        elif damage == "random":
            index = bytes((number * 37) % 256 for number in range(len(index)))
        elif damage == "of another source":
            index = place.get("in/b.jsonl.idx")[:-8] + index[-8:]
            index = index[:80] + index[88:96] + index[88:]
        else:
            place.change("replaced, with an older time" if isinstance(place, LocalPlace) else "overwritten")
        place.put("in/a.jsonl.idx", index)
        ran = place.job()
        if ran.status == 0:
            check_right(place, ran)
            return
        assert ran.status == 3, ran.err
        assert "a.jsonl.idx" in ran.err
        assert "ledgerbeam index --force" in ran.err
        assert place.run("index", "--force", place.url("in/a.jsonl"), "--ledger", place.url("indexing-2")).status == 0
        check_right(place, place.job())

    def test_what_was_done_by_a_stale_index_is_done_again(self, place: Place) -> None:
        """It is right of some tasks, of others it has the records, and not their numbers."""
        if not isinstance(place, LocalPlace):
            pytest.skip("an object store tells when an object was put: its index is older then")
        short, long = b'{"id": "%03d", "text": "x"}\n', b'{"id": "%03d", "text": "xxxxxx%0*d"}\n'
        place.write_sources()
        place.put("in/a.jsonl", b"".join(short % number for number in range(400)))
        assert place.run("index", place.url("in/a.jsonl"), "--ledger", place.url("indexing")).status == 0
        head = b"".join(short % number for number in range(200))
        one = long % (200, 2 * len(short % 0) - len(long % (0, 0, 0)) + 1, 0)
        tail = b"".join(short % number for number in range(202, 400))
        place.put("spare/new.jsonl", head + one + tail)
        assert len(head + one + tail) == len(place.get("in/a.jsonl"))
        place.change("replaced, with an older time")
        ran = place.job()
        assert ran.status == 3, ran.err
        assert ran.json["tasks"]["done"] > 3
        assert {failure["reason"] for failure in failures(place)} == {"IndexMismatchError"}
        assert place.run("index", "--force", place.url("in/a.jsonl"), "--ledger", place.url("indexing-2")).status == 0
        check_right(place, place.job())
