"""Reports of worker processes in the folder of a run: whole or missing, in separate files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.errors import LedgerbeamError, NonDeterministicTaskError, SourceNotFoundError, UsageError
from ledgerbeam.ledger.model.rows import MEASURED, PARTS, SetUps, WorkTime, read_work_time
from ledgerbeam.ledger.worker import reports
from tests.cases import each
from tests.disk import no_larger_than
from tests.ledger.processes import run
from tests.ledger.stores import in_threads


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Nothing of other tests is to be called or reported."""
    reports.end_work()
    reports.begin_times()
    yield
    reports.begin_times()


def test_each_file_is_of_its_process_and_of_no_other_file(tmp_path: Path) -> None:
    one, other = (reports.report_path(str(tmp_path), ".kind") for _ in range(2))
    assert one != other
    for path in (one, other):
        folder, name = os.path.split(path)
        assert folder == str(tmp_path)
        assert name.startswith(f"{os.getpid()}-")
        assert name.endswith(".kind")


def test_what_is_left_last_stands_in_the_place_of_what_was_before(tmp_path: Path) -> None:
    path = reports.report_path(str(tmp_path), ".kind")
    for value in ({"a": 1}, [2.5, "b"]):
        reports.write_report(path, value)
        assert list(reports.read_reports(str(tmp_path), ".kind")) == [value]
    assert os.listdir(tmp_path) == [os.path.basename(path)]


def test_what_the_disk_refuses_leaves_what_was_before(tmp_path: Path) -> None:
    path = reports.report_path(str(tmp_path), ".kind")
    reports.write_report(path, {"a": 1})
    with no_larger_than(4):
        reports.write_report(path, {"a": 2, "b": 3})
    assert list(reports.read_reports(str(tmp_path), ".kind")) == [{"a": 1}]


def test_files_of_one_kind_come_in_the_order_of_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (3, 1, 2):
        reports.write_report(str(tmp_path / f"{number}.kind"), number)
    reports.write_report(str(tmp_path / "4.other"), 4)
    (tmp_path / "0.kind.new").write_bytes(b"0")  # of one that was killed as it wrote
    listed = sorted(os.listdir(tmp_path), reverse=True)
    monkeypatch.setattr(os, "listdir", lambda _: listed)
    assert list(reports.read_reports(str(tmp_path), ".kind")) == [1, 2, 3]
    assert list(reports.read_reports(str(tmp_path), ".other")) == [4]


def test_what_others_have_left_is_passed_over_and_what_comes_behind_is_not(tmp_path: Path) -> None:
    (tmp_path / "1.kind").write_bytes(b'{"a":')
    (tmp_path / "2.kind").mkdir()
    os.symlink("nowhere", tmp_path / "3.kind")
    reports.write_report(str(tmp_path / "4.kind"), "ours")
    assert list(reports.read_reports(str(tmp_path), ".kind")) == ["ours"]


def test_where_there_is_no_folder_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "gone", tmp_path / "file"):
        reports.write_report(str(folder / "1.kind"), 1)
        assert list(reports.read_reports(str(folder), ".kind")) == []


def test_set_ups_of_all_processes_are_added_up(tmp_path: Path) -> None:
    reports.report_set_ups(str(tmp_path), (1.5, 0.25))
    reports.report_set_ups(str(tmp_path), [2.0])
    assert reports.reported_set_ups(str(tmp_path)) == SetUps(3, 3.75, 2.0)
    assert reports.reported_set_ups(str(tmp_path / "gone")) == SetUps()


@pytest.mark.parametrize("value", [1.0, None, {"times": 1}, [1.0, "2"], [1.0, -1.0], [[1.0]]])
def test_what_is_no_list_of_times_is_none_of_set_ups(tmp_path: Path, value: Any) -> None:
    reports.write_report(str(tmp_path / "0.setup"), value)
    reports.report_set_ups(str(tmp_path), [0.5])
    assert reports.reported_set_ups(str(tmp_path)) == SetUps(1, 0.5, 0.5)


NOT_UTF8 = b"/data/\xff.jsonl".decode("utf-8", "surrogateescape")


@pytest.mark.parametrize("message", ["plain", NOT_UTF8, "\ud800 alone", "", "x" * 100_000, "two\nlines\0"])
def test_an_error_arrives_as_it_was(tmp_path: Path, message: str) -> None:
    for kind in (NonDeterministicTaskError, SourceNotFoundError, LedgerbeamError):
        reports.report_error(str(tmp_path), kind(message))
        (found,) = reports.reported_errors(str(tmp_path))
        assert (type(found), str(found)) == (kind, message)


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"\xff\xfe", b"[]", b"1", b"null", b'"text"'),
        b'{"type": "UsageError"}',
        b'{"type": "UsageError", "message": 1}',
        b'{"type": ["UsageError"], "message": "m"}',
        b"[" * 100_000,
    ],
)
def test_a_file_that_no_worker_wrote_is_passed_over(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "1.error").write_bytes(content)
    (tmp_path / "2.error").mkdir()
    os.symlink("nowhere", tmp_path / "3.error")
    assert reports.reported_errors(str(tmp_path)) == []


@pytest.mark.parametrize("kind", ["annotations", "nobody", "__all__", "LedgerbeamErrors", "Exception", "__class__"])
def test_an_error_of_a_class_that_is_none_of_ours_is_shown_as_ours(tmp_path: Path, kind: str) -> None:
    (tmp_path / "1.error").write_text(f'{{"type": "{kind}", "message": "m"}}')
    (found,) = reports.reported_errors(str(tmp_path))
    assert (type(found), str(found)) == (LedgerbeamError, "m")


def test_the_errors_of_several_workers_arrive_without_secrets(tmp_path: Path) -> None:
    reports.report_error(str(tmp_path), SourceNotFoundError("ftp://me:hunter2@host/a: not found"))
    assert (tmp_path / f"{os.getpid()}.error").exists()
    (tmp_path / "0.error").write_text('{"type": "UsageError", "message": "m"}')
    (tmp_path / "1.errors").write_text('{"type": "UsageError", "message": "m"}')
    usage, lost = reports.reported_errors(str(tmp_path))
    assert (type(usage), str(usage), type(lost)) == (UsageError, "m", SourceNotFoundError)
    assert "hunter2" not in str(lost)
    assert str(lost).endswith("@host/a: not found")


def test_what_was_added_last_is_called_first_and_all_of_it_once() -> None:
    called: list[int] = []
    for number in range(3):
        reports.at_end(lambda number=number: called.append(number))  # type: ignore[misc]
    reports.end_work()
    assert called == [2, 1, 0]
    reports.end_work()
    assert called == [2, 1, 0]


def test_what_is_called_may_add_more() -> None:
    called: list[str] = []

    def last() -> None:
        called.append("last")
        reports.at_end(lambda: called.append("after it"))

    reports.at_end(lambda: called.append("first"))
    reports.at_end(last)
    reports.end_work()
    assert called == ["last", "after it", "first"]


def test_what_raises_is_not_called_again_and_the_rest_is_left_for_the_next_call() -> None:
    called: list[str] = []

    def refuse() -> None:
        called.append("refused")
        raise ValueError("no")

    reports.at_end(lambda: called.append("first"))
    reports.at_end(refuse)
    with pytest.raises(ValueError, match="no"):
        reports.end_work()
    reports.end_work()
    assert called == ["refused", "first"]


FORKS_BESIDE = """
from ledgerbeam.ledger.worker import reports

reports.at_end(lambda: print("of", here, flush=True))
here = "the parent"

def child():
    global here
    here = "the child"
    reports.at_end(lambda: print("its own", flush=True))
    reports.end_work()

assert fork_beside(threading.Lock(), child) == 0
reports.end_work()
"""


def test_a_forked_process_ends_what_it_has_begun_alone() -> None:
    assert run(FORKS_BESIDE).splitlines() == ["its own", "of the parent"]


SHORT = 0.05


def busy(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def left(folder: Path) -> WorkTime:
    reports.report_times(str(folder), at_once=True)
    return reports.reported_times(str(folder))


def test_what_is_inside_counts_for_the_inner_part_alone(tmp_path: Path) -> None:
    with reports.timed("encode"):
        busy(SHORT)
        with reports.timed("publish"):
            time.sleep(2 * SHORT)
    time.sleep(SHORT)
    found = left(tmp_path)
    assert SHORT <= found.cpu["encode"] < 2 * SHORT
    assert found.seconds["publish"] >= 2 * SHORT
    assert found.cpu["publish"] < SHORT
    assert found.seconds["wait"] >= SHORT
    assert set(found.seconds) == set(PARTS)
    assert {part for part in MEASURED if found.seconds[part]} == {"encode", "publish"}


def test_a_body_that_raises_is_counted_and_left(tmp_path: Path) -> None:
    def stop() -> None:
        with reports.timed("function"), reports.timed("encode"):
            time.sleep(SHORT)
            raise ValueError("stop")

    for _ in range(2):
        with pytest.raises(ValueError, match="stop"):
            stop()
    time.sleep(SHORT)
    found = left(tmp_path)
    assert 2 * SHORT <= found.seconds["encode"] < found.total
    assert found.seconds["function"] < SHORT


def test_all_threads_of_a_process_are_counted_and_parts_are_those_of_each(tmp_path: Path) -> None:
    def work() -> None:
        with reports.timed("read"):
            time.sleep(SHORT)

    with reports.timed("function"):
        in_threads(*[work] * 3)
    found = left(tmp_path)
    assert found.seconds["read"] >= 3 * SHORT
    assert found.seconds["function"] >= SHORT


def test_what_a_thread_beside_takes_of_processors_is_counted_for_its_part(tmp_path: Path) -> None:
    def work(fails: bool) -> int:
        busy(SHORT)
        if fails:
            raise ValueError("stop")
        return 7

    def begin() -> None:
        assert reports.counted_beside("index", work, False) == 7
        with pytest.raises(ValueError, match="stop"):
            reports.counted_beside("index", work, True)

    in_threads(begin)
    times = left(tmp_path)
    assert 2 * SHORT <= times.cpu["index"] < 3 * SHORT
    assert times.seconds["index"] == 0
    assert times.cpu["wait"] < SHORT


class Clock:
    """A clock that advances only on request; the processor is busy half of the time."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now

    monotonic = perf_counter

    def thread_time(self) -> float:
        return self.now / 2

    process_time = thread_time


def test_work_in_turns_shares_time_as_in_the_first_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(reports, "time", clock)
    reports.begin_times()

    def call(_: int) -> None:
        clock.now += 3

    with reports.timed("function"), reports.SharedTime("function", "encode") as shared:
        measured = shared.measured(call)
        for number in range(4):
            measured(number)
            clock.now += 1
        shared.measure()
        for number in range(96):
            call(number)
            clock.now += 1
        with reports.timed("read"):
            clock.now += 50
    clock.now += 7
    found = left(tmp_path)
    assert {part: seconds for part, seconds in found.seconds.items() if seconds} == pytest.approx(
        {"function": 300, "encode": 100, "read": 50, "wait": 7}
    )
    assert found.cpu["encode"] == pytest.approx(50)
    assert found.cpu["wait"] == pytest.approx(3.5)
    assert found.total == pytest.approx(457)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(reports, "time", made)
    reports.begin_times()
    return made


def test_what_was_spent_before_is_not_shared(tmp_path: Path, clock: Clock) -> None:
    def call(_: int) -> None:
        clock.now += 0.375

    with reports.timed("function"):
        clock.now += 10
        with reports.SharedTime("function", "encode") as shared:
            shared.measured(call)(0)
            clock.now += 0.125
            shared.measure()
            clock.now += 9.5
    found = left(tmp_path)
    assert (found.seconds["function"], found.seconds["encode"]) == pytest.approx((17.5, 2.5))
    assert (found.cpu["function"], found.cpu["encode"]) == pytest.approx((8.75, 1.25))


@pytest.mark.parametrize("is_measured", [True, False])
def test_what_was_not_measured_or_in_no_time_is_not_shared(tmp_path: Path, clock: Clock, is_measured: bool) -> None:
    with reports.timed("function"), reports.SharedTime("function", "encode") as shared:
        if is_measured:
            shared.measure()
        clock.now += 10
    found = left(tmp_path)
    assert (found.seconds["function"], found.seconds["encode"]) == (10, 0)


def test_threads_that_work_at_once_leave_no_time_to_wait(tmp_path: Path, clock: Clock) -> None:
    entered, go_on = threading.Barrier(3), threading.Event()

    def work() -> None:
        with reports.timed("read"):
            entered.wait()
            go_on.wait()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    entered.wait()
    clock.now += 10
    go_on.set()
    for thread in threads:
        thread.join()
    found = left(tmp_path)
    assert (found.seconds["read"], found.seconds["wait"]) == (20, 0)
    assert (found.cpu["read"], found.cpu["wait"]) == (10, 0)


def test_times_are_left_when_they_are_due_and_at_once_when_that_is_asked(tmp_path: Path, clock: Clock) -> None:
    def found() -> float:
        return reports.reported_times(str(tmp_path)).seconds.get("wait", 0.0)

    for seconds, at_once, expected in ((1, True, 1), (0.25, True, 1.25), (0.25, False, 1.25), (0.25, False, 1.75)):
        clock.now += seconds
        reports.report_times(str(tmp_path), at_once=at_once)
        assert found() == expected


def test_a_worker_leaves_its_times_when_it_ends(tmp_path: Path, clock: Clock) -> None:
    reports.begin_times(str(tmp_path))
    clock.now += 1
    reports.report_times(str(tmp_path), at_once=True)
    clock.now += 0.25
    reports.end_work()
    assert reports.reported_times(str(tmp_path)).seconds["wait"] == 1.25
    reports.begin_times()
    reports.end_work()  # not a worker of a local run
    assert reports.reported_times(str(tmp_path)).workers == 1


FORKS = """
import os, sys, time
from ledgerbeam.ledger.worker import reports
from ledgerbeam.ledger.worker.reports import report_times, take_times, timed

with timed("read"):
    time.sleep(0.05)
report_times(sys.argv[1], at_once=True)
with timed("encode"):
    reports._process.lock.acquire()  # as another thread might, which the fork does not copy
    child = os.fork()
    if child == 0:
        with timed("publish"):
            time.sleep(0.02)
        report_times(sys.argv[1], at_once=True)
        print(sorted(part for part, seconds in take_times().items() if seconds))
        sys.stdout.flush()
        os._exit(0)
    reports._process.lock.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
report_times(sys.argv[1], at_once=True)
"""


def test_the_times_of_a_forked_process_are_its_own(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORKS, str(tmp_path)]
    found = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert found.stdout == "['publish']\n"
    rows = [json.loads(path.read_bytes())["seconds"] for path in tmp_path.iterdir()]
    child, parent = sorted(rows, key=lambda row: row["read"])
    assert {part for part in MEASURED if child[part]} == {"publish"}
    assert child["wait"] < 30
    assert {part for part in MEASURED if parent[part]} == {"read", "encode"}


def test_outside_of_a_part_nothing_is_shared(tmp_path: Path) -> None:
    with reports.SharedTime("function", "encode") as shared:
        assert shared.measured(str)(1) == "1"
        shared.measure()
    found = left(tmp_path)
    assert found.seconds["function"] == found.seconds["encode"] == 0


def test_times_are_taken_once_as_counters_need_them() -> None:
    with reports.timed("read"):
        time.sleep(SHORT)
    taken = reports.take_times()
    assert taken["read"] >= SHORT
    assert set(reports.take_times().values()) == {0.0}
    with reports.timed("read"):
        time.sleep(SHORT)
    assert reports.take_times()["read"] >= SHORT


def test_workers_are_added_up_and_each_replaces_what_it_left_before(tmp_path: Path) -> None:
    with reports.timed("read"):
        time.sleep(SHORT)
    once, again = left(tmp_path), left(tmp_path)
    assert (once.workers, again.workers) == (1, 1)
    reports.begin_times()  # another worker
    with reports.timed("read"):
        time.sleep(SHORT)
    both = left(tmp_path)
    assert both.workers == 2
    assert both.seconds["read"] >= again.seconds["read"] + SHORT
    assert both.total == pytest.approx(sum(both.seconds.values()))


def test_a_process_that_goes_on_in_another_folder_leaves_its_times_there(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        assert left(tmp_path / name).workers == 1


def test_files_of_others_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "1-2.time").write_text('{"workers": 1')
    (tmp_path / "1-3.time").write_text('{"workers": 1, "seconds": {"sleep": 1}, "cpu": {}}')
    assert reports.reported_times(str(tmp_path)) == reports.reported_times(str(tmp_path / "nowhere")) == WorkTime()


@each(
    "row",
    [
        {"workers": 1, "seconds": {}},
        {"workers": -1, "seconds": {}, "cpu": {}},
        {"workers": 1, "seconds": {"read": "1"}, "cpu": {}},
        {"workers": 1, "seconds": {}, "cpu": {"more": 1}},
        {"workers": 1, "seconds": [], "cpu": {}},
        [],
    ],
)
def test_a_row_that_is_none_is_refused(row: object) -> None:
    with pytest.raises(ValueError, match="expected"):
        read_work_time(row)


def test_a_row_is_read_as_it_was_written() -> None:
    found = WorkTime(2, {"read": 1.25, "wait": 0.5}, {"read": 1.0})
    assert WorkTime(**read_work_time(json.loads(json.dumps(found.as_dict())))) == found


def test_a_row_has_microseconds_and_may_lack_the_workers() -> None:
    row = WorkTime(0, {"read": 1 / 3}, {"read": 2 / 3}).as_dict()
    assert row == {"workers": 0, "seconds": {"read": 0.333333}, "cpu": {"read": 0.666667}}
    del row["workers"]
    assert WorkTime(**read_work_time(row)).workers == 0


def test_times_of_workers_are_added_part_by_part() -> None:
    one, other = WorkTime(1, {"read": 1.0, "wait": 0.5}, {"read": 0.5}), WorkTime(2, {"index": 2.0, "read": 0.25})
    assert WorkTime.summed([one, other]) == WorkTime(3, {"read": 1.25, "index": 2.0, "wait": 0.5}, {"read": 0.5})
    assert WorkTime.summed([]) == WorkTime()
