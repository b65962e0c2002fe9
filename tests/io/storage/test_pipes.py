"""Pipes: only if they are allowed, as streams, and never with half of the output of a command."""

from __future__ import annotations

import gzip
import os
import time
from pathlib import Path

import pytest

from ledgerbeam.errors import CheckpointError, NotIndexableError, SourceError, UsageError
from ledgerbeam.io import recognize
from ledgerbeam.io.compression.streams import ALLOW_PIPES, read_pipe
from ledgerbeam.io.lines.jsonl import stream_records
from ledgerbeam.iterators import Filter, IndexedManifest, Jsonl, Manifest, Shuffle
from tests.cases import each


@pytest.fixture
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOW_PIPES, "1")


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b"".join(b'{"n":%d}\n' % number for number in range(1000))))
    return path


@pytest.mark.parametrize("value", [None, "", "0", "true"])
def test_nothing_runs_unless_it_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    monkeypatch.delenv(ALLOW_PIPES, raising=False)
    if value is not None:
        monkeypatch.setenv(ALLOW_PIPES, value)
    trap = tmp_path / "trap"
    for read in (read_pipe, stream_records, lambda url: iter(Jsonl(url))):
        with pytest.raises(UsageError, match=f"pipes are not allowed.*{ALLOW_PIPES}=1"):
            list(read(f"pipe:touch {trap}"))
    assert not trap.exists()


@pytest.mark.usefixtures("allowed")
def test_what_a_command_prints_is_streamed(lines: Path) -> None:
    url = f"pipe:zcat {lines} | grep -v 7"
    assert [record["n"] for record in stream_records(url)] == [n for n in range(1000) if "7" not in str(n)]
    graph = Filter(Jsonl(url), lambda record: record["n"] % 2 == 0)
    first = list(graph)
    assert len(first) > 100
    assert list(graph) == first  # the command runs again


@pytest.mark.usefixtures("allowed")
@each(
    ("command", "message"),
    [
        (
            "echo '{\"n\": 1}'; echo no such object >&2; exit 3",
            "expected the command to end with status 0, found 3.*no such obj",
        ),
        ("false | echo '{}'", "found 1"),
        ("zcat no-such-file.gz | head -n 5", "found 1"),
        ("kill -9 $$", "found -9"),
        ("no-such-command", "found 127"),
    ],
)
def test_a_command_that_fails_is_an_error(command: str, message: str) -> None:
    with pytest.raises(SourceError, match=f"(?s){message}"):
        list(stream_records(f"pipe:{command}"))


@pytest.mark.usefixtures("allowed")
def test_a_command_may_read_as_much_as_it_needs(lines: Path) -> None:
    assert len(list(stream_records(f"pipe:yes '{{}}' | head -n 70000; zcat {lines} | tail -n 5"))) == 70005
    assert len(list(stream_records("pipe:yes '{}' | head -n 70000"))) == 70000


@pytest.mark.usefixtures("allowed")
def test_a_reader_that_stops_ends_the_command(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    records = stream_records(f"pipe:echo $$ > {told}; echo '{{}}'; sleep 100 | cat")
    assert next(records) == {}
    records.close()  # type: ignore[attr-defined]
    process = int(told.read_text())
    for _ in range(100):
        if not os.path.exists(f"/proc/{process}"):
            break
        time.sleep(0.05)
    assert not os.path.exists(f"/proc/{process}")


@pytest.mark.usefixtures("allowed")
def test_a_pipe_is_no_source_that_can_be_indexed_saved_or_restored(lines: Path) -> None:
    url = f"pipe:zcat {lines}"
    with pytest.raises(NotIndexableError, match=r"stream it with ledgerbeam\.iterators\.Jsonl"):
        recognize(url)
    with pytest.raises((NotIndexableError, UsageError)):
        IndexedManifest(url)
    for graph in (Manifest(url), Jsonl(url), Shuffle(Manifest(url), 10)):
        with pytest.raises(CheckpointError):
            graph.state_dict()
    assert Manifest(str(lines)).is_checkpointable


@pytest.mark.usefixtures("allowed")
def test_an_empty_command_and_secrets_in_one() -> None:
    with pytest.raises(UsageError, match="expected a command"):
        list(read_pipe("pipe: "))
    with pytest.raises(SourceError) as failed:
        list(read_pipe("pipe:echo https://user:hunter2@host/x >&2; false"))
    assert "hunter2" not in str(failed.value)
