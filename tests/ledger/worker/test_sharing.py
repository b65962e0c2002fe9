"""What a launcher claims and leaves to others, on a clock of the test."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

import pytest

from ledgerbeam.errors import StorageError
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.model.claims import Claims, Span, decode_claims, encode_claims
from ledgerbeam.ledger.model.job import Job
from ledgerbeam.ledger.model.task import Source
from ledgerbeam.ledger.worker import task_board
from ledgerbeam.ledger.worker.sharing import HOLD_SECONDS, Sharing
from ledgerbeam.ledger.worker.task_board import Board, BoardTask
from tests.ledger.builders import leaf_of, plain

SOURCE = plain("a")
COUNT = 40


class Place:
    """A place in memory, with its own count of requests."""

    seconds = 10.0

    def __init__(self) -> None:
        self.said: list[Claims] = []
        self.others: dict[str, bytes] = {}
        self.is_away = False
        self.reads = 0
        self.removed = False
        self.dead = False

    def put(self, data: bytes) -> None:
        """Keep it."""
        if self.is_away:
            raise StorageError("away")
        self.said.append(decode_claims(data))

    def names(self) -> Sequence[str]:
        """Return where others have said something."""
        return list(self.others)

    def read(self, names: Sequence[str]) -> list[bytes | None]:
        """Read."""
        self.reads += 1
        if self.is_away:
            raise StorageError("away")
        return [self.others.get(name) for name in names]

    def has_died(self, claims: Claims) -> bool:
        """Return what the test says."""
        return self.dead

    def remove(self) -> None:
        """Note it."""
        self.removed = True


class Party:
    """A launcher with a board of tasks of one source.

    Attributes:
        now: The time.
    """

    def __init__(self, folder: Path) -> None:
        self.now = 1000.0
        self.store = LmdbStore(str(folder / "ledger"))
        self.store.open(create=True)
        self.store.open_job(Job("map", {}))
        self.store.register([SOURCE])
        self.board = Board(str(folder / "board"))
        self.place = Place()
        self.sharing = Sharing(self.store, self.place, "000001", workers=2, clock=self.monotonic)
        self.number = 0
        tasks = [BoardTask(b"%04d" % n, Span(SOURCE.id, n, n + 1), (((n, COUNT),),)) for n in range(COUNT)]
        self.board.post([(task, b"") for task in tasks])

    def monotonic(self) -> float:
        """Return the time."""
        return self.now

    def other(
        self, *spans: tuple[int, int], seconds: float = 30.0, name: str = "other", source: Source = SOURCE
    ) -> None:
        """Another launcher says something."""
        self.number += 1
        claimed = [Span(source.id, *span) for span in spans]
        self.place.others[name] = encode_claims(Claims(name, "elsewhere", self.number, seconds, claimed))

    def pass_time(self, seconds: float, *, step: float = 0.5) -> None:
        """Let the launcher turn, as it does, for a while."""
        until = self.now + seconds
        while self.now < until:
            self.now += step
            self.sharing.turn(self.board)

    def draw(self) -> int | None:
        """Draw; return which task."""
        one = self.board.draw()
        return None if one is None else int(one.key)


@pytest.fixture
def party(tmp_path: Path) -> Iterator[Party]:
    made = Party(tmp_path)
    with mock.patch.object(task_board, "time", made):
        yield made
    made.board.close()
    made.store.close()


def test_alone_all_may_be_drawn_and_little_is_said(party: Party) -> None:
    party.pass_time(60)
    assert len([1 for _ in range(COUNT) if party.draw() is not None]) == COUNT
    assert 5 <= len(party.place.said) <= 7
    assert party.place.reads == 0


def test_what_others_claim_is_drawn_last(party: Party) -> None:
    party.other((0, 30))
    party.pass_time(1)
    assert all(span.start >= 30 for span in party.place.said[-1].spans)
    found = []
    for _ in range(25):
        while (one := party.draw()) is not None:
            found.append(one)
        party.other((0, 30))
        party.pass_time(1)
    assert sorted(found) == list(range(30, 40))
    assert party.board.is_done()


def test_what_is_drawn_was_said_before(party: Party) -> None:
    party.other((0, 1))
    for _ in range(30):
        party.pass_time(1)
        party.other((0, 1))
        while (one := party.draw()) is not None:
            assert party.place.said[-1].holds(Span(SOURCE.id, one, one + 1))


def test_claims_expire_by_the_clock_of_the_reader(party: Party) -> None:
    party.other((0, COUNT))
    party.pass_time(HOLD_SECONDS - 2)
    assert party.draw() is None
    assert party.board.is_done()
    party.pass_time(15)
    assert not party.board.is_done()
    assert party.draw() is not None


def test_claims_that_are_said_again_do_not_expire(party: Party) -> None:
    for _ in range(20):
        party.other((0, COUNT))
        party.pass_time(10)
        assert party.draw() is None


@pytest.mark.parametrize("data", [b"", b"{", b'{"run": 5}', b"\xff" * 2_000_000])
def test_damaged_claims_are_passed_over(party: Party, data: bytes) -> None:
    party.place.others["damaged"] = data
    party.pass_time(1)
    assert party.draw() == 0


def test_claims_of_the_dead_are_passed_over_where_it_is_seen(party: Party) -> None:
    spans = [Span(SOURCE.id, 0, COUNT)]
    party.place.others["other"] = encode_claims(Claims("other", party.store.environment_id(), 1, 30.0, spans))
    party.pass_time(1)
    assert party.draw() is None
    party.place.dead = True
    party.pass_time(1)
    assert party.draw() is not None


def test_who_stands_still_begins_nothing_of_what_has_expired(party: Party) -> None:
    party.other((0, 1))
    party.pass_time(1)
    assert party.draw() is not None
    party.now += HOLD_SECONDS
    assert party.draw() is None
    party.other((0, 1))
    party.pass_time(1)
    assert party.draw() is not None


def test_who_cannot_say_anything_begins_nothing_for_long(party: Party) -> None:
    party.other((0, 1))
    party.pass_time(1)
    party.place.is_away = True
    for _ in range(20):
        party.pass_time(1)
    assert party.draw() is None
    party.place.is_away = False
    party.other((0, 1))
    party.pass_time(11)
    assert party.draw() is not None


def test_what_cannot_be_said_is_not_drawn(party: Party) -> None:
    party.other((0, 1))
    party.pass_time(1)
    while party.draw() is not None:
        pass
    party.place.is_away = True
    party.pass_time(10)
    assert party.board.may_begin()  # what was said before holds still
    assert party.draw() is None


def test_others_are_heard_just_before_something_is_claimed(party: Party) -> None:
    party.pass_time(3)
    party.other((39, 40))
    party.pass_time(1)  # heard, so they are not due again before the next claim
    for n in range(12):
        assert party.draw() == n
    party.other((16, COUNT))
    party.pass_time(8)
    assert len(party.place.said) == 2
    assert not any(party.place.said[-1].holds(Span(SOURCE.id, n, n + 1)) for n in range(16, COUNT))


def test_what_is_in_work_stays_claimed_until_it_has_ended(party: Party) -> None:
    party.other((39, 40))
    party.pass_time(1)
    assert (party.draw(), party.draw()) == (0, 1)
    party.board.ended(b"0001")
    for seconds, expected in ((11, [True, True]), (31, [True, False])):
        party.other((39, 40))
        party.pass_time(seconds)
        assert [party.place.said[-1].holds(Span(SOURCE.id, n, n + 1)) for n in (0, 1)] == expected


def test_what_this_run_has_said_under_another_name_binds_it_not(party: Party) -> None:
    party.other((0, COUNT), name="000001")
    party.pass_time(1)
    assert party.draw() == 0


def test_a_share_of_what_is_left_is_claimed(party: Party) -> None:
    party.other((0, 1))
    party.pass_time(1)
    claimed = sum(span.stop - span.start for span in party.place.said[-1].spans)
    assert claimed == COUNT // 4
    party.other((0, 1), name="third")
    party.pass_time(11)
    claimed = sum(span.stop - span.start for span in party.place.said[-1].spans)
    assert claimed == 7


def test_of_two_who_claim_the_same_one_gives_way(party: Party) -> None:
    party.other((39, 40))
    party.pass_time(1)
    mine = list(party.place.said[-1].spans)
    party.other(*((span.start, span.stop) for span in mine))
    party.pass_time(11)
    after = party.place.said[-1]
    kept = {n for n in range(COUNT) if after.holds(Span(SOURCE.id, n, n + 1))}
    before = {n for span in mine for n in range(span.start, span.stop)}
    assert kept & before != before  # the others have it


def test_what_is_done_elsewhere_is_passed_over(party: Party) -> None:
    party.other((39, 40))
    party.store.commit([leaf_of(SOURCE, ((n, COUNT),)) for n in range(10)])
    party.pass_time(1)
    assert party.draw() == 10
    left, held = party.sharing.open_tasks([*party.board.ready(99)])
    assert held.free == len(left)


def test_at_most_one_write_and_one_look_each_ten_seconds(party: Party) -> None:
    for _ in range(100):
        party.other((0, 1))
        party.pass_time(1)
    assert len(party.place.said) <= 11
    assert party.place.reads <= 12


def test_the_end_takes_back_what_was_said(party: Party) -> None:
    party.sharing.close()
    assert not party.place.removed
    party.pass_time(1)
    party.sharing.rest()
    party.sharing.close()
    assert party.place.removed
