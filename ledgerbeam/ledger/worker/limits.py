"""Limits of the calls that a job pays for: their rate, and their budget.

A host counts the calls of all its workers in one file, the *meter*. A worker locks the meter, and takes from it the
right to start a call. The launcher writes into the meter how much of each limit this host may use: all of it for a
local ledger, a share for a remote one (`limit_shares`).

A rate limits the sum in any window of its length. The meter counts the calls of the past window in narrow buckets. A
call stays in the window a little longer, because it reaches the service some time after its start. Calls are spread
evenly over the window.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, Self

from ledgerbeam._base.disk import make_folders
from ledgerbeam._base.lazy import np
from ledgerbeam.errors import BudgetSpentError, FunctionError, ServiceError, StorageError, UsageError

UNITS = ("calls", "tokens")
WINDOWS = {"s": 1, "min": 60, "h": 3600}  # lengths of the windows of rates, in seconds
FOREVER = float("inf")

_RATE = re.compile(r"(\d+) ?(calls|tokens)?/(s|min|h)")
_BUDGET = re.compile(r"(\d+) ?(calls|tokens)?")
_BUCKETS = 256  # of a window and its margin
_PER_WINDOW = 128  # buckets of a window
_MARGIN = 0.07  # part of a window for which a call stays longer in it
_MOST_MARGIN = 0.5  # largest such time, in seconds
_CATCH_UP = 1 / 32  # part of a window by which calls that start late may follow faster
_RETRY_SECONDS = 0.2  # while the share of this host does not suffice
_BOOT = "/proc/sys/kernel/random/boot_id"


class Limit(NamedTuple):
    """A limit of calls, or of their tokens.

    Attributes:
        most: Largest sum.
        unit: ``calls`` or ``tokens``.
        seconds: Length of the window of a rate. 0 for a budget: it limits the sum over all runs of the job.
    """

    most: int
    unit: str
    seconds: int = 0

    @property
    def place(self) -> int:
        """Number of the limit in a meter."""
        return [0, *WINDOWS.values()].index(self.seconds) * len(UNITS) + UNITS.index(self.unit)

    @property
    def key(self) -> str:
        """Name of the limit in objects: its unit, and the length of its window in seconds, which is 0 for a budget."""
        return f"{self.unit}/{self.seconds}"

    @property
    def option(self) -> str:
        """The limit as an option of a command."""
        amount = f"{self.most}{'' if self.unit == 'calls' else self.unit}"
        if not self.seconds:
            return f"--budget {amount}"
        return f"--rate {amount}/{next(name for name, seconds in WINDOWS.items() if seconds == self.seconds)}"


_PLACES = len(UNITS) * (1 + len(WINDOWS))


def parse_limits(rates: Iterable[Any], budgets: Iterable[Any]) -> tuple[Limit, ...]:
    """Return the limits of options such as ``500/min``, ``200000tokens/min``; ``1000``, ``5000000tokens``."""
    found: list[Limit] = []
    for rate in rates:
        if (match := _RATE.fullmatch(str(rate))) is None:
            raise UsageError(f"--rate {rate}: expected N/s, N/min or N/h; or with tokens, as in 200000tokens/min")
        found.append(Limit(int(match[1]), match[2] or "calls", WINDOWS[match[3]]))
    for budget in budgets:
        if (match := _BUDGET.fullmatch(str(budget))) is None:
            raise UsageError(f"--budget {budget}: expected a number of calls; or of tokens, as in 5000000tokens")
        found.append(Limit(int(match[1]), match[2] or "calls"))
    for limit in found:
        if not 0 < limit.most < 2**63:
            raise UsageError(f"{limit.option}: expected a number from 1 to 2**63 - 1")
        if sum(other.place == limit.place for other in found) > 1:
            raise UsageError(f"{limit.option}: another limit has the same unit and the same time; leave one out")
    return tuple(sorted(found, key=lambda limit: limit.place))


@cache
def _layout() -> Any:
    """Return the NumPy type of a meter."""
    limit = [
        ("share", "<u8"),  # what this host may use of the limit: of a rate in a window, of a budget over all runs
        ("largest", "<u8"),  # largest call that did not fit into the share
        ("used", "<u8"),  # of a budget, over all runs on this host
        ("is_final", "<u8"),  # of a budget: whether this host cannot get a larger share
        ("next", "<f8"),  # of a rate: earliest start of the next call
        ("numbers", "<u8", _BUCKETS),
        ("sums", "<u8", _BUCKETS),
    ]
    return np.dtype([("boot", "S36"), ("asked", "<u8"), ("until", "<f8"), ("limits", limit, _PLACES)])


@dataclass(frozen=True)
class Meter:
    """The meter of a job on this host.

    Times are those of the monotonic clock, which all processes of a host share. After a restart of the host, times and
    the counts of windows are cleared.
    """

    path: str
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def make(cls, path: str, clock: Callable[[], float] = time.monotonic) -> Self:
        """Create a meter unless it exists, and return it."""
        meter = cls(path, clock)
        try:
            make_folders(os.path.dirname(path))
            with open(_BOOT, "rb") as file:
                boot = file.read(36)
            with open(path, "ab") as file:
                file.truncate(_layout().itemsize)
        except OSError as error:
            raise StorageError(f"{path}: the meter of calls cannot be created ({error}); run again") from error
        with meter.locked() as state:
            if state["boot"] != boot:
                state["boot"], state["until"] = boot, 0.0
                for field in ("next", "numbers", "sums"):
                    state["limits"][field] = 0
        return meter

    @contextmanager
    def locked(self) -> Iterator[Any]:
        """Lock the meter, and yield its content, which may be changed."""
        with contextlib.ExitStack() as stack:
            try:
                file = stack.enter_context(open(self.path, "rb+", buffering=0))
                fcntl.flock(file, fcntl.LOCK_EX)
                stack.callback(fcntl.flock, file, fcntl.LOCK_UN)  # the map has a descriptor, too, with the same lock
                state = np.frombuffer(mmap.mmap(file.fileno(), 0), _layout()).reshape(())
            except (OSError, ValueError) as error:
                raise self._unusable(error) from error
            yield state

    def sync(self) -> None:
        """Write the counts to the disk, without the lock: workers must not wait for the disk."""
        try:
            with open(self.path, "rb") as file:
                os.fsync(file)
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: Exception) -> StorageError:
        return StorageError(f"{self.path}: the meter of calls cannot be used ({error}); run again")

    def grant_all(self, limits: Sequence[Limit]) -> None:
        """Let this host use all of the limits."""
        with self.locked() as state:
            state["until"] = FOREVER
            for limit in limits:
                row = state["limits"][limit.place]
                row["share"], row["is_final"] = limit.most, 1

    def add(self, other: Meter) -> None:
        """Count what another meter of this host has counted."""
        with self.locked() as state, other.locked() as added:
            for row, more in zip(state["limits"], added["limits"], strict=True):
                row["used"] += more["used"]
                row["next"] = max(row["next"], more["next"])
                is_later = more["numbers"] > row["numbers"]
                is_same = more["numbers"] == row["numbers"]
                row["sums"][:] = np.where(is_later, more["sums"], row["sums"] + np.where(is_same, more["sums"], 0))
                row["numbers"][:] = np.maximum(row["numbers"], more["numbers"])

    def give_back(self, sizes: Mapping[str, int]) -> None:
        """Give a call that the service has refused back to the budgets."""
        with self.locked() as state:
            for unit, size in sizes.items():
                row = state["limits"][Limit(0, unit).place]
                row["used"] = max(0, int(row["used"]) - size)


@dataclass(frozen=True)
class HostLimits:
    """The limits of a job, and the meter of this host; see `answers.Limits`."""

    meter: Meter
    limits: Sequence[Limit]

    def asked(self) -> None:
        """Record that a function has called `remember`."""
        with self.meter.locked() as state:
            state["asked"] = 1

    def take(self, tokens: int | None) -> float:
        """Count a call if it may start now, with the tokens of the request and its answer.

        Returns:
            0 if the call was counted. Else the time after which to try again, in seconds.

        Raises:
            BudgetSpentError: A budget has too little left for the call.
            FunctionError: The call is larger than a limit.
            ServiceError: A limit counts tokens, and the call has none.
        """
        sizes = self._sizes(tokens)
        with self.meter.locked() as state:
            now = self.meter.clock()
            wait = _RETRY_SECONDS if now > state["until"] else 0.0
            for limit in self.limits:
                wait = max(wait, _wait(state["limits"][limit.place], limit, sizes[limit.unit], now))
            if not wait:
                for limit in self.limits:
                    if limit.seconds:
                        _count(state["limits"][limit.place], limit, sizes[limit.unit], now)
                for unit, size in sizes.items():  # a later run may have a budget
                    state["limits"][Limit(0, unit).place]["used"] += size
        return wait

    def give_back(self, tokens: int | None) -> None:
        """Give a call that the service has refused back to the budgets."""
        self.meter.give_back(self._sizes(tokens))

    def _sizes(self, tokens: int | None) -> Mapping[str, int]:
        if tokens is not None and (not isinstance(tokens, int) or tokens < 0):
            raise FunctionError(f"ledgerbeam.remember: tokens={tokens!r}; expected a whole number from 0 on, or None")
        if tokens is None and any(limit.unit == "tokens" for limit in self.limits):
            raise ServiceError(  # of every call
                "ledgerbeam.remember: the job limits tokens; give the most tokens of the request and its answer, as in "
                "remember(request, call, tokens=1200)"
            )
        return {"calls": 1, "tokens": tokens or 0}


def set_share(row: Any, limit: Limit, share: int, used_at: float | None) -> None:
    """Set the share of a host. At `used_at`, other hosts may have used its growth; None without other hosts."""
    if limit.seconds and used_at is not None and share > row["share"]:
        _add(row, limit, share - int(row["share"]), used_at)
    row["share"] = share


def _wait(row: Any, limit: Limit, size: int, now: float) -> float:
    """Return the time until a call may start, in seconds; 0 for now."""
    if size > limit.most:
        raise FunctionError(
            f"ledgerbeam.remember: a call of {size:,} {limit.unit} can never start within {limit.option}; make smaller "
            "requests, or raise the limit"
        )
    share = min(int(row["share"]), limit.most)
    if not limit.seconds:
        if int(row["used"]) + size <= share:
            return 0.0
        row["largest"] = max(int(row["largest"]), size)
        if row["is_final"]:
            raise BudgetSpentError(f"the budget is spent ({limit.option}); to go on, run again with a larger --budget")
        return _RETRY_SECONDS
    if size > share:
        row["largest"] = max(int(row["largest"]), size)
        return _RETRY_SECONDS
    if row["next"] > now:
        return float(row["next"]) - now
    # A bucket leaves the window with the last call that it may have.
    length = limit.seconds / _PER_WINDOW
    within = (row["numbers"] + 1) * length + _length(limit) > now
    return 0.0 if int(row["sums"][within].sum()) + size <= share else length


def _count(row: Any, limit: Limit, size: int, now: float) -> None:
    _add(row, limit, size, now)
    step = size * _length(limit) / min(int(row["share"]), limit.most)
    row["next"] = max(float(row["next"]), now - _CATCH_UP * limit.seconds) + step


def _add(row: Any, limit: Limit, size: int, now: float) -> None:
    number = int(now * _PER_WINDOW / limit.seconds)
    at = number % _BUCKETS
    if row["numbers"][at] != number:
        row["sums"][at], row["numbers"][at] = 0, number
    row["sums"][at] += size


def _length(limit: Limit) -> float:
    """Return the time for which a call counts, in seconds."""
    return limit.seconds + min(_MARGIN * limit.seconds, _MOST_MARGIN)
