"""Shares of the hosts of a job in the limits of its calls.

One host uses all of a limit. The hosts of a remote ledger divide it. The launcher of each host publishes one object,
``work/limits/HOST.json``, with the share of the host in each limit. A larger share is valid only after the launcher has
published it, and has then read that the shares of all hosts do not exceed the limit. A smaller share is valid before it
is published. So the sum never exceeds the limit, also if the clocks of the hosts differ.

The share of a rate expires, first for its host, then for the others, unless the launcher publishes it again. What other
hosts have used in the past window counts as used by the host that takes over their share. The share of a budget does
not expire: it covers all spending of the host so far, and some of its next calls.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ledgerbeam._base.process import library_logger
from ledgerbeam.errors import LedgerbeamError, LedgerDamagedError, StorageError
from ledgerbeam.ledger.answers import meter_path
from ledgerbeam.ledger.model.store import LedgerStore
from ledgerbeam.ledger.model.values import decode, encode, flag, integer, mapping, text
from ledgerbeam.ledger.worker.limits import Limit, Meter, set_share
from ledgerbeam.ledger.worker.sharing import as_remote

if TYPE_CHECKING:
    from ledgerbeam.ledger.remote.segment import Objects

_FOLDER = "work/limits"
_SECONDS = 5.0  # between two publications
_SOON_SECONDS = 1.0  # while the share of this host is to grow
_LEASE_SECONDS = 20.0  # for which a host uses its published share of a rate
_HOLD_SECONDS = 30.0  # after which an object that has not changed has no share in rates
_LEAST_BLOCK = 32  # by which the share in a budget grows at least, as long as enough is left
_BLOCKS = 100  # parts of a budget; a host that dies for good takes at most about one with it
_AHEAD = 4  # times of the use between two publications by which the share in a budget grows

_log = library_logger(__name__)


@dataclass
class _HostShares:
    """The object of a host, and the time when it was first read."""

    data: bytes | None
    since: float
    is_open: bool  # whether a launcher of the host uses its shares
    shares: Mapping[str, int]  # by `Limit.key`
    largest: Mapping[str, int]  # largest call of each limit that did not fit into the share


def limit_shares(store: LedgerStore, limits: Sequence[Limit]) -> LimitShares:
    """Return the shares of this host in the limits of the job of a ledger."""
    meter, remote = Meter.make(meter_path(store.url)), as_remote(store)
    if remote is None or not limits:  # nothing to divide
        return LimitShares(meter, limits)
    return LimitShares(meter, limits, remote.parts()[0], store.environment_id())


class LimitShares:
    """The limits of one run. The workers of this host may use its shares until `close`.

    Args:
        meter: The meter of this host.
        objects: The remote ledger; None for a local one.
        host: ID of the host. If two hosts claim the same share, the host with the smaller ID gets it.
    """

    def __init__(self, meter: Meter, limits: Sequence[Limit], objects: Objects | None = None, host: str = "") -> None:
        self._limits = limits
        self._meter = meter
        self._objects = objects
        self._name = f"{_FOLDER}/{host}.json"
        self._seen: dict[str, _HostShares] = {}
        self._number = 0
        self._next = 0.0
        self._used: dict[int, int] = {}  # of each budget, at the last publication
        self._leader: int | None = None  # descriptor of a lock, which one launcher of this host has
        with self._meter.locked() as state:
            state["asked"] = 0
        if objects is None:
            self._meter.grant_all(limits)
        self.turn()

    @property
    def was_asked(self) -> bool:
        """Whether a worker of the run has asked for answers."""
        with self._meter.locked() as state:
            return bool(state["asked"])

    def turn(self) -> None:
        """Exchange shares with other hosts, if due."""
        now = self._meter.clock()
        if now < self._next:
            return
        self._next = now + _SECONDS
        self._meter.sync()
        if self._objects is None or not self._leads(self._objects):
            return
        try:
            self._exchange(self._objects, now)
        except StorageError as error:  # the shares of this host expire
            _log.debug("the limits of calls cannot be shared: %s", error)

    def close(self) -> None:
        """Leave the shares of this host to others."""
        self._meter.sync()
        self._next = 0.0
        if self._objects is None or self._leader is None:
            return
        with self._meter.locked() as state:
            state["until"] = 0.0
            for limit in self._limits:
                row = state["limits"][limit.place]
                row["share"] = 0 if limit.seconds else min(int(row["share"]), int(row["used"]))
            shares = self._column(state, "share")
        with contextlib.suppress(LedgerbeamError):
            self._publish(self._objects, shares, {}, is_open=False)
        os.close(self._leader)
        self._leader = None

    def _leads(self, objects: Objects) -> bool:
        if self._leader is None:
            descriptor = os.open(f"{self._meter.path}.launcher", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(descriptor)
                return False
            self._leader = descriptor
            self._recover(objects)
        return True

    def _recover(self, objects: Objects) -> None:
        """Count calls of an earlier launcher of this host that the meter has lost."""
        (data,) = objects.read([self._name])
        shares = self._decoded(self._name, data, 0.0).shares
        with self._meter.locked() as state:
            state["until"] = 0.0  # until the first exchange: an earlier run may have had no limits
            for limit in self._limits:
                row = state["limits"][limit.place]
                if limit.seconds:
                    row["share"] = 0
                    continue
                if (lost := shares.get(limit.key, 0) - int(row["share"])) > 0:
                    row["used"] += lost
                row["share"] = max(int(row["share"]) + max(0, lost), int(row["used"]))

    def _exchange(self, objects: Objects, now: float) -> None:
        others = self._others(objects)
        with self._meter.locked() as state:
            claims, largest = self._column(state, "share"), self._column(state, "largest")
            for limit in self._limits:
                row = state["limits"][limit.place]
                taken = _taken(limit, others)
                claim = min(self._wanted(limit, row, others, taken), max(0, limit.most - taken))
                if limit.seconds and claim < row["share"]:
                    row["share"] = claim
                claims[limit.key] = max(claim, int(row["share"]))
                row["largest"] = 0
        self._publish(objects, claims, largest)
        with self._meter.locked() as state:
            state["until"] = now + _LEASE_SECONDS
            grows = any(claims[limit.key] > state["limits"][limit.place]["share"] for limit in self._limits)
        if grows:
            self._next = now + _SOON_SECONDS
            others = self._others(objects)
            if self._grow(claims, others):
                self._publish(objects, claims, largest)
        with self._meter.locked() as state:
            for limit in self._limits:
                row = state["limits"][limit.place]
                row["is_final"] = _taken(limit, others) + int(row["share"]) >= limit.most

    def _grow(self, claims: dict[str, int], others: Mapping[str, _HostShares]) -> bool:
        """Use the larger shares that this host has published, if those of all hosts do not exceed the limits.

        Return whether shares in `claims` were reduced in favour of other hosts.
        """
        retreats = False
        with self._meter.locked() as state:
            for limit in self._limits:
                row = state["limits"][limit.place]
                rivals = (name for name, one in others.items() if one.shares.get(limit.key, 0))
                if _taken(limit, others) + claims[limit.key] <= limit.most:
                    set_share(row, limit, claims[limit.key], self._meter.clock() if others else None)
                elif min(rivals, default=self._name) < self._name and claims[limit.key] > row["share"]:
                    claims[limit.key], retreats = int(row["share"]), True
        return retreats

    def _wanted(self, limit: Limit, row: Any, others: Mapping[str, _HostShares], taken: int) -> int:
        hosts = sorted([*(name for name, one in others.items() if one.is_open), self._name])
        if not limit.seconds:
            used, share = int(row["used"]), int(row["share"])
            recent = used - self._used.get(limit.place, used)
            self._used[limit.place] = used
            left = max(0, limit.most - taken - share)
            block = max(limit.most // _BLOCKS, _LEAST_BLOCK, _AHEAD * recent, int(row["largest"]))
            return share if share - used >= block else share + max(1, min(block, left // len(hosts)))
        left = limit.most
        for place, name in enumerate(hosts):
            needs = row["largest"] if name == self._name else others[name].largest.get(limit.key, 0)
            fair = limit.most // len(hosts) + (place < limit.most % len(hosts))
            share = min(left, max(fair, int(needs)))
            if name == self._name:
                return share
            left -= share
        return 0

    def _column(self, state: Any, field: str) -> dict[str, int]:
        return {limit.key: int(state["limits"][limit.place][field]) for limit in self._limits}

    def _publish(
        self, objects: Objects, shares: Mapping[str, int], largest: Mapping[str, int], *, is_open: bool = True
    ) -> None:
        self._number += 1
        fields = {"number": self._number, "open": is_open, "shares": dict(shares), "largest": dict(largest)}
        objects.replace(self._name, encode(fields))

    def _others(self, objects: Objects) -> dict[str, _HostShares]:
        """Return the shares of other hosts, without expired shares of rates."""
        now = self._meter.clock()
        names = [name for name in objects.names(_FOLDER) if name != self._name]
        for name, data in zip(names, objects.read(names), strict=True):
            if name not in self._seen or self._seen[name].data != data:
                self._seen[name] = self._decoded(name, data, now)
        found = {}
        budgets = {limit.key for limit in self._limits if not limit.seconds}
        for name in names:
            seen = self._seen[name]
            if now - seen.since >= _HOLD_SECONDS:
                shares = {key: share for key, share in seen.shares.items() if key in budgets}
                seen = replace(seen, is_open=False, shares=shares)
            found[name] = seen
        return found

    @staticmethod
    def _decoded(name: str, data: bytes | None, now: float) -> _HostShares:
        try:
            fields = {} if data is None else mapping(decode(data))
            shares, largest = (
                {text(key): integer(value) for key, value in mapping(fields.get(part, {})).items()}
                for part in ("shares", "largest")
            )
            return _HostShares(data, now, flag(fields.get("open", False)), shares, largest)
        except ValueError as error:
            raise LedgerDamagedError(
                f"{name} of the ledger: expected the limits of a host, found {error}; delete it and run again"
            ) from error


def _taken(limit: Limit, others: Mapping[str, _HostShares]) -> int:
    """Return the sum of the shares of other hosts in a limit."""
    return sum(one.shares.get(limit.key, 0) for one in others.values())
