"""Actors that run one at a time, by the choice of a seeded scheduler: threads that hand a baton on."""

from __future__ import annotations

import contextlib
import os
import random
import threading
from collections.abc import Callable, Sequence

_ANSWER_SECONDS = 60.0
_LONGEST_SLEEP = 100


class Killed(BaseException):
    """An actor's process has died: nothing of it runs after the point where it was raised."""


class Actor:
    """One simulated process. Actors of a place, a host, do not run while another one has it locked."""

    def __init__(self, name: str, place: str) -> None:
        self.name = name
        self.place = place
        self.ended = False  # it has returned, died or failed
        self.died = False  # it was killed, or failed
        self.waits_for: Sequence[Actor] = ()  # these must have ended before it goes on
        self.label = "begin"
        self.turn = threading.Semaphore(0)
        self.is_condemned = False
        self.sleeps_until = 0
        self.on_end: Callable[[Actor], None] = lambda _: None


class Scheduler:
    """Runs actors in an order that its random numbers decide."""

    def __init__(self, choice: random.Random, kill_share: float) -> None:
        self.schedule: list[str] = []
        self.current: Actor | None = None
        self.kill_share = kill_share
        self._choice = choice
        self._actors: list[Actor] = []
        self._parked = threading.Semaphore(0)
        self._locks: dict[str, Actor] = {}
        self._steps = 0
        self._sleep_share = choice.choice([0.0, 0.02, 0.1])
        self._crash: BaseException | None = None

    def start(self, name: str, place: str, body: Callable[[Actor], None], ended: Callable[[Actor], None]) -> Actor:
        """Add an actor, which begins when it is chosen first."""
        actor = Actor(name, place)

        def run() -> None:
            try:
                self._take_turn(actor)
                body(actor)
            except Killed:
                actor.died = True
            except BaseException as error:  # noqa: BLE001 - given to who steps
                actor.died = True
                self._crash = error
            finally:
                self._end(actor)

        actor.on_end = ended

        self._actors.append(actor)
        threading.Thread(target=run, daemon=True).start()
        return actor

    def point(self, label: str) -> None:
        """Let others run. Raises Killed where the actor's process dies. Does nothing between steps."""
        actor = self.current
        if actor is None:
            return
        self._unlock(actor)
        actor.label = label
        self._parked.release()
        self._take_turn(actor)

    def locked_point(self, label: str) -> None:
        """Like `point`, of an actor that holds the write lock of its place."""
        if self.current is not None:
            self._locks[self.current.place] = self.current
            actor = self.current
            actor.label = label
            self._parked.release()
            self._take_turn(actor)

    def wait_for(self, actors: Sequence[Actor]) -> None:
        """Let others run until all of some actors have ended."""
        if self.current is not None:
            self.current.waits_for = actors
            self.point("wait")

    def chance(self, share: float) -> bool:
        """True in a share of cases."""
        return self._choice.random() < share

    def alive(self) -> list[Actor]:
        """Actors that have not ended."""
        self._actors = [actor for actor in self._actors if not actor.ended]
        return self._actors

    def step(self) -> bool:
        """Let one actor go on to its next point; False if none can. Raises what it failed with."""
        ready = [actor for actor in self.alive() if self._is_ready(actor)]
        if not ready:
            return False
        self._steps += 1
        awake = [actor for actor in ready if actor.sleeps_until <= self._steps]
        actor = self._choice.choice(awake or ready)
        if self.chance(self._sleep_share):
            actor.sleeps_until = self._steps + self._choice.randint(5, _LONGEST_SLEEP)
            return True
        if self.chance(self.kill_share):
            actor.is_condemned = True
        self.run(actor)
        return True

    def run(self, actor: Actor) -> None:
        """Let an actor go on to its next point."""
        self.schedule.append(f"{actor.name}: {'killed at ' if actor.is_condemned else ''}{actor.label}")
        self.current = actor
        actor.turn.release()
        if not self._parked.acquire(timeout=_ANSWER_SECONDS):
            raise RuntimeError(f"{actor.name} is stuck behind {actor.label}")
        self.current = None
        if self._crash is not None:
            crash, self._crash = self._crash, None
            raise crash

    def kill_all(self) -> None:
        for actor in self.alive():
            actor.is_condemned = True
            self.run(actor)

    def _is_ready(self, actor: Actor) -> bool:
        return self._locks.get(actor.place, actor) is actor and all(other.ended for other in actor.waits_for)

    def _unlock(self, actor: Actor) -> None:
        if self._locks.get(actor.place) is actor:
            del self._locks[actor.place]

    def _take_turn(self, actor: Actor) -> None:
        actor.turn.acquire()
        if actor.is_condemned:
            self._die(actor)

    def _die(self, actor: Actor) -> None:
        raise Killed

    def _end(self, actor: Actor) -> None:
        try:
            actor.on_end(actor)
        finally:
            actor.ended = True
            self._unlock(actor)
            self._parked.release()


class VanishingScheduler(Scheduler):
    """Kills as SIGKILL does: nothing of an actor runs any more, no `finally` either.

    Its thread stands still for good. What it has open below `folder` is closed, so that its locks are free.
    """

    def __init__(self, choice: random.Random, kill_share: float, folder: str) -> None:
        super().__init__(choice, kill_share)
        self._folder = folder
        self._opened: dict[Actor, set[int]] = {}

    def run(self, actor: Actor) -> None:
        """Let an actor go on to its next point, and note what it opens."""
        before = self._descriptors()
        super().run(actor)
        after = self._descriptors()
        opened = self._opened[actor] = (self._opened.get(actor, set()) & after) | (after - before)
        if actor.ended:
            del self._opened[actor]
        if actor.died:
            nothing = os.open(os.devnull, os.O_RDWR)
            for descriptor in opened:  # whose number stays taken: objects of the thread still have it
                os.dup2(nothing, descriptor)
            os.close(nothing)

    def _descriptors(self) -> set[int]:
        """Open files below the folder, but those of LMDB, which all actors share."""
        found = set()
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                path = os.readlink(f"/proc/self/fd/{name}")
                if path.startswith(self._folder) and not path.endswith(".mdb"):
                    found.add(int(name))
        return found

    def _die(self, actor: Actor) -> None:
        actor.died = True
        self._end(actor)
        while True:
            actor.turn.acquire()
