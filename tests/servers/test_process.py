"""Servers end with their owner, whatever end it takes, and say why they did not start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers.process import Process, ServerError, free_port, server_folder, wait_until

# A server that starts a child in a session of its own and does not mind SIGTERM; its child does not either.
STUBBORN = "trap '' TERM; setsid sh -c \"trap '' TERM; sleep 1000 & wait\" & echo ready; wait; wait"
OWNER = """
import sys, time
from pathlib import Path
from tests.servers.process import Process
folder = Path(sys.argv[1])
server = Process(["sh", "-c", sys.argv[2]], name="server", folder=folder, work=folder / "work")
server.wait_until(lambda: len(server.descendants()) >= 2, seconds=60)
print(server.pid, *server.descendants(), flush=True)
time.sleep(1000)
"""


def gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_the_owner_of_a_server(tmp_path: Path, number: int) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path), STUBBORN]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as owner:
        assert owner.stdout is not None
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        assert len(pids) >= 3
        assert not gone(pids)
        os.kill(owner.pid, number)
    assert wait_until(lambda: gone(pids), seconds=60)
    assert wait_until(lambda: not (tmp_path / "work").exists(), seconds=60)


def test_a_stopped_server_is_gone_with_what_it_started(tmp_path: Path) -> None:
    with Process(["sh", "-c", "sleep 1000 & sleep 1000"], name="server", folder=tmp_path) as server:
        assert wait_until(lambda: len(server.descendants()) == 2, seconds=60)
        pids = [server.pid, *server.descendants()]
    assert gone(pids)
    assert not server.alive


@pytest.mark.slow
def test_a_killed_server_takes_its_children_with_it(tmp_path: Path) -> None:
    server = Process(["sh", "-c", "sleep 1000 & sleep 1000"], name="server", folder=tmp_path)
    assert wait_until(lambda: len(server.descendants()) == 2, seconds=60)
    pids = server.descendants()
    server.kill()
    assert gone(pids)


def test_a_server_that_ends_at_its_start_shows_its_last_words(tmp_path: Path) -> None:
    server = Process(["sh", "-c", "echo the disk is on fire >&2; exit 3"], name="server", folder=tmp_path)
    with pytest.raises(ServerError, match=r"server ended before it was healthy(.|\n)*the disk is on fire"):
        server.wait_until(lambda: False, seconds=60)
    assert server.wait(1) == 3


def test_a_server_that_is_never_healthy_is_given_up(tmp_path: Path) -> None:
    with (
        Process(["sh", "-c", "echo waiting; sleep 1000"], name="server", folder=tmp_path) as server,
        pytest.raises(ServerError, match=r"not healthy within 0 s(.|\n)*waiting"),
    ):
        server.wait_until(lambda: False, seconds=0.4)


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with Process(["/no/such/program"], name="server", folder=tmp_path) as server:
        assert server.wait(10) == 127
    assert "/no/such/program" in server.tail()


def test_a_temporary_folder_is_removed_unless_something_failed() -> None:
    with server_folder("x") as folder:
        assert folder.is_dir()
    assert not folder.exists()
    with pytest.raises(ServerError) as caught, server_folder("x") as folder:
        raise ServerError("no")
    assert caught.value.__notes__ == [f"the logs of x are kept in {folder}"]
    folder.rmdir()


def test_free_ports_are_free_and_not_those_of_outgoing_connections() -> None:
    assert all(15_000 <= free_port() < 32_768 for _ in range(50))
