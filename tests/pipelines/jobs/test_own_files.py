"""What is no source: outputs of the job, names of no format. Links below an output folder are never followed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import s3fs

from ledgerbeam.errors import NotIndexableError, SourceNotFoundError, UsageError
from ledgerbeam.io import recognize
from ledgerbeam.io.datasets.shar.format import require_shard
from ledgerbeam.io.formats.registry import recognize_indexable
from ledgerbeam.io.listing.left_out import LeftOut, OwnFiles, RequireSource, Sieve
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.io.storage.files import first_link, refuse_folder_links, refuse_links
from ledgerbeam.io.storage.publish import publish_all
from ledgerbeam.sources.listing import SourceListing
from tests.conftest import S3Server
from tests.pipelines.conftest import Ran, Workspace

FORM = r"-\d{10}(?:-\d{6})*\.jsonl(?:\.idx)?"


@pytest.mark.slow
@pytest.mark.parametrize("output", ["data/out", "data", "data/sub"])
def test_three_runs_have_the_same_sources(workspace: Workspace, output: str) -> None:
    workspace.jsonl("data/a.jsonl", 5)
    workspace.jsonl("data/sub/b.jsonl", 5, first=5)
    command = ("map", "functions:keep", "data/**/*.jsonl", "--output", output, "--to", "jsonl", "--json")
    expected = 1 if output == "data/sub" else 2  # all that lies in an output folder below is left out
    for number in range(3):
        ran = workspace.succeed(*command)
        assert ran.json["sources"]["complete"] == expected
        assert ran.json["skipped"] == (expected if number else 0)
        assert ("left out of the sources" in ran.err) == (number > 0 or output == "data/sub")


@pytest.mark.slow
def test_a_pack_of_the_job_itself_is_no_source(workspace: Workspace) -> None:
    for name in "abc":
        workspace.jsonl(f"data/{name}.jsonl", 5)
    command = ("map", "functions:keep", "data/**/*.jsonl", "--output", "data/out", "--to", "jsonl", "--pack", "1M")
    assert workspace.run(*command).status == 0
    before = workspace.files("data/out")
    ran = workspace.run(*command, "--json")
    assert (ran.status, ran.json["skipped"]) == (0, 1)
    assert workspace.files("data/out") == before


@pytest.mark.slow
def test_a_runner_that_lists_for_itself_leaves_them_out_too(workspace: Workspace) -> None:
    workspace.jsonl("data/a.jsonl", 5)
    command = ("map", "functions:keep", "data/**/*.jsonl", "--output", "data/out", "--to", "jsonl")
    for _ in range(2):
        ran = workspace.succeed(*command, "--json", "--", "--runner=BundleBasedDirectRunner")
        assert ran.json["sources"]["complete"] == 1


@pytest.mark.slow
def test_one_that_is_named_is_an_error(workspace: Workspace) -> None:
    workspace.jsonl("data/a.jsonl", 5)
    command = ("map", "functions:keep", "data/a.jsonl", "--output", "out", "--to", "jsonl")
    assert workspace.run(*command).status == 0
    name = "out/a.jsonl-0000000000.jsonl"
    workspace.run("map", "functions:keep", name, "--output", "out", "--to", "jsonl", status=2, err=name)
    (workspace.root / "list").write_text(f"data/a.jsonl\n{name}\n")
    ran = workspace.run("map", "functions:keep", "--sources-from", "list", "--output", "out", "--to", "jsonl", status=2)
    assert name in ran.err


def listing(
    root: Path, *patterns: str, output: str = "out", ledger: str | None = None, require: RequireSource = recognize
) -> tuple[list[str], LeftOut]:
    """Return the names of the sources of a job, and what was left out."""
    left_out = LeftOut()
    own = OwnFiles(str(root / output), FORM, None if ledger is None else str(root / ledger))
    found = SourceListing(tuple(str(root / pattern) for pattern in patterns), own=own, require=require)
    urls = [url for page in found.pages(left_out) for url in page.urls]
    return sorted(Path(url).relative_to(root).as_posix() for url in urls), left_out


def listed(root: Path, *patterns: str, **how: Any) -> list[str]:
    return listing(root, *patterns, **how)[0]


def write(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")


def test_what_jobs_have_rejected_is_no_source_unless_it_is_named(tmp_path: Path) -> None:
    write(tmp_path, "a/x.jsonl", "a/_rejects/x.jsonl", "a/b/_rejects/c/y.jsonl", "a/my_rejects/z.jsonl")
    assert listed(tmp_path, "a/**/*.jsonl") == ["a/my_rejects/z.jsonl", "a/x.jsonl"]
    assert listed(tmp_path, "a/_rejects/*.jsonl") == ["a/_rejects/x.jsonl"]
    assert listed(tmp_path, "a/*.jsonl", "a/_rejects/*.jsonl") == ["a/_rejects/x.jsonl", "a/x.jsonl"]
    assert listed(tmp_path, "a/**/_rejects/**/*.jsonl") == ["a/_rejects/x.jsonl", "a/b/_rejects/c/y.jsonl"]


def test_each_pattern_decides_for_what_it_names(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", "out/b.jsonl", "out/c-0000000000.jsonl", "out/raw/d.jsonl", "out/raw/d-0000000000.jsonl")
    assert listed(tmp_path, "**/*.jsonl") == ["a.jsonl"]
    assert listed(tmp_path, "out/**/*.jsonl") == ["out/b.jsonl", "out/raw/d.jsonl"]
    assert listed(tmp_path, "out/raw/*.jsonl") == ["out/raw/d.jsonl"]
    assert listed(tmp_path, "**/*.jsonl", "out/raw/*") == ["a.jsonl", "out/raw/d.jsonl"]
    assert listed(tmp_path, "{.,out}/*.jsonl") == ["a.jsonl"]
    write(tmp_path, "out2/a.jsonl")
    assert listed(tmp_path, "**/*.jsonl") == ["a.jsonl", "out2/a.jsonl"]


def test_marks_and_the_ledger_are_no_sources(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", "x/_ledgerbeam/1.json", "L/data.mdb", "L/work/merged.json")
    assert listed(tmp_path, "**/*", output="out", ledger="L") == ["a.jsonl"]
    write(tmp_path, "L/b.jsonl")
    assert listed(tmp_path, "L/*", output="out", ledger="L") == ["L/b.jsonl"]


def test_links_do_not_hide_where_the_output_lies(tmp_path: Path) -> None:
    write(tmp_path, "data/a.jsonl", "data/out/b.jsonl")
    (tmp_path / "link").symlink_to("data")
    assert listed(tmp_path, "link/**/*.jsonl", output="data/out") == ["link/a.jsonl"]
    assert listed(tmp_path, "data/**/*.jsonl", output="link/out") == ["data/a.jsonl"]


def test_nothing_but_own_files_is_nothing(tmp_path: Path) -> None:
    write(tmp_path, "out/b.jsonl")
    with pytest.raises(SourceNotFoundError, match="nothing matches except files that this job writes itself"):
        listed(tmp_path, "**/*.jsonl")


def test_a_mark_that_is_named_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, "out/_ledgerbeam/1.jsonl")
    with pytest.raises(UsageError, match=r"1\.jsonl"):
        listed(tmp_path, "out/_ledgerbeam/1.jsonl")


def kept(own: OwnFiles, *urls: str, patterns: tuple[str, ...]) -> tuple[list[str], int]:
    """Return what is left of a page, and how many files were left out of it."""
    sieve = Sieve(own, patterns)
    page = sieve.keep(Page(list(urls), list(range(len(urls))), [f"v{number}" for number in range(len(urls))]))
    assert [urls[size] for size in page.sizes] == page.urls
    assert [int(version[1:]) for version in page.versions] == page.sizes
    return page.urls, sieve.left_out


def test_in_a_bucket_it_is_the_same() -> None:
    own = OwnFiles("s3://b/data/out", FORM, "s3://b/data/ledger")
    urls = [f"s3://b/data/{name}" for name in ("a", "out/a", "out2/a", "ledger/x", "x/_ledgerbeam/1.json")]
    assert kept(own, *urls, patterns=("s3://b/data/**",)) == ([urls[0], urls[2]], 3)
    shards = ["s3://b/data/out/a", "s3://b/data/out/a-0000000000.jsonl", "s3://b/data/out/a-0000000000.jsonl.idx"]
    assert kept(own, *shards, patterns=("s3://b/data/out/*",)) == (shards[:1], 2)
    assert kept(own, *shards, patterns=("s3://b/data/out/*", "s3://b/data/**")) == (shards[:1], 2)


def test_what_lies_on_another_store_is_not_the_jobs_own(tmp_path: Path) -> None:
    urls = ["s3://b/out/a-0000000000.jsonl", "s3://b/x"]
    for output in ("/b/out", "gs://b/out", "s3://c/out", "s3://b/ou", None):
        assert kept(OwnFiles(output, FORM), *urls, patterns=("s3://b/**",)) == (urls, 0)
    local = [f"{tmp_path}/out/a-0000000000.jsonl"]
    assert kept(OwnFiles(f"s3:/{tmp_path}/out", FORM), *local, patterns=(f"{tmp_path}/**",)) == (local, 0)


def test_nothing_is_left_out_of_a_listing_beside_the_output(tmp_path: Path) -> None:
    """Nor of one of a list of names, but for marks."""
    own = OwnFiles(f"{tmp_path}/out", FORM, f"{tmp_path}/L")
    urls = [f"{tmp_path}/in/a-0000000000.jsonl", f"{tmp_path}/in/b"]
    assert kept(own, *urls, patterns=(f"{tmp_path}/in/*",)) == (urls, 0)
    assert kept(own, *urls, f"{tmp_path}/x/_ledgerbeam/1", patterns=()) == (urls, 1)


def test_a_name_in_a_list_is_refused_by_every_name_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    sieve = Sieve(OwnFiles(f"{tmp_path}/link", FORM), [])
    for folder in ("link", "real"):
        for name in ("a-0000000000.jsonl", "_ledgerbeam/1.json"):
            with pytest.raises(UsageError, match="this job writes files of this name itself"):
                sieve.refuse([f"{tmp_path}/in/a", f"{tmp_path}/{folder}/{name}"])
        sieve.refuse([f"{tmp_path}/{folder}/a.jsonl", f"{tmp_path}/{folder}2/a-0000000000.jsonl"])
    Sieve(OwnFiles(), []).refuse([f"{tmp_path}/real/_ledgerbeam/1.json"])
    for output, name in (("s3://b/out/", "s3://b/out/a-0000000000.jsonl"), ("/", "/a-0000000000.jsonl")):
        with pytest.raises(UsageError):
            Sieve(OwnFiles(output, FORM), [name])
        Sieve(OwnFiles(output, FORM), [f"{name[:-5]}*"])


@pytest.mark.slow
@pytest.mark.s3
def test_three_runs_in_a_bucket_have_the_same_sources(workspace: Workspace, s3: S3Server) -> None:
    bucket = s3.bucket()
    store = s3fs.S3FileSystem(**s3.options, skip_instance_cache=True, use_listings_cache=False)
    store.pipe_file(f"{bucket}/data/a.jsonl", b'{"id": 1}\n')
    env = {**s3.env, "LEDGERBEAM_CACHE": str(workspace.root / "cache")}  # buckets of other sessions have the same names
    output = f"s3://{bucket}/data/out"
    command = ("map", "functions:keep", f"s3://{bucket}/data/**/*.jsonl", "--output", output, "--to", "jsonl", "--json")
    for number in range(3):
        ran = workspace.succeed(*command, "--ledger", f"s3://{bucket}/data/ledger", env=env)
        assert (ran.json["sources"]["complete"], ran.json["skipped"]) == (1, min(number, 1))
    assert len(store.find(f"{bucket}/data/out")) == 3


FUNCTION = """
import os
import ledgerbeam as lb

def link():
    if "WHERE" and not os.path.islink("WHERE"):
        os.symlink("../victim", "WHERE")

def plain(record):
    link()
    return record

def routed(record):
    link()
    return lb.Route("en", record)
"""

CONVERT = ("convert", "in/**/*.jsonl", "--output", "out", "--to", "jsonl", "--ledger", "L")
MAP = ("map", "linked:routed", "in/**/*.jsonl", "--output", "out", "--to", "jsonl", "--ledger", "L")


@pytest.fixture
def place(workspace: Workspace) -> Workspace:
    """A job whose first source has its output at the place of a file of others, if a link is followed."""
    for name in ("in/sub/x.jsonl", "in/y.jsonl", "victim/x.jsonl-0000000000.jsonl"):
        path = workspace.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"id": 1, "text": name}) + "\n")
    (workspace.root / "out").mkdir()
    write_function(workspace, "")
    return workspace


def write_function(workspace: Workspace, where: str) -> None:
    (workspace.root / "linked.py").write_text(FUNCTION.replace("WHERE", where))


def link(workspace: Workspace, path: str, target: str = "victim") -> None:
    place = workspace.root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(workspace.root / target)


def is_refused(ran: Ran, workspace: Workspace, path: str, status: int = 2) -> bool:
    assert ran.status == status, ran.err
    assert f"{workspace.root}/{path}: expected a folder, found a link" in ran.err
    (victim,) = (workspace.root / "victim").iterdir()
    return "victim" in victim.read_text()


@pytest.mark.parametrize("path", ["out/sub", "out/_rejects", "out/en", "out/a/b/c", "out/sub/_ledgerbeam-not"])
@pytest.mark.parametrize("existing", [None, "keep", "replace"])
def test_a_job_is_refused_before_anything_is_written(place: Workspace, path: str, existing: str | None) -> None:
    link(place, path)
    options = () if existing is None else ("--existing", existing)
    before = place.files(".")
    assert is_refused(place.run(*CONVERT, *options), place, path)
    assert place.files(".") == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ("map", "linked:routed", "in/**/*.jsonl", "--output", "out", "--to", "parquet", "--ledger", "L"),
        (
            *("split", "in/**/*.jsonl", "--by", "id", "--parts", "sub=9,b=1"),
            *("--output", "out", "--to", "jsonl", "--ledger", "L"),
        ),
        ("sort", "in/**/*.jsonl", "--by", "id", "--output", "out", "--to", "jsonl", "--ledger", "L"),
        ("convert", "in/**/*.jsonl", "--output", "out", "--to", "energon", "--ledger", "L"),
    ],
)
def test_every_command_that_writes_a_folder_refuses(place: Workspace, command: tuple[str, ...]) -> None:
    link(place, "out/sub")
    assert is_refused(place.run(*command), place, "out/sub")
    assert not (place.root / "L").exists()


def test_a_dry_run_says_that_the_job_would_be_refused(place: Workspace) -> None:
    link(place, "out/sub")
    for options in ((), ("--existing", "keep")):
        assert "found a link" in place.run(*CONVERT, "--dry-run", *options).out


def test_links_in_the_output_folder_of_another_job_are_its_own(place: Workspace) -> None:
    link(place, "out/other/sub")
    (place.root / "out/other/_ledgerbeam").mkdir()
    refuse_folder_links(f"{place.root}/out", owned_by="_ledgerbeam")


@pytest.mark.slow
def test_links_to_folders_that_are_no_part_of_the_path_below_the_output_are_followed(place: Workspace) -> None:
    (place.root / "disk/deep").mkdir(parents=True)
    (place.root / "out").rmdir()
    link(place, "way", "disk")
    link(place, "out", "way/deep")
    assert place.run(*CONVERT).status == 0
    assert len(list((place.root / "disk/deep").rglob("*.jsonl"))) == 2
    (place.root / "in/y.jsonl").write_text("{}\n{}\n")
    assert place.run(*CONVERT).status == 0


@pytest.mark.slow
@pytest.mark.parametrize("where", ["out/sub", "out/en"])
def test_a_link_that_comes_during_the_run_is_not_written_through(place: Workspace, where: str) -> None:
    write_function(place, where)
    function = "linked:routed" if where == "out/en" else "linked:plain"
    ran = place.run("map", function, *MAP[2:])
    assert is_refused(ran, place, where)


@pytest.mark.slow
def test_a_link_that_takes_the_place_of_a_folder_is_not_written_or_removed_through(place: Workspace) -> None:
    assert place.run(*CONVERT).status == 0
    (place.root / "out/sub").rename(place.root / "out-sub")
    link(place, "out/sub")
    (place.root / "in/sub/x.jsonl").write_text("{}\n")
    assert is_refused(place.run(*CONVERT), place, "out/sub")
    (place.root / "out/sub").unlink()
    (place.root / "out-sub").rename(place.root / "out/sub")
    assert place.run(*CONVERT).status == 0


@pytest.mark.slow
def test_a_link_with_the_name_of_a_shard_is_a_file_of_others(place: Workspace) -> None:
    name = "x.jsonl-0000000000.jsonl"
    link(place, f"out/sub/{name}", f"victim/{name}")
    place.run(*CONVERT, status=2, err=f"it has shards with names of this job, and no ledger owns them: sub/{name}")
    assert place.run(*CONVERT, "--existing", "keep").status == 0
    assert "victim" in (place.root / "victim" / name).read_text()


@pytest.mark.slow
def test_an_index_is_not_written_through_a_link_below_its_root(place: Workspace) -> None:
    link(place, "indexes/file")
    ran = place.run("index", "in/**/*.jsonl", "--index-root", "indexes", "--ledger", "L")
    assert is_refused(ran, place, "indexes/file", status=3)


def test_outputs_are_published_below_a_folder_only(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "victim").mkdir()
    (tmp_path / "out/link").symlink_to(tmp_path / "victim")
    root = f"{tmp_path}/out"
    with pytest.raises(UsageError, match="out/link: expected a folder, found a link"):
        publish_all([(f"{root}/plain/a", b"a"), (f"{root}/link/deep/b", b"b")], below=root)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["link", "out", "victim"]
    publish_all([(f"{root}/plain/a", b"a"), (f"{root}/b", b"b")], below=root)
    assert (tmp_path / "out/plain/a").read_bytes() == b"a"
    assert first_link(f"{root}/link", f"{root}/link/deep") is None
    refuse_links("s3://bucket/out", ["s3://bucket/out/link"])


def test_names_of_no_known_format_are_passed_over_and_counted(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", "b.tar.gz", "README.md", "_SUCCESS", "sub/notes.docx", "sub/c.1.jsonl", "x.jsonl.000001")
    found, left_out = listing(tmp_path, "**/*")
    assert found == ["a.jsonl", "b.tar.gz", "sub/c.1.jsonl", "x.jsonl.000001"]
    assert (left_out.own, left_out.passed_over) == (0, 3)
    assert Path(left_out.example).name in {"README.md", "_SUCCESS", "notes.docx"}
    (line,) = left_out.lines()
    assert line.startswith("passed over, since their names are not those of sources: 3 files, such as ")


def test_what_is_no_file_is_passed_over_where_its_name_is_not_that_of_a_source(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl")
    os.mkfifo(tmp_path / "control")
    (tmp_path / "latest").symlink_to("nothing")
    found, left_out = listing(tmp_path, "**/*")
    assert (found, left_out.passed_over) == (["a.jsonl"], 2)
    os.mkfifo(tmp_path / "b.jsonl")
    with pytest.raises(UsageError, match=r"b\.jsonl: expected a file .*, found a pipe"):
        listing(tmp_path, "**/*")


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
    found, left_out = listing(tmp_path, "a/*", "b/*")
    assert found == ["a/x.jsonl", "b/y.tar"]
    assert left_out.passed_over == 2
    assert listing(tmp_path, "a/*", "b/*.md")[1].passed_over == 2


def test_what_is_named_is_not_passed_over(tmp_path: Path) -> None:
    """Whoever reads it refuses it: a job by `recognize`."""
    write(tmp_path, "a.jsonl", "b.md", "c.md")
    assert listing(tmp_path, "a.jsonl", "b.md")[0] == ["a.jsonl", "b.md"]
    assert listing(tmp_path, "{a.jsonl,b.md}")[0] == ["a.jsonl", "b.md"]
    (tmp_path / "list").write_text(f"{tmp_path}/b.md\n")
    (page,) = SourceListing(sources_from=str(tmp_path / "list")).pages()
    assert page.urls == [f"{tmp_path}/b.md"]


def test_what_the_job_writes_is_not_counted_twice(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", "out/a-0000000000.jsonl", "out/_ledgerbeam/1.json", "x.md")
    found, left_out = listing(tmp_path, "**/*")
    assert found == ["a.jsonl"]
    assert (left_out.own, left_out.passed_over) == (2, 1)
    assert len(list(left_out.lines())) == 2


@pytest.mark.parametrize(
    ("names", "require", "error", "reason"),
    [
        ("a.md b.xyz", recognize, UsageError, r"none of the 2 matching names .*/a\.md: the name has no known format"),
        ("a.parquet", recognize_indexable, NotIndexableError, "is its index; leave this file out"),
        ("a.md", require_shard, SourceNotFoundError, "expected shards of Shar datasets"),
    ],
)
def test_nothing_but_such_names_is_an_error(
    tmp_path: Path, names: str, require: RequireSource, error: type[Exception], reason: str
) -> None:
    write(tmp_path, *names.split())
    with pytest.raises(error, match=reason):
        listing(tmp_path, "*", require=require)


def test_a_pattern_that_ends_like_a_source_looks_at_no_name(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", "b.jsonl", "c.jsonl")
    asked: list[str] = []
    assert len(listing(tmp_path, "*.jsonl", require=asked.append)[0]) == 3
    assert len(asked) == 1
    assert len(listing(tmp_path, "?.jsonl", "[a-b].jsonl", require=asked.append)[0]) == 3
    assert len(asked) == 3


def test_columns_are_no_sources_of_an_index(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", "b.parquet", "c.jsonl.bz2")
    found, left_out = listing(tmp_path, "*", require=recognize_indexable)
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
