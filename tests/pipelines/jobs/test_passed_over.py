"""What a wildcard matches and is no source is passed over and counted; what is named is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ledgerbeam.errors import NotIndexableError, SourceNotFoundError, UsageError
from ledgerbeam.io import recognize
from ledgerbeam.io.datasets.shar.format import require_shard
from ledgerbeam.io.formats.registry import recognize_indexable
from ledgerbeam.io.listing.left_out import LeftOut, OwnFiles, RequireSource
from ledgerbeam.sources.listing import SourceListing
from tests.pipelines.conftest import Workspace
from tests.pipelines.jobs.test_own_files import FORM, write


def listed(root: Path, *patterns: str, require: RequireSource | None = None) -> tuple[list[str], LeftOut]:
    left_out = LeftOut()
    own = OwnFiles(str(root / "out"), FORM)
    paths = tuple(str(root / pattern) for pattern in patterns)
    listing = SourceListing(paths, own=own, require=recognize if require is None else require)
    urls = [url for page in listing.pages(left_out) for url in page.urls]
    return sorted(Path(url).relative_to(root).as_posix() for url in urls), left_out


def test_names_of_no_known_format_are_passed_over_and_counted(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", "b.tar.gz", "README.md", "_SUCCESS", "sub/notes.docx", "sub/c.1.jsonl", "x.jsonl.000001")
    found, left_out = listed(tmp_path, "**/*")
    assert found == ["a.jsonl", "b.tar.gz", "sub/c.1.jsonl", "x.jsonl.000001"]
    assert (left_out.own, left_out.passed_over) == (0, 3)
    assert Path(left_out.example).name in {"README.md", "_SUCCESS", "notes.docx"}
    (line,) = left_out.lines()
    assert line.startswith("passed over, since their names are not those of sources: 3 files, such as ")


def test_what_is_no_file_is_passed_over_where_its_name_is_not_that_of_a_source(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl")
    os.mkfifo(tmp_path / "control")
    (tmp_path / "latest").symlink_to("nothing")
    found, left_out = listed(tmp_path, "**/*")
    assert (found, left_out.passed_over) == (["a.jsonl"], 2)
    os.mkfifo(tmp_path / "b.jsonl")
    with pytest.raises(UsageError, match=r"b\.jsonl: expected a file .*, found a pipe"):
        listed(tmp_path, "**/*")


@pytest.mark.slow
def test_a_run_says_that_a_source_is_no_longer_listed(workspace: Workspace) -> None:
    first, second = (workspace.jsonl(f"in/{name}.jsonl", 3) for name in "ab")
    command = ("map", "functions:keep", "in/*.jsonl", "--output", "out", "--to", "jsonl")
    assert "no longer listed" not in workspace.run(*command).err
    second.unlink()
    second.mkdir()
    ran = workspace.succeed(*command)
    assert "1 known source no longer listed" in ran.out + ran.err
    second.rmdir()
    os.mkfifo(second)
    ran = workspace.run(*command)
    assert (ran.status, first.is_file()) == (2, True), ran.err
    assert f"{second}: expected a file with byte offsets, found a pipe" in ran.err


def test_several_patterns_count_what_each_matches(tmp_path: Path) -> None:
    write(tmp_path, "a/x.jsonl", "a/x.md", "b/y.md", "b/y.tar")
    found, left_out = listed(tmp_path, "a/*", "b/*")
    assert found == ["a/x.jsonl", "b/y.tar"]
    assert left_out.passed_over == 2
    assert listed(tmp_path, "a/*", "b/*.md")[1].passed_over == 2


def test_what_is_named_is_not_passed_over(tmp_path: Path) -> None:
    """Whoever reads it refuses it: a job by `recognize`."""
    write(tmp_path, "a.jsonl", "b.md", "c.md")
    assert listed(tmp_path, "a.jsonl", "b.md")[0] == ["a.jsonl", "b.md"]
    assert listed(tmp_path, "{a.jsonl,b.md}")[0] == ["a.jsonl", "b.md"]
    (tmp_path / "list").write_text(f"{tmp_path}/b.md\n")
    (page,) = SourceListing(sources_from=str(tmp_path / "list")).pages()
    assert page.urls == [f"{tmp_path}/b.md"]


def test_what_the_job_writes_is_not_counted_twice(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", "out/a-0000000000.jsonl", "out/_ledgerbeam/1.json", "x.md")
    found, left_out = listed(tmp_path, "**/*")
    assert found == ["a.jsonl"]
    assert (left_out.own, left_out.passed_over) == (2, 1)
    assert len(list(left_out.lines())) == 2


@pytest.mark.parametrize(
    ("names", "require", "error", "reason"),
    [
        ("a.md b.xyz", None, UsageError, r"none of the 2 matching names .*/a\.md: the name has no known format"),
        ("a.parquet", recognize_indexable, NotIndexableError, "is its index; leave it out here"),
        ("a.md", require_shard, SourceNotFoundError, "expected shards of Shar datasets"),
    ],
)
def test_nothing_but_such_names_is_an_error(
    tmp_path: Path, names: str, require: RequireSource | None, error: type[Exception], reason: str
) -> None:
    write(tmp_path, *names.split())
    with pytest.raises(error, match=reason):
        listed(tmp_path, "*", require=require)


def test_a_pattern_that_ends_like_a_source_looks_at_no_name(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", "b.jsonl", "c.jsonl")
    asked: list[str] = []
    assert len(listed(tmp_path, "*.jsonl", require=asked.append)[0]) == 3
    assert len(asked) == 1
    assert len(listed(tmp_path, "?.jsonl", "[a-b].jsonl", require=asked.append)[0]) == 3
    assert len(asked) == 3


def test_columns_are_no_sources_of_an_index(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", "b.parquet", "c.jsonl.bz2")
    found, left_out = listed(tmp_path, "*", require=recognize_indexable)
    assert found == ["a.jsonl", "c.jsonl.bz2"]  # the latter is refused: it is data that has no index
    assert left_out.passed_over == 1


@pytest.mark.slow
@pytest.mark.parametrize("command", ["index", "convert"])
def test_a_run_says_how_many(workspace: Workspace, command: str) -> None:
    workspace.jsonl("data/a.jsonl", 5)
    (workspace.root / "data/README.md").write_text("notes")
    (workspace.root / "data/_SUCCESS").write_text("")
    args = () if command == "index" else ("--output", "out", "--to", "jsonl")
    planned = workspace.run(command, "data/*", *args, "--json", "--dry-run")
    assert (planned.status, planned.json["passed_over"]) == (0, 2), planned.err
    ran = workspace.succeed(command, "data/*", *args, "--json")
    assert (ran.json["sources"]["complete"], ran.json["passed_over"]) == (1, 2)
    assert "passed over, since their names are not those of sources: 2 files, such as " in ran.err
    refused = workspace.run(command, "data/a.jsonl", "data/README.md", *args, status=2)
    assert "data/README.md: the name has no known format" in refused.err


@pytest.mark.slow
def test_a_runner_that_lists_for_itself_passes_them_over_too(workspace: Workspace) -> None:
    workspace.jsonl("data/a.jsonl", 5)
    (workspace.root / "data/README.md").write_text("notes")
    ran = workspace.succeed("index", "data/*", "--json", "--", "--runner=BundleBasedDirectRunner")
    assert (ran.json["sources"]["complete"], ran.json["passed_over"]) == (1, None)


@pytest.mark.slow
def test_verify_says_how_many(workspace: Workspace) -> None:
    workspace.jsonl("data/a.jsonl", 5)
    (workspace.root / "data/README.md").write_text("notes")
    assert workspace.run("index", "data/*").status == 0
    checked = workspace.run("verify", "data/*", "--json")
    assert (checked.status, checked.json["sources"], checked.json["passed_over"]) == (0, 1, 1)
    assert "passed over" in workspace.run("verify", "data/*").out
    assert workspace.run("verify", "data/README.md").status == 1
