"""Many hosts that share a job, in simulated time: how often tasks are done, and how long all of it takes.

    python -m tests.fault.sharing --hosts H --tasks T [--seed S] [--seeds COUNT] [--calm] [--exclusive]

The ledger, its claims and the boards of the hosts are the library's; only time, tasks and the store's objects are
simulated. Hosts start at different times; some die, stand still or lose their link. Nothing but the seed decides.
"""

from __future__ import annotations

import argparse
import heapq
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from ledgerbeam.ledger.model.claims import Span, order_key
from ledgerbeam.ledger.model.job import Job
from ledgerbeam.ledger.model.rows import Leaf, Output
from ledgerbeam.ledger.model.task import Source
from ledgerbeam.ledger.remote.sink import RemoteSink
from ledgerbeam.ledger.remote.store import RemoteStore
from ledgerbeam.ledger.worker import task_board
from ledgerbeam.ledger.worker.sharing import ObjectClaims, Sharing
from ledgerbeam.ledger.worker.task_board import Board, BoardTask
from tests.fault.hosts import SPANS, WORKERS, ideal

JOB = Job("map", {"to": "jsonl"})
TICK_SECONDS = 0.5
REFRESH_SECONDS = 5.0
START_SECONDS = 6.0
WAVE_SECONDS = 4.0
WAIT_SECONDS = 0.1
FLUSH_SECONDS = 1.0


class MemoryObjects:
    """Objects in memory, which counts what it is asked about claims."""

    url = "memory:/ledger"
    exclusive = True

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.asked = Counter[tuple[str, int]]()
        self.host = 0

    def names(self, folder: str) -> list[str]:
        return sorted(name for name in self.content if name.startswith(f"{folder}/" if folder else ""))

    def read(self, names: Sequence[str]) -> list[bytes | None]:
        self.asked["read", self.host] += sum(name.startswith("claims/") for name in names)
        return [self.content.get(name) for name in names]

    def create(self, name: str, data: bytes) -> bool:
        return self.content.setdefault(name, data) == data

    def replace(self, name: str, data: bytes) -> None:
        self.asked["write", self.host] += 1
        self.content[name] = data

    def exists(self, name: str) -> bool:
        return name in self.content

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            self.content.pop(name, None)


@dataclass(frozen=True)
class Away:
    """When a host does nothing."""

    since: float
    seconds: float | None
    link: bool = False


@dataclass
class Figures:
    """What came of it; the requests are about claims, for each host and ten seconds."""

    tasks: int
    executed: int = 0
    recorded: float = 0.0  # seconds until the last task was recorded: hosts that find nothing to do end later
    makespan: float = 0.0  # seconds until all hosts that live had ended
    ideal: float = 0.0
    asked: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        ratio = self.executed / self.tasks
        asked = ", ".join(f"{kind} {number:.2f}" for kind, number in self.asked.items())
        recorded, ended = (f"{end:.0f} s = {end / self.ideal:.2f}" for end in (self.recorded, self.makespan))
        ideal = f"ideal {self.ideal:.0f} s, recorded in {recorded}, all ended in {ended}"
        return f"executed {self.executed} of {self.tasks} = {ratio:.3f}, {ideal}; {asked}"


class World:
    """The hosts, their tasks and the time."""

    def __init__(
        self,
        seed: int,
        folder: Path,
        *,
        starts: Sequence[float],
        away: dict[int, Away],
        tasks: int,
        mean: float,
        exclusive: bool,
    ) -> None:
        self.exclusive = exclusive
        self.choice = random.Random(f"{seed} sharing")
        self.folder = folder
        self.now = 0.0
        self.objects = MemoryObjects()
        self.away = away
        self.starts = starts
        self.figures = Figures(tasks)
        self.seconds: dict[tuple[bytes, int], float] = {}
        self.sources = [Source(f"/in/{first:05d}.jsonl", 10, "1") for first in range(0, tasks, SPANS)]
        self.counts = [min(SPANS, tasks - first) for first in range(0, tasks, SPANS)]
        parts = [self.choice.choice([0.1, 0.3, 0.6, 1.0, 1.0, 3.0]) for _ in range(tasks)]
        scale = mean * tasks / sum(parts)
        each = iter(parts)
        for source, count in zip(self.sources, self.counts, strict=True):
            for ordinal in range(count):
                self.seconds[source.id, ordinal] = next(each) * scale
        self.recorded: set[tuple[bytes, int]] = set()
        self._events: list[tuple[float, int, int, Callable[[], None]]] = []
        self._sequence = 0
        self.hosts = [Host(self, number) for number in range(len(starts))]

    def monotonic(self) -> float:
        return self.now

    def at(self, when: float, host: int, event: Callable[[], None], *, link: bool = False) -> None:
        """Let something happen on a host; later if it does nothing then."""
        away = self.away.get(host)
        if away is not None and away.since <= when and (link or not away.link):
            if away.seconds is None:
                return
            when = max(when, away.since + away.seconds)
        self._sequence += 1
        heapq.heappush(self._events, (when, self._sequence, host, event))

    def run(self) -> Figures:
        for host, start in zip(self.hosts, self.starts, strict=True):
            self.at(start + START_SECONDS, host.number, host.begin, link=True)
        with mock.patch.object(task_board, "time", self):
            while self._events:
                self.now, _, self.objects.host, event = heapq.heappop(self._events)
                event()
        self._judge()
        return self.figures

    def _judge(self) -> None:
        figures = self.figures
        hosts = range(len(self.hosts))
        figures.ideal = ideal(sum(self.seconds.values()), lambda now: sum(self._works(host, now) for host in hosts))
        living = [host for host in self.hosts if host.ended is not None]
        figures.makespan = max(host.ended or 0.0 for host in living)
        rounds = sum((host.ended or 0.0) - self.starts[host.number] for host in living) / 10.0
        others = max(1, len(self.hosts) - 1)
        asked = self.objects.asked
        written, read = (sum(asked[kind, host.number] for host in living) for kind in ("write", "read"))
        figures.asked = {"written": written / rounds, "read of each other": read / rounds / others}
        store = RemoteStore(self.objects, str(self.folder / "judge"))
        store.open()
        ids = [source.id for source in self.sources]
        if not all(store.completed_mask(ids)):
            raise AssertionError("not all is complete")
        store.close()
        for host in self.hosts:
            host.close()

    def _works(self, number: int, now: float) -> bool:
        away = self.away.get(number)
        gone = away is not None and away.since <= now and (away.seconds is None or now < away.since + away.seconds)
        return now >= self.starts[number] and not gone


class Host:
    """One host: a launcher and its workers, as `LocalRunner` and `DrawTasks` are."""

    def __init__(self, world: World, number: int) -> None:
        self.number = number
        self.ended: float | None = None
        self._world = world
        self._waves = 0
        self._working = 0
        self._next_refresh = 0.0
        self._board: Board | None = None

    def begin(self) -> None:
        """Open the ledger, list, and start a wave."""
        world = self._world
        self.store = RemoteStore(world.objects, str(world.folder / f"host-{self.number}"))
        self.store.open(create=True)
        self.store.open_job(JOB)
        self.run = self.store.begin_run({})
        self.store.register(world.sources)
        place = ObjectClaims(self.store, self.run, f"host-{self.number}", lambda _: True)
        self.sharing = Sharing(
            self.store, place, self.run, workers=WORKERS, exclusive=world.exclusive, clock=world.monotonic
        )
        self.sink = RemoteSink(world.objects, job=JOB.fingerprint, run=self.run)
        tasks = [
            (source, ordinal, count)
            for source, count in zip(world.sources, world.counts, strict=True)
            for ordinal in range(count)
        ]
        self._wave([self._task(*task) for task in tasks])

    def _task(self, source: Source, ordinal: int, count: int) -> BoardTask:
        lineage = ((ordinal, count),)
        span = Span(source.id, ordinal, ordinal + 1)
        return BoardTask(order_key(self.run, source.id, lineage), span, (lineage,))

    def _wave(self, tasks: Sequence[BoardTask]) -> None:
        self._waves += 1
        self._board = board = Board(str(self._world.folder / f"board-{self.number}-{self._waves}"))
        self.sharing.begin(board)
        finished = self.store.finished([one for task in tasks for one in task.tasks()])
        board.post([(task, b"") for task, is_done in zip(tasks, finished, strict=True) if not is_done])
        self._working = WORKERS
        self._tick()
        for _ in range(WORKERS):
            self._later(0.0, self._draw)

    def _later(self, seconds: float, event: Callable[[], None], *, link: bool = False) -> None:
        self._world.at(self._world.now + seconds, self.number, event, link=link)

    def _tick(self) -> None:
        board = self._board
        if board is None:
            return
        self._refresh(at_once=self.sharing.is_due(board))
        self.sharing.turn(board)
        if self._working:
            self._later(TICK_SECONDS, self._tick, link=True)
        else:
            left = board.undrawn()
            board.close()
            self._board = None
            self._wait(left)

    def _refresh(self, *, at_once: bool = False) -> None:
        if at_once or self._world.now >= self._next_refresh:
            self._next_refresh = self._world.now + REFRESH_SECONDS
            self.store.refresh()

    def _wait(self, tasks: Sequence[BoardTask]) -> None:
        self._refresh()
        left, held = self.sharing.open_tasks(tasks)
        if not left:
            if not all(self.store.completed_mask([source.id for source in self._world.sources])):
                self._later(TICK_SECONDS, lambda: self._wait(left), link=True)
                return
            self.sharing.close()
            self.ended = self._world.now
        elif held.free:
            self._later(WAVE_SECONDS, lambda: self._wave(left), link=True)
        else:
            self.sharing.publish_idle()
            self._later(TICK_SECONDS, lambda: self._wait(left), link=True)

    def _draw(self) -> None:
        board = self._board
        if board is None:
            return
        drawn = next(iter(board.draw()), None)
        if drawn is None:
            if board.is_done():
                self._working -= 1
            else:
                self._later(WAIT_SECONDS, self._draw)
            return
        (task,) = [task for task in board.in_work(0.0) if task.key == drawn.key]
        if all(self.store.finished(task.tasks())):
            board.draw(0, ended=[drawn.key])
            self._later(0.0, self._draw)
            return
        self._world.figures.executed += 1
        seconds = self._world.seconds[task.span.source, task.span.start]
        self._later(seconds, lambda: self._later(0.0, lambda: self._end(task), link=True))

    def _end(self, task: BoardTask) -> None:
        if self._board is not None:
            self._board.draw(0, ended=[task.key])
        self._later(FLUSH_SECONDS * self._world.choice.random(), lambda: self._commit(task), link=True)
        self._later(0.0, self._draw)

    def _commit(self, task: BoardTask) -> None:
        (lineage,) = task.lineages
        name = f"{task.span.source.hex()}-{task.span.start}"
        if (task.span.source, task.span.start) not in self._world.recorded:
            self._world.recorded.add((task.span.source, task.span.start))
            self._world.figures.recorded = self._world.now
        self.sink.commit([Leaf(task.span.source, lineage, "published", (Output(name, 1, name, 1),), 1, 1)])

    def close(self) -> None:
        if self._board is not None:
            self._board.close()
        if hasattr(self, "store"):
            self.store.close()


def share_job(
    seed: int,
    hosts: int,
    tasks: int,
    folder: Path,
    *,
    calm: bool = False,
    mean: float = 4.0,
    spread: float = 40.0,
    exclusive: bool = False,
) -> Figures:
    """Share a job of which the hosts start within `spread` seconds."""
    choice = random.Random(f"{seed} plan")
    starts = [0.0, *(round(choice.uniform(0, spread), 1) for _ in range(hosts - 1))]
    away: dict[int, Away] = {}
    if not calm:
        length = tasks * mean / hosts / WORKERS
        kinds: list[tuple[float | None, bool]] = [(None, False), (60.0, False), (30.0, True)]
        for host, (seconds, link) in zip(choice.sample(range(hosts), min(3, hosts)), kinds, strict=False):
            away[host] = Away(40 + choice.uniform(0.1, 0.6) * length, seconds, link)
    return World(seed, folder, starts=starts, away=away, tasks=tasks, mean=mean, exclusive=exclusive).run()


def main() -> int:
    """Run seeds. Returns 1 if one has done more than it should."""
    parser = argparse.ArgumentParser(prog="python -m tests.fault.sharing", description=__doc__)
    parser.add_argument("--hosts", type=int, default=20)
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--mean", type=float, default=4.0, help="seconds of a task")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--calm", action="store_true", help="nothing befalls the hosts")
    parser.add_argument("--exclusive", action="store_true", help="no two hosts may begin a task")
    args = parser.parse_args()
    failed = 0
    for seed in range(args.seed, args.seed + args.seeds):
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            found = share_job(
                seed,
                args.hosts,
                args.tasks,
                Path(folder),
                calm=args.calm,
                mean=args.mean,
                exclusive=args.exclusive,
            )
        too_much = found.executed > 1.05 * found.tasks or found.makespan > 1.2 * found.ideal
        failed += too_much
        print(f"seed {seed}: {found}{'  TOO MUCH' if too_much else ''}", flush=True)
    print(f"{args.seeds} seeds, {failed} with too much")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
