"""The two hosts: what they share, what they do not, and a link that is cut."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ledgerbeam.io.storage import files as storage
from tests.servers.hosts import Hosts
from tests.servers.process import wait_until

pytestmark = pytest.mark.s3

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


def test_a_hidden_folder_is_empty_on_the_hosts_only(hosts: Hosts, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    hosts.hide(tmp_path)
    listing = [hosts.run(["ls", str(tmp_path)], host=host) for host in (1, 2)]
    assert [(process.wait(10), process.log.read_text()) for process in listing] == [(0, ""), (0, "")]
    assert (tmp_path / "file").read_text() == "mine"


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
