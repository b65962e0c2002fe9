"""A worker waits for the index that another process makes, for as long as that lives."""

from __future__ import annotations

import os
import signal
import stat
import threading
import time
from pathlib import Path

import pytest

from ledgerbeam.errors import StorageError
from ledgerbeam.ledger import Source
from ledgerbeam.ledger.worker.run_folders import building_index, wait_for_index

ONE, OTHER = (Source(f"/in/{name}.jsonl", 1, "1") for name in "ab")


def making_process(folder: Path) -> int:
    """Fork a process that makes an index until it is killed; return its id once it has begun."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        with building_index(str(folder), ONE):
            os.write(write, b"!")
            signal.pause()
        os._exit(0)
    os.read(read, 1)
    os.close(read)
    os.close(write)
    return child


def test_who_needs_the_index_waits_until_the_process_that_makes_it_is_gone(tmp_path: Path) -> None:
    child = making_process(tmp_path)
    waiting = threading.Thread(target=wait_for_index, args=(str(tmp_path), ONE))
    waiting.start()
    wait_for_index(str(tmp_path), OTHER)  # at once
    time.sleep(0.1)
    assert waiting.is_alive()
    (mark,) = tmp_path.iterdir()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    waiting.join(20)
    assert not waiting.is_alive()
    wait_for_index(str(tmp_path), ONE)  # the file is still there
    assert mark.resolve() not in {Path(f"/proc/self/fd/{name}").resolve() for name in os.listdir("/proc/self/fd")}


def test_nothing_is_left_of_an_index_that_is_made_or_could_not_be(tmp_path: Path) -> None:
    wait_for_index(str(tmp_path), ONE)
    opened = os.listdir("/proc/self/fd")
    with building_index(str(tmp_path), ONE):
        (mark,) = tmp_path.iterdir()
        assert stat.S_IMODE(mark.stat().st_mode) == 0o600
    assert os.listdir("/proc/self/fd") == opened
    with pytest.raises(ValueError, match="no index"), building_index(str(tmp_path), ONE):
        raise ValueError("no index")
    assert not os.listdir(tmp_path)
    with pytest.raises(StorageError, match="gone"), building_index(str(tmp_path / "gone"), ONE):
        raise AssertionError


def test_a_link_in_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / f"indexing-{ONE.id.hex()}").symlink_to(tmp_path)
    with pytest.raises(StorageError, match="cannot be read"):
        wait_for_index(str(tmp_path), ONE)
