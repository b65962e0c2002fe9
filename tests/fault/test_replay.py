"""Power cuts: what was acknowledged is there, whatever the disk kept; and the replay finds what is not durable."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.fault.replay import Recording, crashes, replay
from tests.fault.replay_stories import STORIES
from tests.fault.replay_trace import (
    Create,
    Disk,
    Link,
    MakeFolder,
    Open,
    Operation,
    Rename,
    Sync,
    Write,
    parse,
    why_no_strace,
)

NO_STRACE = why_no_strace()

traced = pytest.mark.skipif(NO_STRACE is not None, reason=str(NO_STRACE))

PAGE = 4096


def states(operations: list[Operation], count: int = 400) -> list[dict[str, bytes | None]]:
    """Return what crashes after all of these operations leave."""
    disk = Disk("/d")
    for operation in operations:
        disk.apply(operation)
    chance = random.Random(1)
    return [disk.crash(chance) for _ in range(count)]


@traced
@pytest.mark.parametrize("story", STORIES)
def test_no_crash_loses_or_tears_what_was_acknowledged(memory: Path, story: str) -> None:
    figures = replay(Recording.make(story, 7, memory / "recording"), 40, 7, memory)
    assert figures.distinct > 20
    assert figures.bad == 0, figures.examples


@traced
@pytest.mark.slow
@pytest.mark.parametrize(
    ("story", "breakage", "kinds"),
    [
        ("ledger", "no sync", {"lost", "half applied", "kills its reader", "does not open or go on"}),
        ("ledger", "no metasync", {"lost"}),
        ("outputs", "no fsync of outputs", {"false completion", "lost output", "torn"}),
        ("outputs", "no fsync of folders", {"false completion", "lost output"}),
        ("outputs", "record first", {"false completion", "lost output"}),
        ("objects", "no fsync of objects", {"does not open or go on"}),
    ],
)
def test_what_is_not_durable_is_found(memory: Path, story: str, breakage: str, kinds: set[str]) -> None:
    figures = replay(Recording.make(story, 7, memory / "recording", breakage), 30, 7, memory)
    assert figures.bad > 0
    assert figures.findings.keys() <= kinds, figures.examples


@traced
def test_the_last_state_of_a_recording_is_what_the_process_left(memory: Path) -> None:
    recording = Recording.make("outputs", 3, memory / "recording")
    disk = Disk(str(recording.root))
    for operation in recording.operations:
        disk.apply(operation)
    left = {str(path.relative_to(recording.root)): path for path in recording.root.rglob("*")}
    files = disk.crash(random.Random(1))
    assert set(files) == set(left)
    for name, content in files.items():
        assert content is None or name.endswith("lock.mdb") or left[name].read_bytes() == content, name


@traced
def test_crashes_are_spread_over_the_whole_story(memory: Path) -> None:
    recording = Recording.make("ledger", 3, memory / "recording")
    counted = [acknowledged for _, acknowledged, _ in crashes(recording, 600, random.Random(2))]
    assert len(counted) == 600
    assert set(range(40)) <= set(counted)


def test_pages_that_were_not_synced_may_be_there_or_not_each_by_itself() -> None:
    old, new = b"a" * 2 * PAGE, b"b" * 2 * PAGE
    file: list[Operation] = [Create("/d/f"), Open(1, "/d/f"), Open(2, "/d"), Write(1, 0, old), Sync(1), Sync(2)]
    left = [files["f"] or b"" for files in states([*file, Write(1, 0, new)])]
    whole = {old, new, old[:PAGE] + new[PAGE:], new[:PAGE] + old[PAGE:]}
    assert whole <= set(left)
    torn = [content for content in left if content not in whole]
    assert torn
    assert all(len(set(content[at : at + 512])) == 1 for content in torn for at in range(0, 2 * PAGE, 512))
    assert [files["f"] for files in states([*file, Write(1, 0, new), Sync(1)])] == [new] * 400


def test_a_synced_write_takes_no_other_page_with_it() -> None:
    file: list[Operation] = [Create("/d/f"), Open(1, "/d/f"), Open(2, "/d"), Sync(2)]
    left = states([*file, Write(1, 0, b"a" * 2 * PAGE), Sync(1, range(1, 2))])
    assert {(files["f"] or b"")[PAGE:] for files in left} == {b"a" * PAGE}
    assert bytes(PAGE) in {(files["f"] or b"")[:PAGE] for files in left}


def test_names_are_sure_once_their_folder_is_synced() -> None:
    made: list[Operation] = [MakeFolder("/d/e"), Create("/d/e/f"), Open(1, "/d/e/f"), Write(1, 0, b"x"), Sync(1)]
    moved: list[Operation] = [*made, Rename("/d/e/f", "/d/e/g"), Link("/d/e/g", "/d/e/h"), Open(2, "/d/e"), Sync(2)]
    left = states(moved)
    assert {tuple(sorted(files)) for files in left} == {(), ("e", "e/g", "e/h")}
    assert {content for files in left for content in files.values()} == {None, b"x"}
    assert {tuple(sorted(files)) for files in states([*moved, Open(3, "/d"), Sync(3)])} == {("e", "e/g", "e/h")}


def test_traces_are_read_by_descriptor() -> None:
    def text(value: str) -> str:
        return '"' + "".join(f"\\x{byte:02x}" for byte in value.encode()) + '"'

    lines = [
        f"openat(AT_FDCWD, {text('/d/f')}, O_RDWR|O_CREAT, 0644) = 4",
        f"openat(AT_FDCWD, {text('/d/f')}, O_WRONLY|O_DSYNC) = 5",
        "lseek(4, 8192, SEEK_SET) = 8192",
        f"writev(4, [{{iov_base={text('ab')}, iov_len=2}}, {{iov_base={text('c')}, iov_len=1}}], 2) = 3",
        f"pwrite64(5, {text('mm')}, 2, 4096) = 2",
        "fdatasync(4) = -1 EIO (Input/output error)",
        "close(4) = 0",
        f"write(4, {text('elsewhere')}, 9) = 9",
        f"write(1, {text('done 1')}, 6) = 6",
    ]
    *operations, said = parse(lines, "/d")
    assert operations == [
        Create("/d/f"),
        Open(1, "/d/f"),
        Open(2, "/d/f"),
        Write(1, 8192, b"abc"),
        Write(2, 4096, b"mm"),
        Sync(2, range(1, 2)),
    ]
    assert said.text == "done 1"  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="not a finished call"):
        list(parse(["fsync(4 <unfinished ...>"], "/d"))
