"""Limits of paid calls: no window and no budget is exceeded, by any workers and hosts, whatever dies."""

from __future__ import annotations

import bisect
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgerbeam.errors import BudgetSpentError, FunctionError, ServiceError, UsageError
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.ledger.worker.limit_shares import LimitShares
from ledgerbeam.ledger.worker.limits import HostLimits, Limit, Meter, parse_limits
from tests.cases import each


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Calls:
    """Calls that were counted: their times and sizes."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.sums = [0]

    def add(self, time: float, size: int) -> None:
        self.times.append(time)
        self.sums.append(self.sums[-1] + size)

    def most(self, seconds: float) -> int:
        """Return the largest sum of any window of this length."""
        ends = (bisect.bisect_right(self.times, time + seconds) for time in self.times)
        return max((self.sums[end] - self.sums[start] for start, end in enumerate(ends)), default=0)


@given(
    st.randoms(use_true_random=False),
    st.sampled_from(["7/s", "100/s", "3/min", "600/min", "500tokens/s", "9000tokens/min"]),
)
@settings(max_examples=12)
def test_no_window_has_more_than_the_rate_and_the_rate_is_nearly_reached(
    tmp_path_factory: pytest.TempPathFactory, chance: random.Random, rate: str
) -> None:
    clock, (limit,) = Clock(), parse_limits([rate], [])
    meter = Meter.make(str(tmp_path_factory.mktemp("meter") / "limits"), clock)
    meter.grant_all([limit])
    workers, calls, began = [HostLimits(meter, [limit]) for _ in range(3)], Calls(), clock.now
    largest = limit.most // 3 if limit.unit == "tokens" else 1
    while clock.now < began + 5 * limit.seconds:
        tokens = chance.randint(1, largest)
        if wait := chance.choice(workers).take(tokens):
            clock.now += wait + chance.uniform(0, 0.001)
        else:
            calls.add(clock.now, tokens if limit.unit == "tokens" else 1)
    assert calls.most(limit.seconds) <= limit.most
    if limit.unit == "calls" and limit.most > 50:
        assert calls.sums[-1] >= 0.9 * 5 * limit.most


class SlowFolder(ObjectFolder):
    """A folder whose requests take time, in which other hosts work."""

    def __init__(self, url: str, meanwhile: Callable[[], None]) -> None:
        super().__init__(url)
        self._meanwhile = meanwhile

    def replace(self, name: str, data: bytes) -> None:
        self._meanwhile()
        super().replace(name, data)
        self._meanwhile()

    def read(self, names: Sequence[str]) -> list[bytes | None]:
        found = super().read(names)
        self._meanwhile()
        return found


class Host:
    """A host of a job: its meter, and its launcher, which may be stopped or dead."""

    def __init__(
        self,
        folder: Path,
        name: str,
        limits: Sequence[Limit],
        clock: Clock,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        self.limits = limits
        self.meter = Meter.make(str(folder / name / "limits"), clock)
        self.name = name
        self.objects = SlowFolder(str(folder / "ledger"), meanwhile)
        self.shares: LimitShares | None = None
        self.is_stopped = self.is_busy = False
        self.start()

    def run(self, work: Callable[[LimitShares], None]) -> None:
        """Let the launcher work, unless it is stopped or within a request."""
        if self.shares is not None and not self.is_stopped and not self.is_busy:
            self.is_busy = True
            work(self.shares)
            self.is_busy = False

    def turn(self) -> None:
        self.run(LimitShares.turn)

    def close(self) -> None:
        self.run(LimitShares.close)
        if not self.is_stopped and not self.is_busy:
            self.shares = None

    def start(self) -> None:
        if self.shares is None:
            self.is_busy = True
            self.shares = LimitShares(self.meter, self.limits, self.objects, self.name)
            self.is_busy = False

    def take(self) -> int:
        """Make a call if it may start now, and return the number of calls."""
        try:
            return 0 if self.shares is None else int(not HostLimits(self.meter, self.limits).take(None))
        except BudgetSpentError:
            return 0


@given(st.integers(0, 2**32), st.sampled_from([3, 20, 40]))
@settings(max_examples=8)
def test_hosts_together_exceed_no_limit_while_launchers_come_stop_and_die(
    tmp_path_factory: pytest.TempPathFactory, seed: int, most: int
) -> None:
    folder, clock, calls, chance = tmp_path_factory.mktemp("hosts"), Clock(), Calls(), random.Random(seed)
    limits, hosts = parse_limits([f"{most}/s"], [1500]), list[Host]()
    within = [0]

    def step() -> None:
        clock.now += 0.3 / most
        for host in hosts:
            if host.take():
                calls.add(clock.now, 1)

    def meanwhile() -> None:
        within[0] += 1
        for _ in range(chance.choice([0, 1, 20])):
            step()
            if within[0] < 3 and hosts:
                chance.choice([Host.turn, Host.turn, Host.start, Host.close])(chance.choice(hosts))
        within[0] -= 1

    def come() -> None:
        hosts.append(Host(folder, f"{chance.randint(0, 9)}{len(hosts)}", limits, clock, meanwhile))

    come()
    while clock.now < 1080:
        step()
        for host in hosts:
            host.turn()
        host = chance.choice(hosts)
        match chance.randint(0, 100):
            case 0 if len(hosts) < 4:
                come()
            case 1:
                host.is_stopped = not host.is_stopped
            case 2:
                host.close()
            case 3:
                host.start()
    assert calls.most(1) <= most
    assert len(calls.times) <= 1500


def test_hosts_share_a_rate_evenly_and_take_over_that_of_a_dead_one(tmp_path: Path) -> None:
    clock, (limit,) = Clock(), parse_limits(["100/s"], [])
    first, second = (Host(tmp_path, name, [limit], clock) for name in "ab")

    def calls_in(seconds: float, *hosts: Host) -> list[int]:
        counts, end = [0] * len(hosts), clock.now + seconds
        while clock.now < end:
            clock.now += 0.001
            for place, host in enumerate(hosts):
                host.turn()
                counts[place] += host.take()
        return counts

    calls_in(20, first, second)
    assert calls_in(20, first, second) == [pytest.approx(930, abs=50)] * 2
    second.is_stopped = True
    calls_in(60, first)
    assert calls_in(20, first) == [pytest.approx(1860, abs=100)]


def test_a_budget_is_used_up_by_hosts_and_what_one_left_is_used_by_another(tmp_path: Path) -> None:
    clock, (limit,) = Clock(), parse_limits([], [1000])

    def spend(host: Host, most: int) -> int:
        spent = 0
        for _ in range(10_000):
            clock.now += 0.05
            host.turn()
            try:
                spent += spent < most and not HostLimits(host.meter, [limit]).take(None)
            except BudgetSpentError:
                break
        return spent

    first = Host(tmp_path, "a", [limit], clock)
    assert spend(first, 300) == 300
    first.close()
    assert spend(Host(tmp_path, "b", [limit], clock), 2000) == 700
    first.start()
    assert spend(first, 1) == 0
    larger = Host(tmp_path, "a", parse_limits([], [1200]), clock)
    assert spend(larger, 2000) == 0, "the launcher of the first is still there"


def test_a_meter_that_was_deleted_begins_again_in_the_same_process(tmp_path: Path) -> None:
    limits, path = parse_limits([], [1]), tmp_path / "limits"
    for _ in range(2):
        meter = Meter.make(str(path))
        meter.grant_all(limits)
        assert HostLimits(Meter(str(path)), limits).take(None) == 0
        assert path.read_bytes() != bytes(path.stat().st_size), "other processes see it"
        path.unlink()


def test_a_refused_call_costs_nothing_and_a_meter_is_added_to_another(tmp_path: Path) -> None:
    limits = parse_limits(["100tokens/min"], ["3", "300tokens"])
    meters = [Meter.make(str(tmp_path / name)) for name in "ab"]
    for meter in meters:
        meter.grant_all(limits)
    host, other = (HostLimits(meter, limits) for meter in meters)
    assert host.take(60) == 0
    host.give_back(60)
    assert 0 < host.take(60) <= 61, "the rate counts it"
    assert other.take(30) == 0
    meters[0].add(meters[1])
    meters[0].give_back({"calls": 0, "tokens": 30})
    with meters[0].locked() as state:
        assert [int(state["limits"][limit.place]["used"]) for limit in limits[:2]] == [1, 0]
    with pytest.raises(FunctionError, match="101 tokens can never start within --rate 100tokens/min"):
        host.take(101)
    with pytest.raises(ServiceError, match="tokens=1200"):
        host.take(None)
    for tokens in (-1, 1.5, "5"):
        with pytest.raises(FunctionError, match="expected a whole number"):
            host.take(tokens)  # type: ignore[arg-type]


@each(
    "rates, budgets, message",
    [
        (["5"], [], "--rate 5: expected N/s"),
        (["5/day"], [], "--rate 5/day"),
        (["0/s"], [], "--rate 0/s: expected a number from 1"),
        (["5/s", "6/s"], [], "--rate 5/s: another limit"),
        ([], ["-1"], "--budget -1: expected a number of calls"),
        ([], ["1", "2calls"], "another limit"),
    ],
)
def test_limits_that_mean_nothing_are_refused(rates: list[str], budgets: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_limits(rates, budgets)


def test_options_are_read_as_they_are_written() -> None:
    found = parse_limits(["5/s", "7 tokens/min", "9/h"], [10, "20tokens"])
    assert [limit.option for limit in found] == [
        "--budget 10",
        "--budget 20tokens",
        "--rate 5/s",
        "--rate 7tokens/min",
        "--rate 9/h",
    ]
