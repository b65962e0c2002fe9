"""Working time of a process: nested parts, shared parts, and the report of a worker to its launcher."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledgerbeam.ledger.model.rows import MEASURED, PARTS, WorkTime, read_work_time
from ledgerbeam.ledger.worker import reports
from ledgerbeam.ledger.worker.reports import (
    SharedTime,
    begin_times,
    counted_beside,
    end_work,
    report_times,
    reported_times,
    take_times,
    timed,
)
from tests.cases import each

SHORT = 0.05


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    begin_times()
    yield
    begin_times()


def busy(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def left(folder: Path) -> WorkTime:
    report_times(str(folder), at_once=True)
    return reported_times(str(folder))


def test_what_is_inside_counts_for_the_inner_part_alone(tmp_path: Path) -> None:
    with timed("encode"):
        busy(SHORT)
        with timed("publish"):
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
        with timed("function"), timed("encode"):
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
        with timed("read"):
            time.sleep(SHORT)

    threads = [threading.Thread(target=work) for _ in range(3)]
    with timed("function"):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = left(tmp_path)
    assert found.seconds["read"] >= 3 * SHORT
    assert found.seconds["function"] >= SHORT


def test_what_a_thread_beside_takes_of_processors_is_counted_for_its_part(tmp_path: Path) -> None:
    def work(fails: bool) -> int:
        busy(SHORT)
        if fails:
            raise ValueError("stop")
        return 7

    found: list[object] = []

    def begin() -> None:
        found.append(counted_beside("index", work, False))
        with pytest.raises(ValueError, match="stop"):
            counted_beside("index", work, True)

    thread = threading.Thread(target=begin)
    thread.start()
    thread.join()
    times = left(tmp_path)
    assert found == [7]
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


def test_two_kinds_of_work_that_take_turns_share_the_time_as_in_their_first_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(reports, "time", clock)
    begin_times()

    def call(_: int) -> None:
        clock.now += 3

    with timed("function"), SharedTime("function", "encode") as shared:
        measured = shared.measured(call)
        for number in range(4):
            measured(number)
            clock.now += 1
        shared.measure()
        for number in range(96):
            call(number)
            clock.now += 1
        with timed("read"):
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
    begin_times()
    return made


def test_what_was_spent_before_is_not_shared(tmp_path: Path, clock: Clock) -> None:
    def call(_: int) -> None:
        clock.now += 0.375

    with timed("function"):
        clock.now += 10
        with SharedTime("function", "encode") as shared:
            shared.measured(call)(0)
            clock.now += 0.125
            shared.measure()
            clock.now += 9.5
    found = left(tmp_path)
    assert (found.seconds["function"], found.seconds["encode"]) == pytest.approx((17.5, 2.5))
    assert (found.cpu["function"], found.cpu["encode"]) == pytest.approx((8.75, 1.25))


@pytest.mark.parametrize("is_measured", [True, False])
def test_what_was_not_measured_or_in_no_time_is_not_shared(tmp_path: Path, clock: Clock, is_measured: bool) -> None:
    with timed("function"), SharedTime("function", "encode") as shared:
        if is_measured:
            shared.measure()
        clock.now += 10
    found = left(tmp_path)
    assert (found.seconds["function"], found.seconds["encode"]) == (10, 0)


def test_threads_that_work_at_once_leave_no_time_to_wait(tmp_path: Path, clock: Clock) -> None:
    entered, go_on = threading.Barrier(3), threading.Event()

    def work() -> None:
        with timed("read"):
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


def test_times_are_left_when_their_time_has_come_and_at_once_whenever_that_is_asked(
    tmp_path: Path, clock: Clock
) -> None:
    def found() -> float:
        return reported_times(str(tmp_path)).seconds.get("wait", 0.0)

    for seconds, at_once, expected in ((1, True, 1), (0.25, True, 1.25), (0.25, False, 1.25), (0.25, False, 1.75)):
        clock.now += seconds
        report_times(str(tmp_path), at_once=at_once)
        assert found() == expected


def test_a_worker_leaves_its_times_when_it_ends(tmp_path: Path, clock: Clock) -> None:
    begin_times(str(tmp_path))
    clock.now += 1
    report_times(str(tmp_path), at_once=True)
    clock.now += 0.25
    end_work()
    assert reported_times(str(tmp_path)).seconds["wait"] == 1.25
    begin_times()
    end_work()  # not a worker of a local run
    assert reported_times(str(tmp_path)).workers == 1


FORKS = """
import os, sys, time
from ledgerbeam.ledger.worker import stopwatch
from ledgerbeam.ledger.worker.reports import end_work
from ledgerbeam.ledger.worker.reports import report_times, take_times, timed

with timed("read"):
    time.sleep(0.05)
report_times(sys.argv[1], at_once=True)
with timed("encode"):
    stopwatch._process.lock.acquire()  # as another thread might, which the fork does not copy
    child = os.fork()
    if child == 0:
        with timed("publish"):
            time.sleep(0.02)
        report_times(sys.argv[1], at_once=True)
        print(sorted(part for part, seconds in take_times().items() if seconds))
        sys.stdout.flush()
        os._exit(0)
    stopwatch._process.lock.release()
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
    with SharedTime("function", "encode") as shared:
        assert shared.measured(str)(1) == "1"
        shared.measure()
    found = left(tmp_path)
    assert found.seconds["function"] == found.seconds["encode"] == 0


def test_times_are_taken_once_as_counters_need_them() -> None:
    with timed("read"):
        time.sleep(SHORT)
    taken = take_times()
    assert taken["read"] >= SHORT
    assert set(take_times().values()) == {0.0}


def test_what_a_part_takes_after_its_times_were_taken_is_taken_next() -> None:
    for _ in range(2):
        with timed("read"):
            time.sleep(SHORT)
        assert take_times()["read"] >= SHORT


def test_workers_are_added_up_and_each_replaces_what_it_left_before(tmp_path: Path) -> None:
    with timed("read"):
        time.sleep(SHORT)
    once, again = left(tmp_path), left(tmp_path)
    assert (once.workers, again.workers) == (1, 1)
    begin_times()  # another worker
    with timed("read"):
        time.sleep(SHORT)
    both = left(tmp_path)
    assert both.workers == 2
    assert both.seconds["read"] >= again.seconds["read"] + SHORT
    assert both.total == pytest.approx(sum(both.seconds.values()))


def test_times_are_left_only_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report_times(str(tmp_path), at_once=True)
    with timed("read"):
        time.sleep(SHORT)
    report_times(str(tmp_path))
    assert reported_times(str(tmp_path)).seconds["read"] == 0
    monkeypatch.setattr(reports, "REPORT_SECONDS", 0)
    report_times(str(tmp_path))
    assert reported_times(str(tmp_path)).seconds["read"] >= SHORT


def test_a_process_that_goes_on_in_another_folder_leaves_its_times_there(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        assert left(tmp_path / name).workers == 1


def test_files_of_others_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "1-2.time").write_text('{"workers": 1')
    (tmp_path / "1-3.time").write_text('{"workers": 1, "seconds": {"sleep": 1}, "cpu": {}}')
    assert reported_times(str(tmp_path)) == reported_times(str(tmp_path / "nowhere")) == WorkTime()


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
