"""Claims of a launcher, and tasks left to others, with a clock of the test."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerbeam.errors import LedgerbeamError, StorageError
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.model.claims import Claims, Span, decode_claims, encode_claims, merged, order_key, rank
from ledgerbeam.ledger.model.job import Job
from ledgerbeam.ledger.worker import task_board
from ledgerbeam.ledger.worker.run_folders import RunFolders
from ledgerbeam.ledger.worker.sharing import HOLD_SECONDS, FolderClaims, Sharing, WaitingTasks
from ledgerbeam.ledger.worker.task_board import Board, BoardTask, Instructions
from tests.cases import each
from tests.disk import no_larger_than
from tests.ledger.builders import leaf_of, plain
from tests.ledger.worker.test_run_folders import OURS, kill, start

SOURCE = plain("a")
COUNT = 40


class Place:
    """A place in memory, with its own count of requests."""

    seconds = 10.0

    def __init__(self) -> None:
        self.said: list[Claims] = []
        self.others: dict[str, bytes | None] = {}
        self.is_away = False
        self.reads = 0
        self.removed = False
        self.dead = False

    def put(self, data: bytes) -> None:
        if self.is_away:
            raise StorageError("away")
        self.said.append(decode_claims(data))

    def names(self) -> Sequence[str]:
        return list(self.others)

    def read(self, names: Sequence[str]) -> list[bytes | None]:
        self.reads += 1
        if self.is_away:
            raise StorageError("away")
        return [self.others.get(name) for name in names]

    def has_died(self, claims: Claims) -> bool:
        return self.dead

    def remove(self) -> None:
        if self.is_away:
            raise StorageError("away")
        self.removed = True


class Party:
    """A launcher with a board of tasks of one source."""

    def __init__(self, folder: Path, place: Place, run: str = "000001", *, exclusive: bool = False) -> None:
        self.now = 1000.0
        self.store = LmdbStore(str(folder / "ledger"))
        self.store.open(create=True)
        self.store.open_job(Job("map", {}))
        self.store.register([SOURCE])
        self.board = Board(str(folder / "board"))
        self.place = place
        self.sharing = Sharing(self.store, self.place, run, workers=2, exclusive=exclusive, clock=self.monotonic)
        self.sharing.begin(self.board)
        self.number = 0
        self.post()

    def post(self) -> None:
        tasks = [BoardTask(b"%04d" % n, Span(SOURCE.id, n, n + 1), (((n, COUNT),),)) for n in range(COUNT)]
        self.board.post([(task, b"") for task in tasks])

    def hold_all(self) -> list[BoardTask]:
        """Let all of them wait; return them."""
        tasks = self.board.ready(COUNT)
        self.board.hold(task.key for task in tasks)
        return tasks

    def monotonic(self) -> float:
        return self.now

    def other(self, *spans: tuple[int, int], seconds: float = 30.0, name: str = "other") -> None:
        self.number += 1
        claimed = [Span(SOURCE.id, *span) for span in spans]
        self.place.others[name] = encode_claims(Claims(name, "elsewhere", self.number, seconds, claimed))

    def meet(self, *spans: tuple[int, int], seconds: float = 1.0, name: str = "other") -> None:
        """Another launcher claims spans, and then some time passes."""
        self.other(*spans, name=name)
        self.pass_time(seconds)

    def pass_time(self, seconds: float) -> None:
        """Let the launcher turn, as it does, for a while."""
        until = self.now + seconds
        while self.now < until:
            self.now += 0.5
            self.sharing.turn(self.board)

    def claimed(self) -> list[int]:
        """Return which tasks the launcher has claimed last."""
        return [n for n in range(COUNT) if self.place.said[-1].holds(Span(SOURCE.id, n, n + 1))]

    def draw_all(self) -> int:
        """Draw until there is nothing; return how many there were."""
        return len(list(iter(self.draw, None)))

    def draw(self) -> int | None:
        """Draw; return which task."""
        return next((int(one.key) for one in self.board.draw()), None)


@pytest.fixture
def party(tmp_path: Path) -> Iterator[Party]:
    made = Party(tmp_path, Place())
    with mock.patch.object(task_board, "time", made):
        yield made
    made.board.close()
    made.store.close()


def test_alone_all_may_be_drawn_and_little_is_said(party: Party) -> None:
    party.pass_time(60)
    assert party.draw_all() == COUNT
    assert 5 <= len(party.place.said) <= 7
    assert party.place.reads == 0


def test_what_others_claim_is_drawn_last(party: Party) -> None:
    party.meet((0, 30))
    assert all(span.start >= 30 for span in party.place.said[-1].spans)
    found = []
    for _ in range(25):
        while (one := party.draw()) is not None:
            found.append(one)
        party.meet((0, 30))
    assert sorted(found) == list(range(30, 40))
    assert party.board.is_done()


def test_a_board_that_was_seen_before_its_tasks_were_there_is_not_done(party: Party) -> None:
    party.other((0, 1))
    party.board.drop(task.key for task in party.hold_all())
    party.pass_time(5)
    assert party.board.is_empty()
    party.post()
    assert not party.board.is_done()
    party.pass_time(10)
    assert party.draw() is not None


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
        party.meet((0, COUNT), seconds=10)
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
    party.meet((0, 1))
    assert party.draw() is not None
    party.now += HOLD_SECONDS
    assert party.draw() is None
    party.meet((0, 1))
    assert party.draw() is not None


def test_who_cannot_say_anything_begins_nothing_for_long(party: Party) -> None:
    party.meet((0, 1))
    party.place.is_away = True
    party.pass_time(20)
    assert party.draw() is None
    party.place.is_away = False
    party.meet((0, 1), seconds=11)
    assert party.draw() is not None


def test_what_cannot_be_said_is_not_drawn(party: Party) -> None:
    party.meet((0, 1))
    party.draw_all()
    party.place.is_away = True
    party.pass_time(10)
    assert party.board.may_begin()  # the earlier instructions are still valid
    assert party.draw() is None


def test_what_cannot_be_said_is_tried_again_after_a_while(party: Party) -> None:
    party.other((0, 1))
    party.place.is_away = True
    with mock.patch.object(party.place, "put", wraps=party.place.put) as put:
        party.pass_time(30)
    assert 3 <= put.call_count <= 4


def test_others_are_heard_just_before_something_is_claimed(party: Party) -> None:
    party.pass_time(3)
    party.other((39, 40))
    party.pass_time(1)  # read, so the next read is due with the next claim
    for n in range(12):
        assert party.draw() == n
    party.meet((16, COUNT), seconds=8)
    assert len(party.place.said) == 2
    assert max(party.claimed()) < 16


def test_what_is_in_work_stays_claimed_until_it_has_ended(party: Party) -> None:
    party.meet((39, 40))
    assert (party.draw(), party.draw()) == (0, 1)
    party.board.draw(0, ended=[b"0001"])
    for seconds, expected in ((11, [True, True]), (31, [True, False])):
        party.other((39, 40))
        party.pass_time(seconds)
        assert [party.place.said[-1].holds(Span(SOURCE.id, n, n + 1)) for n in (0, 1)] == expected


def test_what_this_run_has_said_under_another_name_binds_it_not(party: Party) -> None:
    party.meet((0, COUNT), name="000001")
    assert party.draw() == 0


def test_a_share_of_what_is_left_is_claimed(party: Party) -> None:
    party.meet((0, 1))
    assert len(party.claimed()) == COUNT // 4
    party.meet((0, 1), name="third", seconds=11)
    assert len(party.claimed()) == 7


def test_of_two_who_claim_the_same_one_gives_way(party: Party) -> None:
    party.meet((39, 40))
    before = set(party.claimed())
    party.meet(*((span.start, span.stop) for span in party.place.said[-1].spans), seconds=11)
    assert not before <= set(party.claimed())  # the others have some of it


def test_at_most_one_write_and_one_look_each_ten_seconds(party: Party) -> None:
    for _ in range(100):
        party.meet((0, 1))
    assert len(party.place.said) <= 11
    assert party.place.reads <= 12


def test_the_end_takes_back_what_was_said(party: Party) -> None:
    party.sharing.close()
    assert not party.place.removed
    party.pass_time(1)
    party.sharing.publish_idle()
    party.sharing.close()
    assert party.place.removed


def test_how_much_is_claimed_in_advance_follows_what_was_drawn(party: Party) -> None:
    assert party.draw() == 0
    party.pass_time(0.5)
    assert party.claimed() == list(range(1 + 3 * 1 + 8 * 2))
    party.pass_time(10)
    assert party.claimed() == list(range(1 + 8 * 2))
    assert [claims.number for claims in party.place.said] == [1, 2]


def test_whoever_claims_nothing_is_nobody_to_share_with(party: Party) -> None:
    party.meet()
    assert party.board.instructions() == Instructions()


def test_claims_are_over_when_they_said_so(party: Party) -> None:
    party.other((0, COUNT))
    party.pass_time(0.5 + HOLD_SECONDS - 0.5)
    assert party.board.instructions().shared
    party.pass_time(0.5)
    assert not party.board.instructions().shared


def test_who_has_taken_back_its_claims_is_forgotten(party: Party) -> None:
    party.meet((0, COUNT))
    assert party.draw() is None
    del party.place.others["other"]
    party.pass_time(0.5)
    assert party.draw() == 0


def test_who_is_new_is_heard_at_once(party: Party) -> None:
    party.meet((39, 40))
    party.meet((0, COUNT), name="third", seconds=0.5)
    assert party.place.reads == 2
    assert len(party.sharing.others()) == 2


def test_what_cannot_be_read_for_once_holds_as_it_was(party: Party) -> None:
    party.place.others["gone"] = None
    party.meet((0, COUNT))
    party.place.others["other"] = None
    party.pass_time(11)
    assert party.place.reads == 2
    assert party.draw() is None


def test_deaths_elsewhere_are_not_seen_here(party: Party) -> None:
    party.other((0, COUNT))
    party.place.dead = True
    party.pass_time(1)
    assert party.draw() is None


def test_in_a_crowd_less_is_said_and_it_holds_longer(party: Party) -> None:
    for n in range(40):
        party.other((39, 40), name=f"other {n}", seconds=600)
    party.pass_time(200)
    assert len(party.place.said) == 5  # each forty seconds
    assert party.place.said[-1].seconds == 120
    assert party.place.reads <= 6


def test_nothing_is_said_of_an_empty_board_but_once_that_it_is_empty(party: Party) -> None:
    party.pass_time(0.5)
    assert party.place.said[-1].seconds == HOLD_SECONDS
    assert party.draw_all() == COUNT
    for n in range(COUNT):
        party.board.draw(0, ended=[b"%04d" % n])
    party.pass_time(10)
    party.place.is_away = True
    party.pass_time(10)
    assert party.board.is_empty()
    party.place.is_away = False
    party.pass_time(100)
    assert [bool(claims.spans) for claims in party.place.said] == [True, True, False]
    assert party.board.instructions() == Instructions()


def test_who_meets_another_lets_its_workers_draw_what_it_has_claimed(party: Party) -> None:
    party.pass_time(2)
    party.meet((39, 40), seconds=0.5)
    assert party.board.instructions() == Instructions(shared=True, until=1000.5 + HOLD_SECONDS * 2 / 3)
    assert party.draw_all() == 16


def test_a_board_is_over_only_while_all_of_it_is_with_others(party: Party) -> None:
    party.other((0, COUNT))
    party.other((0, 1), name="third")
    for _ in range(20):
        party.pass_time(0.5)
        assert party.board.instructions().over
    del party.place.others["other"]
    party.pass_time(1.5)
    assert not party.board.instructions().over
    assert len(party.sharing.others()) == 1


def test_a_board_is_over_when_others_have_what_is_left(party: Party) -> None:
    party.meet((39, 40))
    assert not party.board.instructions().over
    assert party.draw_all() == 10
    party.other((0, COUNT - 1), name="third")
    del party.place.others["other"]
    party.pass_time(2)
    assert not party.board.instructions().over  # one is free
    party.meet((0, COUNT), name="fourth", seconds=2)
    assert party.board.instructions().over


@pytest.mark.parametrize("theirs", [(2, COUNT), (0, COUNT)])
def test_a_claim_says_at_once_whether_the_board_is_over(party: Party, theirs: tuple[int, int]) -> None:
    party.meet(theirs, seconds=0.5)
    until = 1000.5 + HOLD_SECONDS * 2 / 3
    assert party.board.instructions() == Instructions(shared=True, until=until, over=theirs[0] == 0)


def test_a_board_is_not_over_while_something_may_be_drawn(party: Party) -> None:
    party.pass_time(1)
    for n in range(14):
        assert party.draw() == n
    party.meet((16, COUNT), seconds=9.5)
    assert len(party.place.said) == 2
    assert not party.board.instructions().over
    assert party.draw_all() == 2


def test_who_gives_way_keeps_what_its_rank_is_before_up_to_its_share(party: Party) -> None:
    def kept(name: str) -> list[int]:
        return [n for n in range(16) if rank("000001", SOURCE.id, n) < rank(name, SOURCE.id, n)]

    few, many = (next(name for name in map(str, range(1000)) if len(kept(name)) == count) for count in (4, 11))
    party.pass_time(3)
    party.other((0, 16), name=many)
    party.meet((38, 40), name="third", seconds=7.5)
    wanted = 7  # half of a third of the remaining tasks
    assert party.claimed() == kept(many)[:wanted]
    del party.place.others[many]
    party.meet((0, 16), name=few, seconds=10)
    mine = [n for n in kept(many)[:wanted] if n in kept(few)]
    assert party.claimed() == [*mine, *range(16, 16 + wanted - len(mine))]
    assert party.draw_all() == wanted


def test_what_others_have_and_what_is_free_is_counted(party: Party) -> None:
    party.other((0, 4))
    party.other((3, 6), name="third")
    party.other((39, 40), name="fourth")
    party.store.commit([leaf_of(SOURCE, ((n, COUNT),)) for n in (0, 10)])
    party.pass_time(1)
    assert party.board.left() == COUNT - 2  # finished tasks were removed
    tasks = [BoardTask(b"%04d" % n, Span(SOURCE.id, n, n + 1), (((n, COUNT),),)) for n in range(20)]
    left, held = party.sharing.open_tasks(tasks)
    assert [task.span.start for task in left] == [n for n in range(20) if n not in (0, 10)]
    assert held == WaitingTasks(tasks=5, launchers=2, free=13)


def test_the_rest_is_said_once_and_when_it_is_due(party: Party) -> None:
    party.pass_time(0.5)
    party.sharing.publish_idle()
    assert len(party.place.said) == 1
    party.now += 10
    party.sharing.publish_idle()
    assert [list(claims.spans) for claims in party.place.said[1:]] == [[]]
    party.sharing.publish_idle()
    party.pass_time(9)
    assert len(party.place.said) == 2
    party.now += 20
    party.sharing.publish_idle()
    assert len(party.place.said) == 2


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        (WaitingTasks(1, 1, 0), "1 other launcher is processing 1 task"),
        (WaitingTasks(2000, 2, 0), "2 other launchers are processing 2,000 tasks"),
        (WaitingTasks(0, 0, 0), "0 other launchers are processing 0 tasks"),
    ],
)
def test_what_waits_for_others_is_told_in_words(held: WaitingTasks, expected: str) -> None:
    assert held.text() == expected


def test_claimed_tasks_may_begin_until_a_time_from_before(party: Party, monkeypatch: pytest.MonkeyPatch) -> None:
    real = party.place.put

    def takes_long(data: bytes) -> None:
        real(data)  # others may read it from now on
        party.now += 7

    monkeypatch.setattr(party.place, "put", takes_long)
    party.meet((39, 40), seconds=0.5)
    assert party.board.instructions() == Instructions(shared=True, until=1000.5 + HOLD_SECONDS * 2 / 3)


def test_what_could_not_be_said_is_not_begun_when_others_come(party: Party, monkeypatch: pytest.MonkeyPatch) -> None:
    party.pass_time(0.5)

    def is_refused(_: bytes) -> None:
        raise StorageError("refused")

    monkeypatch.setattr(party.place, "put", is_refused)
    party.pass_time(20)
    party.meet((39, 40), seconds=0.5)
    assert party.board.instructions() == Instructions(shared=True, until=1000.5 + HOLD_SECONDS * 2 / 3)


def test_an_element_is_done_once_all_of_its_tasks_are(party: Party) -> None:
    stream = plain("stream")
    tasks = [((0, 2),), ((1, 2),)]
    element = BoardTask(b"stream", Span(stream.id, 0, 9), tuple(tasks))
    party.store.register([stream])
    party.meet((0, COUNT), seconds=0.5)
    party.board.post([(element, b"")])
    for lineage, done in zip(tasks, (0, 1), strict=True):
        party.store.commit([leaf_of(stream, lineage)])
        party.pass_time(1)
        assert party.sharing.open_tasks([element])[0] == [element] * (1 - done)
    assert party.board.left() == COUNT


def test_what_is_claimed_may_be_begun_up_to_its_last_instant(party: Party) -> None:
    for until, expected in ((party.now, True), (party.now - 0.001, False)):
        party.board.instruct(Instructions(shared=True, until=until))
        assert party.board.may_begin() is expected


class Meeting(Place):
    """The place of a launcher whose claims another one reads. Before request number `at`, something happens."""

    other: Place

    def __init__(self, run: str, at: int = 0) -> None:
        super().__init__()
        self.run, self.at = run, at
        self.happens: Callable[[], None] = lambda: None

    def _count(self) -> None:
        self.at -= 1
        if self.at == 0:
            self.happens()

    def put(self, data: bytes) -> None:
        self._count()
        super().put(data)
        self.other.others[self.run] = data

    def names(self) -> Sequence[str]:
        self._count()
        return super().names()

    def read(self, names: Sequence[str]) -> list[bytes | None]:
        self._count()
        return super().read(names)


@pytest.mark.parametrize("at", range(1, 9))
def test_of_two_exclusive_launchers_one_begins_a_task(tmp_path: Path, at: int) -> None:
    places = Meeting("000001", at), Meeting("000002")
    places[0].other, places[1].other = places[1], places[0]
    one, other = both = [Party(tmp_path / place.run, place, place.run, exclusive=True) for place in places]
    places[0].happens = lambda: other.pass_time(0.5)
    drawn = list[int | None]()
    with mock.patch.object(task_board, "time", one):
        assert one.draw() is None
        for party in both * 60:
            party.pass_time(0.5)
            drawn += iter(party.draw, None)
    assert Counter(drawn) == Counter(range(COUNT))
    for party in both:
        party.board.close()
        party.store.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[FolderClaims, FolderClaims]]:
    """Claims of two launchers of one folder."""
    folders = RunFolders(str(tmp_path), OURS)
    with folders.enter("000001") as one, folders.enter("000002") as two:
        yield FolderClaims(folders, one, "000001"), FolderClaims(folders, two, "000002")


def test_launchers_see_each_other(pair: tuple[FolderClaims, FolderClaims]) -> None:
    first, second = pair
    assert first.names() == ["000002"]
    assert first.read(["000002"]) == [None]
    second.put(b"said")
    second.put(b"said again")
    assert first.read(["000002"]) == [b"said again"]
    assert second.names() == ["000001"]
    assert not first.has_died(Claims("000002", "", 1, 1.0))
    second.remove()
    second.remove()
    assert first.read(["000002"]) == [None]


def test_what_cannot_be_said_leaves_what_was_said_before(pair: tuple[FolderClaims, FolderClaims]) -> None:
    mine, other = pair
    other.put(b"said")
    with no_larger_than(5), pytest.raises(LedgerbeamError):
        other.put(b"said again")
    assert mine.read(["000002"]) == [b"said"]


def test_the_dead_have_nothing_in_work(tmp_path: Path) -> None:
    folders = RunFolders(str(tmp_path), OURS)
    other = start(tmp_path, "000002")
    (tmp_path / "run/000002/claims.json").write_bytes(b"said")
    with folders.enter("000001") as one:
        mine = FolderClaims(folders, one, "000001")
        assert mine.read(mine.names()) == [b"said"]
        kill(other)
        assert mine.names() == []


def test_a_link_is_not_followed(pair: tuple[FolderClaims, FolderClaims], tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "run/000002/claims.json").symlink_to(tmp_path / "secret")
    assert pair[0].read(["000002"]) == [None]


def test_of_too_much_just_enough_is_read_to_see_that_it_is(pair: tuple[FolderClaims, FolderClaims]) -> None:
    mine, other = pair
    for size, read in ((2**20, 2**20), (2**20 + 1, 2**20 + 1), (2**20 + 9, 2**20 + 1)):
        other.put(bytes(size))
        (found,) = mine.read(["000002"])
        assert found is not None
        assert len(found) == read


ONE, TWO = b"1" * 16, b"2" * 16


def test_claims_are_read_as_they_were_said() -> None:
    claims = Claims("000007", "place", 3, 30.0, [Span(ONE, 0, 10), Span(TWO, 5, 5)])
    assert decode_claims(encode_claims(claims)) == claims


@each(
    "data",
    [
        b"",
        b"[]",
        b"{",
        b'{"run": "1"}',
        encode_claims(Claims("1", "", 1, 1.0))[:-4],
        encode_claims(Claims("1", "", 1, 1.0)).replace(b'"seconds":1.0', b'"seconds":-1'),
        encode_claims(Claims("1", "", 1, 1.0, [Span(ONE, 0, 1)])).replace(b"31", b"3", 1),
        encode_claims(Claims("1", "", 1, 1.0, [Span(ONE, 0, 1)])).replace(b"0,1", b"0,null"),
    ],
)
def test_what_no_launcher_has_said_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of many kinds
        decode_claims(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_claims_or_refused(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        decode_claims(data)


@pytest.mark.parametrize(("said", "holds"), [(599.5, 599.5), (600.0, 600.0), (600.5, 600.0), (1e9, 600.0)])
def test_no_claim_holds_longer_than_ten_minutes(said: float, holds: float) -> None:
    assert decode_claims(encode_claims(Claims("1", "", 1, said))).seconds == holds


def test_claims_of_more_than_a_mebibyte_are_refused() -> None:
    size = 2**20 - len(encode_claims(Claims("1", "", 1, 1.0)))
    assert len(decode_claims(encode_claims(Claims("1", "x" * size, 1, 1.0))).place) == size
    with pytest.raises(ValueError, match="claims of at most 1048576 bytes, found 1048577"):
        decode_claims(encode_claims(Claims("1", "x" * (size + 1), 1, 1.0)))


def test_claims_of_more_than_ten_thousand_spans_are_refused() -> None:
    spans = [Span(ONE, 0, 1)] * 10_000
    assert decode_claims(encode_claims(Claims("1", "", 1, 1.0, spans))).spans == spans
    with pytest.raises(ValueError, match="expected claims of at most 10000 spans, found 10001"):
        decode_claims(encode_claims(Claims("1", "", 1, 1.0, [*spans, spans[0]])))


@each(
    ("start", "stop", "holds"),
    [(0, 5, False), (5, 10, False), (5, 11, True), (10, 20, True), (19, 25, True), (20, 25, False)],
)
def test_a_span_is_held_if_a_part_of_it_is(start: int, stop: int, holds: bool) -> None:
    claims = Claims("1", "", 1, 30.0, [Span(ONE, 10, 20)])
    assert claims.holds(Span(ONE, start, stop)) is holds
    assert not claims.holds(Span(TWO, start, stop))


def test_an_empty_span_is_held_by_its_like() -> None:
    assert Claims("1", "", 1, 30.0, [Span(ONE, 0, 0)]).holds(Span(ONE, 0, 0))


def test_spans_that_follow_each_other_are_said_as_one() -> None:
    spans = [Span(TWO, 0, 1), Span(ONE, 5, 9), Span(ONE, 0, 5), Span(ONE, 10, 12), Span(TWO, 1, 1)]
    assert merged(spans) == [Span(ONE, 0, 9), Span(ONE, 10, 12), Span(TWO, 0, 1), Span(TWO, 1, 1)]
    spans = [Span(ONE, 0, 1), Span(ONE, 5, 6), Span(ONE, 6, 7), Span(TWO, 7, 9)]
    assert merged(spans) == [Span(ONE, 0, 1), Span(ONE, 5, 7), Span(TWO, 7, 9)], "it joins what is apart"


def test_runs_begin_with_other_sources_and_inside_of_them() -> None:
    sources = [bytes([number]) * 16 for number in range(100)]
    runs = [f"{number:06d}" for number in range(20)]
    firsts = {min((order_key(run, source, ()), source) for source in sources)[1] for run in runs}
    assert len(firsts) > 10
    places = [((ordinal, 1000),) for ordinal in range(1000)]
    begins = {min((order_key(run, ONE, place), place) for place in places)[1] for run in runs}
    assert len(begins) > 15


def test_the_tasks_of_a_source_stay_together_and_in_turn() -> None:
    keys = sorted(
        (order_key("1", source, ((ordinal, 5),)), source, ordinal) for source in (ONE, TWO) for ordinal in range(5)
    )
    assert [source for _, source, _ in keys] in ([ONE] * 5 + [TWO] * 5, [TWO] * 5 + [ONE] * 5)
    assert len({key for key, _, _ in keys}) == len(keys), "two tasks have one place"
    for source in (ONE, TWO):
        order = [ordinal for _, of, ordinal in keys if of == source]
        assert order == [(order[0] + step) % 5 for step in range(5)]


@each("source", [bytes([number]) * 16 for number in range(8)])
def test_a_source_that_is_not_split_has_one_place_by_its_rank(source: bytes) -> None:
    assert order_key("000007", source, ()) == rank("000007", source, 0).to_bytes(8) + source + bytes(8)
