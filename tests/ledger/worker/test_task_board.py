"""The board of a wave: the order of draws, and the state after a kill."""

from __future__ import annotations

import math
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledgerbeam.errors import LedgerbeamError, LedgerError
from ledgerbeam.ledger.model.claims import Span
from ledgerbeam.ledger.worker import task_board as worker_task_board
from ledgerbeam.ledger.worker.task_board import Board, BoardTask, Instructions, task_board
from tests.ledger.processes import run
from tests.ledger.stores import in_threads


def element(number: int, source: bytes = b"s" * 16) -> tuple[BoardTask, bytes]:
    lineage = ((number, 1000),)
    return BoardTask(b"%04d" % number, Span(source, number, number + 1), (lineage,)), b"task %d" % number


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    made = task_board(str(tmp_path))
    yield made
    made.close()


def drawn(board: Board) -> list[bytes]:
    return [one.element for some in iter(board.draw, []) for one in some]


def test_a_board_does_not_write_where_its_descriptors_lead_no_longer(board: Board, tmp_path: Path) -> None:
    board.post([element(0)])
    other = tmp_path / "other"
    with other.open("wb") as mine:
        for name in os.listdir("/proc/self/fd"):
            if os.path.lexists(f"/proc/self/fd/{name}") and os.readlink(f"/proc/self/fd/{name}").endswith("/data.mdb"):
                os.dup2(mine.fileno(), int(name))
        with pytest.raises(LedgerError, match="were closed in this process by other code"):
            board.post([element(1)])
    assert other.read_bytes() == b""


def test_elements_are_drawn_once_each_in_order(board: Board) -> None:
    assert board.drawn() == 0
    board.post([element(2), element(0)])
    board.post([element(1), element(0)])
    assert drawn(board) == [b"task 0", b"task 1", b"task 2"]
    assert board.is_done()
    assert board.drawn() == 3


def test_what_is_posted_again_after_it_was_drawn_is_there_again(board: Board) -> None:
    board.post([element(0)])
    assert board.draw()
    assert [task.span.start for task in board.in_work(0.0)] == [0]
    assert board.left() == 0
    assert not board.is_empty()


def test_what_is_posted_again_while_it_waits_stays_where_it_is(board: Board) -> None:
    board.post([element(0), element(1)])
    board.hold([b"0000"])
    board.post([(element(0)[0], b"another body")])
    assert board.left() == 2
    assert drawn(board) == [b"task 1"]
    board.offer([b"0000"])
    assert drawn(board) == [b"task 0"]


def test_a_worker_that_draws_ahead_leaves_some(board: Board) -> None:
    board.post([element(number) for number in range(4)])
    assert not board.draw(leaving=4)
    assert board.draw(leaving=3)
    assert not board.draw(leaving=3)
    assert drawn(board) == [b"task 1", b"task 2", b"task 3"]


def test_several_are_drawn_at_once_in_order_of_those_that_may_be(board: Board) -> None:
    board.post([element(number) for number in range(6)])
    board.hold([b"0003", b"0004"])
    assert [one.element for one in board.draw(2)] == [b"task 0", b"task 1"]
    assert board.drawn() == 2
    assert [one.element for one in board.draw(9, leaving=3)] == [b"task 2"]
    assert [one.element for one in board.draw(9)] == [b"task 5"]  # none that must wait
    assert board.draw(9) == []
    assert board.drawn() == 4
    assert sorted(task.span.start for task in board.in_work(math.inf)) == [0, 1, 2, 5]
    board.offer_all()
    assert drawn(board) == [b"task 3", b"task 4"]


def test_what_has_ended_is_told_when_the_next_is_drawn(board: Board) -> None:
    board.post([element(number) for number in range(2)])
    (first,) = board.draw()
    assert [task.span.start for task in board.in_work(math.inf)] == [0]
    assert board.draw(ended=[first.key, b"nothing"])
    assert [task.span.start for task in board.in_work(math.inf)] == [1]
    assert not board.draw(ended=[b"0001"])
    assert board.in_work(math.inf) == []


def test_what_has_ended_is_told_though_nothing_may_be_begun(board: Board) -> None:
    board.post([element(0), element(1)])
    (first,) = board.draw()
    board.instruct(Instructions(shared=True, until=time.monotonic() - 1))
    assert not board.draw(ended=[first.key])
    assert board.in_work(math.inf) == []


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_never_touches_the_board_of_its_parent(board: Board, tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        try:
            os._exit(1 if task_board(str(tmp_path)) is board else 0)
        except LedgerbeamError:  # an environment of the parent cannot be opened here
            os._exit(0)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert task_board(str(tmp_path)) is board


FORKS_BESIDE = """
from ledgerbeam.ledger.worker import task_board

print(fork_beside(task_board._boards_lock, lambda: task_board.task_board(sys.argv[1]).close()))
"""


def test_a_process_that_is_forked_while_a_board_is_looked_up_has_its_own(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    assert run(FORKS_BESIDE, str(tmp_path / "run")) == "0\n"


def test_while_others_share_only_what_is_offered_is_drawn(board: Board) -> None:
    board.instruct(Instructions(shared=True, until=time.monotonic() + 60))
    board.post([element(number) for number in range(4)])
    assert not board.draw()
    assert not board.is_done()
    board.offer([b"0002", b"0001", b"nothing"])
    assert board.left() == 4
    assert [task.span.start for task in board.ready(1)] == [1]
    assert [task.span.start for task in board.undrawn()] == [1, 2, 0, 3]
    board.hold([b"0001"])
    assert drawn(board) == [b"task 2"]
    assert [task.span.start for page in board.waiting() for task in page] == [0, 1, 3]
    board.drop([b"0000"])
    board.offer_all()
    assert drawn(board) == [b"task 1", b"task 3"]
    board.post([element(0)])  # a removed task may come again
    assert board.left() == 1


def test_nothing_is_drawn_once_the_launcher_does_not_renew_it(board: Board) -> None:
    board.post([element(0)])
    board.instruct(Instructions(shared=True, until=time.monotonic() - 1))
    assert not board.draw()
    assert not board.is_done()
    board.instruct(Instructions(shared=True, until=time.monotonic() + 60))
    assert board.draw()


def test_a_board_is_done_when_all_that_waits_is_left_to_others(board: Board) -> None:
    board.instruct(Instructions(shared=True))
    board.post([element(0), element(1)])
    board.offer([b"0001"])
    board.instruct(Instructions(shared=True, over=True))
    assert not board.is_done()
    assert drawn(board) == [b"task 1"]
    assert board.is_done()
    assert not board.is_empty()


def test_what_is_posted_once_nothing_was_left_is_waited_for(board: Board) -> None:
    said = Instructions(shared=True, until=time.monotonic() + 60, over=True)
    board.instruct(said)
    board.post([element(0)])
    assert not board.draw()
    assert not board.is_done(), "the launcher has not looked at it yet"
    assert board.instructions() == said._replace(over=False)
    board.instruct(said)
    board.post([element(0)])  # it is there already
    assert board.is_done()


def test_an_element_that_has_ended_is_in_work_for_a_while(board: Board) -> None:
    board.post([element(0), element(1)])
    one, two = board.draw(2)
    board.draw(0, ended=[one.key])
    assert len(board.in_work(time.monotonic() - 10)) == 2
    assert [task.key for task in board.in_work(time.monotonic() + 10)] == [two.key]
    board.draw(0, ended=[two.key])
    assert board.in_work(time.monotonic() + 10) == []
    assert board.is_empty()


@pytest.fixture
def small_map(monkeypatch: pytest.MonkeyPatch) -> int:
    """The room that a board has at first: little."""
    monkeypatch.setattr(worker_task_board, "_MAP_BYTES", 1 << 17)
    return 1 << 17


def test_a_board_has_room_for_more_than_it_had_at_first(tmp_path: Path, small_map: int) -> None:
    board = task_board(str(tmp_path))
    for number in range(5):
        board.post([(element(number)[0], bytes(small_map))])
    assert [len(body) for body in drawn(board)] == [small_map] * 5
    board.close()


def test_threads_and_processes_draw_what_is_left(board: Board, tmp_path: Path) -> None:
    board.post([element(number) for number in range(400)])
    script = (
        "import sys; from ledgerbeam.ledger.worker.task_board import task_board\n"
        "board = task_board(sys.argv[1])\n"
        "while some := board.draw(3): print(*(one.element.decode() for one in some), sep='\\n')\n"
    )
    others = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    found: list[str] = []
    in_threads(*[lambda: found.extend(one.decode() for one in drawn(board))] * 2)
    for other in others:
        found += other.communicate(timeout=60)[0].splitlines()
    assert sorted(found) == sorted(f"task {number}" for number in range(400))


def test_a_killed_worker_blocks_nobody(board: Board, tmp_path: Path) -> None:
    board.post([element(number) for number in range(100_00)])
    script = (
        "import sys; from ledgerbeam.ledger.worker.task_board import task_board\n"
        "board = task_board(sys.argv[1])\n"
        "while True:\n    board.draw(); print(flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        os.kill(other.pid, signal.SIGKILL)
    assert board.draw()


def test_a_board_may_be_opened_again_and_is_for_its_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there"
    for _ in range(2):
        board = task_board(str(folder))
        assert stat.S_IMODE((folder / "board").stat().st_mode) == 0o700
        board.post([element(0)])
        assert board.left() == 1
        board.close()
    assert task_board(str(folder)) is not board
    task_board(str(folder)).close()


def test_a_board_that_another_process_made_grow_is_read_on(board: Board, tmp_path: Path) -> None:
    script = """
import sys
from ledgerbeam.ledger.model.claims import Span
from ledgerbeam.ledger.worker.task_board import BoardTask, task_board
tasks = [BoardTask(b"%04d" % n, Span(b"s" * 16, n, n + 1), (((n, 1000),),)) for n in range(100)]
task_board(sys.argv[1]).post([(task, b"x" * (1 << 20)) for task in tasks])
"""
    assert board.left() == 0
    run(script, str(tmp_path))
    assert len(drawn(board)) == 100


def test_a_board_takes_no_descriptor_of_what_is_printed(tmp_path: Path) -> None:
    script = """
import os, sys
os.close(0)
from ledgerbeam.ledger.worker.task_board import Board
board = Board(sys.argv[1])
print(os.readlink("/proc/self/fd/0"))
"""
    assert run(script, str(tmp_path)) == f"{os.devnull}\n"
