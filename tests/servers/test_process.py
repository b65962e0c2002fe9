"""Servers end with their owner, whatever end it takes, and say why they did not start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ledgerbeam.io.storage import files as storage
from tests.servers.hosts import Hosts
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


@pytest.mark.parametrize("end", [Process.stop, pytest.param(Process.kill, marks=pytest.mark.slow)])
def test_a_server_that_is_ended_is_gone_with_what_it_started(tmp_path: Path, end: Callable[[Process], None]) -> None:
    server = Process(["sh", "-c", "sleep 1000 & sleep 1000"], name="server", folder=tmp_path)
    assert wait_until(lambda: len(server.descendants()) == 2, seconds=60)
    pids = server.tree()
    end(server)
    assert gone(pids)
    assert not server.alive


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


PUT = """
import sys, time, s3fs
store = s3fs.S3FileSystem(config_kwargs={"connect_timeout": 2, "read_timeout": 2, "retries": {"total_max_attempts": 1}})
bucket, host = sys.argv[1:]
for number in range(10**6):
    try:
        store.pipe_file(f"{bucket}/{host}-{number:03d}", b"x")
        print("put", number, flush=True)
    except Exception as error:
        print("lost", type(error).__name__, flush=True)
    time.sleep(0.05)
"""


@pytest.mark.s3
@pytest.mark.slow
def test_hosts_share_the_store_and_nothing_else(hosts: Hosts) -> None:
    bucket = hosts.s3.bucket()
    script = f"hostname > {hosts.folder}/name; cat {hosts.folder}/name; cat /proc/net/dev | grep -c eth0"
    said = []
    for host in (1, 2):
        process = hosts.run(["sh", "-c", script], host=host)
        assert process.wait(10) == 0
        said.append(process.log.read_text().split())
    assert said == [["host-1", "1"], ["host-2", "1"]]
    assert list(hosts.folder.iterdir()) == []
    put = "import s3fs, sys; s3fs.S3FileSystem().pipe_file(f'{sys.argv[1]}/x', b'from a host')"
    assert hosts.run([sys.executable, "-c", put, bucket], host=1).wait(30) == 0
    assert storage.read_bytes(f"s3://{bucket}/x", hosts.s3.options) == b"from a host"


@pytest.mark.s3
def test_a_hidden_folder_is_empty_on_the_hosts_only(hosts: Hosts, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    hosts.hide(tmp_path)
    listing = [hosts.run(["ls", str(tmp_path)], host=host) for host in (1, 2)]
    assert [(process.wait(10), process.log.read_text()) for process in listing] == [(0, ""), (0, "")]
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.s3
@pytest.mark.slow
def test_a_link_is_cut_and_heals(hosts: Hosts) -> None:
    bucket = hosts.s3.bucket()
    writers = [hosts.run([sys.executable, "-c", PUT, bucket, str(host)], host=host) for host in (1, 2)]

    def count(host: int, word: str) -> int:
        return writers[host - 1].log.read_text().split().count(word)

    assert wait_until(lambda: min(count(1, "put"), count(2, "put")) > 2, seconds=30)
    hosts.cut(1)
    time.sleep(0.5)  # for what was on its way
    before = count(1, "put"), count(2, "put")
    assert wait_until(lambda: count(2, "put") > before[1] + 20, seconds=30)
    assert count(1, "put") == before[0]
    hosts.heal(1)
    assert wait_until(lambda: count(1, "put") > before[0] + 2, seconds=60)


@pytest.mark.s3
def test_hosts_are_gone_when_their_owner_is_killed(tmp_path: Path, hosts: Hosts) -> None:
    script = (
        "import sys, time; from pathlib import Path; from tests.servers.hosts import two_hosts\n"
        "with two_hosts(Path(sys.argv[1])) as hosts:\n"
        "    sleeper = hosts.run(['sleep', '1000'], host=2)\n"
        "    print(sleeper.pid, hosts.s3.process.pid, hosts.address(0), flush=True); time.sleep(1000)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "other")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        sleeper, server, address = owner.stdout.readline().split()
        assert address in _addresses()
        os.kill(owner.pid, signal.SIGKILL)
    assert wait_until(lambda: not Path(f"/proc/{sleeper}").exists(), seconds=20)
    assert wait_until(lambda: not Path(f"/proc/{server}").exists(), seconds=20)
    assert wait_until(lambda: address not in _addresses(), seconds=20)


def _addresses() -> str:
    return subprocess.run(["ip", "-4", "address"], capture_output=True, text=True, check=True).stdout
