"""A ledger with invalid pages: LMDB ends the process, and the command still prints a message."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from ledgerbeam.io.native import compiled
from ledgerbeam.ledger import Source
from ledgerbeam.ledger.opening import open_store

PAGE = 4096
SOURCES = 400

PROGRAM = "import sys; from ledgerbeam.pipelines.cli.cli import main; main(['ledger', 'status', sys.argv[1]])"
"""A program of a user, not a command."""

pytestmark = pytest.mark.skipif(compiled is None, reason="the compiled loops are not built")


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of a ledger of some pages."""
    folder = tmp_path_factory.mktemp("ledger")
    with closing(open_store(str(folder), create=True)) as store:
        store.register([Source(f"/in/{number}.jsonl", number, "1") for number in range(SOURCES)])
    return (folder / "data.mdb").read_bytes()


def with_zeros(folder: Path, ledger: bytes, page: int) -> Path:
    (folder / "data.mdb").write_bytes(ledger[: page * PAGE] + bytes(PAGE) + ledger[(page + 1) * PAGE :])
    return folder


def look(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, cwd="/")


@pytest.mark.slow
def test_a_command_says_what_to_do_whichever_page_is_none(tmp_path: Path, ledger: bytes) -> None:
    ended = []
    for page in range(2, len(ledger) // PAGE):
        folder = with_zeros(tmp_path, ledger, page)
        ran = look("-m", "ledgerbeam", "ledger", "status", str(folder))
        assert ran.returncode in (0, 1), f"page {page}: {ran.stderr}"
        if ran.returncode:
            said = ran.stderr.splitlines()[-1]
            assert said.startswith(f"ledgerbeam: error: ledger {folder}: ")
            assert "restore it from a copy" in said
            ended += [page] if "a library crashed" in said else []
    assert ended, "no page made LMDB end the command"

    broken = with_zeros(tmp_path, ledger, ended[0])
    for program in (("-c", PROGRAM, str(broken)), ("-m", "ledgerbeam", "ledger", "status", str(broken), "--debug")):
        ran = look(*program)
        assert ran.returncode < 0, "what is no command, or is looked into, is ended by the signal"
        assert "a library ended" not in ran.stderr
