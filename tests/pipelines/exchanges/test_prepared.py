"""What a call of an exchange asks for before it begins: its options, its stages, and what a run would do."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

import ledgerbeam
from ledgerbeam.errors import ChangedSourceError, FunctionError, SourceNotFoundError, UsageError
from ledgerbeam.io.exchange.slices import Merges, Partition
from ledgerbeam.io.listing.left_out import LeftOut
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.ledger import LedgerStore, Source
from ledgerbeam.ledger.model.rows import Leaf, Output
from ledgerbeam.ledger.opening import open_local_store
from ledgerbeam.pipelines.calls.call import Values, read_values, spec_of
from ledgerbeam.pipelines.calls.job_values import gather_values, key_choice, output_values
from ledgerbeam.pipelines.dedup.exact import check_scattered, forget_unscattered
from ledgerbeam.pipelines.exchange.jobs import GatherJob
from ledgerbeam.pipelines.exchange.partition import KeyChoice
from ledgerbeam.pipelines.exchange.stages import GATHER
from ledgerbeam.pipelines.jobs.claim import open_job
from ledgerbeam.pipelines.jobs.listing import listed_pages
from ledgerbeam.pipelines.jobs.shard_job import OutputCompression
from ledgerbeam.pipelines.jobs.spec import FinishedStage, JobSpec, Stage, StageSources
from ledgerbeam.pipelines.outputs.columns import ColumnLayout
from ledgerbeam.pipelines.runners.stage_loop import PreparedCall
from tests.cases import each
from tests.pipelines.exchanges.in_process import marking, prepared
from tests.pipelines.exchanges.stages import write_jsonl

HOW: dict[str, Any] = {"to": "jsonl", "output": "out", "ledger": "L"}

sort = partial(ledgerbeam.sort, ["in/*"], **HOW)
join = partial(ledgerbeam.join, ["in/*"], ["right/*.jsonl"], by="k", **HOW)
dedup = partial(ledgerbeam.dedup, ["in/*"], by="k", **HOW)
near = partial(ledgerbeam.dedup, ["in/*"], near="text", **HOW)
verify = partial(near, threshold=0.8, verify=True)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in "abc":
        write_jsonl(tmp_path / "in" / f"{name}.jsonl", [{"k": 1}])
    write_jsonl(tmp_path / "right" / "r.jsonl", [{"k": 1, "m": 1}])
    (tmp_path / "in" / "README").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def stores() -> Iterator[list[LedgerStore]]:
    made: list[LedgerStore] = []
    yield made
    for store in made:
        store.close()


def staged(call: Callable[..., Any], **values: Any) -> PreparedCall:
    found = prepared(call, **values)
    assert found.has_stages
    return found


def names(jobs: list[Any]) -> list[str]:
    """Return the ledgers of jobs, below that of the call."""
    return [Path(job.ledger).relative_to(Path("L").resolve()).as_posix() for job in jobs]


CALLS: dict[str, tuple[Callable[..., Any], str, dict[str, str]]] = {
    "sort": (partial(sort, by="k"), "sort", {"scatter": "scatter", "gather": "."}),
    "join": (join, "join", {"right": "right", "left": "left", "gather": "."}),
    "dedup": (dedup, "dedup", {"scatter": "decide/scatter", "decide": "decide", "dedup": "."}),
    "marks": (marking(dedup), "dedup", {"scatter": "decide/scatter", "decide": "decide", "dedup": "."}),
    "near": (
        near,
        "dedup",
        {"scatter": "cluster/pairs/scatter", "pairs": "cluster/pairs", "cluster": "cluster", "dedup": "."},
    ),
    "verify": (
        verify,
        "dedup",
        {
            "scatter": "cluster/pairs/scatter",
            "pairs": "cluster/pairs",
            "cluster": "cluster",
            "texts": "texts",
            "verify": "verify",
            "dedup": ".",
        },
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_plan_has_the_stages_in_the_order_in_which_they_run(name: str) -> None:
    call, command, stages = CALLS[name]
    found = staged(call)
    plan = found.job.plan()
    assert found.command == command
    assert dict(zip([stage.name for stage in plan], names([stage.job for stage in plan]), strict=True)) == stages
    assert names(found.stages()) == [*reversed(stages.values())]
    first = 2 if name == "join" else 1
    assert names(found.readers()) == [*stages.values()][:first]
    assert found.checked_options() == []
    assert found.how.keep_runs is False
    assert staged(call, keep_runs=True).how.keep_runs is True


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_is_only_looked_at_makes_nothing_and_tells_what_it_would_do(folder: Path, name: str) -> None:
    call, command, *_ = CALLS[name]
    before = sorted(folder.rglob("*"))
    found = call(dry_run=True)
    assert (found.command, found.complete, found.ledger, found.output) == (
        command,
        False,
        str(folder / "L"),
        str(folder / "out"),
    )
    number = 4 if name == "join" else 3
    assert found.summary["sources"]["new"] == found.summary["tasks"] == number
    assert (found.summary["ledger"], found.summary["passed_over"]) == (found.ledger, 1)
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("call", [partial(sort, by="k"), dedup, join])
def test_options_that_can_mean_nothing_are_refused_first(call: Callable[..., Any]) -> None:
    for dry_run in (True, False):
        with pytest.raises(UsageError, match="NoSuchRunner"):
            call(options=["--runner=NoSuchRunner"], dry_run=dry_run)


@pytest.mark.parametrize(
    "call",
    [
        partial(ledgerbeam.sort, ["none/*.jsonl"]),
        partial(ledgerbeam.dedup, ["none/*.jsonl"]),
        partial(ledgerbeam.join, ["none/*.jsonl"], ["right/*"]),
        partial(ledgerbeam.join, ["in/*"], ["none/*.jsonl"]),
    ],
)
def test_a_pattern_that_matches_nothing_makes_no_ledger(folder: Path, call: Callable[..., Any]) -> None:
    with pytest.raises(SourceNotFoundError, match="nothing matches"):
        call(by="k", **HOW)
    assert not (folder / "L").exists()
    assert not (folder / "out").exists()


def listed(job: JobSpec) -> list[Source]:
    pages = listed_pages(job, lambda _: None, LeftOut())
    return [source for page in pages for source in map(Source, page.urls, page.sizes, page.versions)]


def scattered(job: JobSpec, stores: list[LedgerStore]) -> list[Source]:
    """Make the ledger of a first stage hold all of its sources as complete."""
    store = open_local_store(job.ledger, create=True)
    stores.append(store)
    store.open_job(job.identity())
    sources = listed(job)
    store.register(sources)
    store.commit([done(source) for source in sources])
    return sources


def done(source: Source) -> Leaf:
    return Leaf(source.id, (), "published", (Output(f"{source.id.hex()}.run", 3, "x", 1),), 1, 1)


def test_a_call_whose_sources_are_all_scattered_would_begin_with_what_is_made_of_them(
    folder: Path, stores: list[LedgerStore]
) -> None:
    call = staged(sort, by="k")
    stores.append(open_local_store(call.job.ledger, create=True))
    stores[-1].open_job(call.job.identity())
    scattered(call.readers()[0], stores)
    found = sort(by="k", dry_run=True)
    assert found.complete
    assert found.summary["sources"]["complete"] == 3
    (folder / "in" / "a.jsonl").unlink()
    found = sort(by="k", dry_run=True)
    assert found.complete
    assert (found.summary["sources"]["complete"], found.summary["sources"]["gone"]) == (2, 1)
    write_jsonl(folder / "in" / "d.jsonl", [{"k": 2}])
    assert not sort(by="k", dry_run=True).complete
    other = sort(by="other", dry_run=True).summary
    assert (other["new"], any("by" in difference for difference in other["differences"])) == (False, True), other


@pytest.mark.parametrize(("existing", "number"), [(None, 1), ("keep", 0)])
def test_a_call_that_is_only_looked_at_tells_that_its_folder_is_of_others(
    folder: Path, existing: Any, number: int
) -> None:
    write_jsonl(folder / "out" / "a.jsonl-0000000000.jsonl", [])
    refused = sort(by="k", existing=existing, dry_run=True).summary["refused"]
    assert len(refused) == number
    assert all("no ledger owns them" in line for line in refused)


def test_a_call_that_is_only_looked_at_tells_the_schema_of_what_it_would_write() -> None:
    columns = sort(by="k", to="parquet", dry_run=True).summary["schema"]["columns"]
    assert list(columns) == ["k"]
    assert "schema" not in sort(by="k", dry_run=True).summary


def test_what_was_decided_of_an_exchange_holds_when_its_ledger_is_opened_again(
    folder: Path, stores: list[LedgerStore]
) -> None:
    found = []
    for name in "de":
        write_jsonl(folder / "in" / f"{name}.jsonl", [{"k": f"{name}{n}"} for n in range(50)])
        one = open_job(staged(sort, by="k", bucket_bytes=300).job, "refuse", None)
        stores.append(one.store)
        found.append(cast(GatherJob, one.job).partition)
    first, again = found
    assert first is not None
    assert first.buckets > 1
    assert again == first


def finished(job: JobSpec, stores: list[LedgerStore]) -> FinishedStage:
    scattered(job, stores)
    return FinishedStage(job, stores[-1], StageSources(job, iter(())))


def pages_of(sources: list[Source]) -> list[Page]:
    return [Page([one.url for one in sources], [one.size for one in sources], [one.version for one in sources])]


def test_what_is_listed_must_have_been_scattered(stores: list[LedgerStore]) -> None:
    call = staged(dedup)
    (reader,) = call.readers()
    scatter = finished(reader, stores)
    sources = listed(reader)
    job: Any = call.job
    check_scattered(job, pages_of(sources), scatter)
    changed = dataclasses.replace(sources[0], version="other")
    with pytest.raises(ChangedSourceError, match="sources have changed since the first stage"):
        check_scattered(job, pages_of([*sources[1:], changed]), scatter)
    with pytest.raises(ChangedSourceError, match="sources have changed since the first stage"):
        check_scattered(job, pages_of([*sources, changed]), scatter)  # one more, of which nothing is done
    with pytest.raises(ChangedSourceError, match="sources have changed since the first stage"):
        check_scattered(job, pages_of(sources[1:]), scatter)
    scatter.store.note_listing(scatter.store.begin_run({"token": "t"}), listed=2, finished=True, gone=[sources[0].id])
    check_scattered(job, pages_of(sources[1:]), scatter)


def test_what_a_runner_has_found_by_itself_is_forgotten(stores: list[LedgerStore]) -> None:
    (reader,) = staged(dedup).readers()
    store = finished(reader, stores).store
    ids = [one for page in store.source_ids() for one in page]
    forget_unscattered(ids, store)
    assert store.completed_count() == 3
    with pytest.raises(ChangedSourceError, match="1 source changed during this run"):
        forget_unscattered(ids[1:], store)
    assert store.completed_mask(ids) == [False, True, True]
    store.note_listing(store.begin_run({"token": "t"}), listed=1, finished=True, gone={*ids[:2]})
    forget_unscattered(ids[2:], store)
    assert store.completed_mask(ids) == [False, True, True]


@pytest.mark.parametrize(("name", "merge"), [(GATHER, "merge-{}"), ("pairs", "pairs/merge-{}")])
def test_a_stage_that_reads_run_files_has_a_name_of_its_own(name: str, merge: str) -> None:
    whole = cast(GatherJob, staged(sort, by="k").job)
    job = dataclasses.replace(whole, partition=Partition(2, merges=Merges(2, 3)))
    found: list[Stage] = [job.stage(name)]
    while inputs := found[-1].inputs():
        found += inputs
    assert [stage.name for stage in found] == [name, merge.format(2), merge.format(1), "scatter"]
    assert found[-1].target == whole.output
    assert [stage.job for stage in found[1:3]] == [job.merge(2), job.merge(1)]
    assert whole.stage(name).with_job(job) == job.stage(name)


def key_of(record: Any) -> Any:
    return record["k"]


def nothing() -> None:
    """Take no record."""


def values(**options: Any) -> Values:
    return read_values(spec_of("shuffle"), (["in/*.jsonl"],), {"to": "jsonl", "output": "/out/", **options})


def written(to: str = "jsonl", **options: Any) -> Any:
    return output_values(values(to=to, **options))


def gathered(**options: Any) -> Any:
    found = gather_values(values(**options))
    return {name: found[name] for name in ("bucket_bytes", "shard_bytes", "max_slices", *written())}


def test_what_an_exchange_writes_is_as_large_as_it_is_told() -> None:
    plain = {"output": "/out", "to": "jsonl", "layout": None, "compression": None}
    assert written() == plain
    assert gathered() == {**plain, "bucket_bytes": None, "shard_bytes": 64 * 2**20, "max_slices": 10_000_000}
    assert gathered(bucket_bytes="2K", shard_bytes=7)["bucket_bytes"] == 2048


@pytest.mark.parametrize("name", ["shard_bytes", "bucket_bytes", "max_slices"])
def test_a_size_that_is_none_is_named(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name}: "):
        gathered(**{name: "much"})


def test_columns_and_compression_reach_what_is_written(tmp_path: Path) -> None:
    columns = written("parquet", row_group_bytes="1M", page_bytes="8K")
    assert columns["layout"] == ColumnLayout(row_group_bytes=2**20, page_bytes=8192)
    assert written(compress="zstd:5", frame="1M")["compression"] == OutputCompression(5, 2**20)
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps({"columns": {"a": "int64"}}))
    assert "int64" in written("arrow", schema=schema)["layout"].schema


@pytest.mark.parametrize("to", ["webdataset", "energon", "lit"])
def test_a_tar_with_metadata_is_made_of_a_plain_one(to: str) -> None:
    with pytest.raises(UsageError, match=rf"to: this job cannot write the metadata of '{to}'.*publish .* --as {to}"):
        written(to)


def test_a_key_is_of_fields_or_of_a_function() -> None:
    assert key_choice("a,b.c", "hash") == KeyChoice("hash", ("a", "b.c"))
    assert key_choice("a", "key", descending=True, nulls="first") == KeyChoice(
        "key", ("a",), descending=True, nulls="first"
    )
    for by in (f"{__name__}:key_of", key_of):
        found = key_choice(by, "key", descending=True, nulls="first")
        assert (found.scheme, found.fields, found.descending, found.nulls) == ("key", (), True, "first")
        assert found.function is not None
        assert str(found).endswith(":key_of")
        assert found.made_of
    with pytest.raises(UsageError, match="expected names of fields"):
        key_choice(["a", ""], "hash")
    with pytest.raises(FunctionError, match="expected a function of one record"):
        key_choice(f"{__name__}:nothing", "hash")


JOIN = {"by": "id", "to": "jsonl", "output": "/out"}


def joined(how: str, suffix: str | None, under: str | None) -> Any:
    job: Any = prepared(partial(ledgerbeam.join, "a.jsonl", "b.jsonl"), how=how, suffix=suffix, as_=under, **JOIN).job
    return job.suffix, job.under


@each(
    ("how", "suffix", "under", "said"),
    [
        ("semi", "_r", None, "--how semi writes records of the left side alone: leave --suffix and --as out"),
        ("anti", None, "right", "--how anti writes records of the left side alone: leave --suffix and --as out"),
        ("left", "_r", "right", "--as makes one field of the right record, and --suffix renames fields of it"),
        ("left", "", None, "--suffix and --as: expected a text, found an empty one"),
        ("inner", None, "", "--suffix and --as: expected a text, found an empty one"),
        ("semi", None, None, ""),
        ("left", "_r", None, ""),
        ("inner", None, "right", ""),
    ],
)
def test_names_of_joined_fields(how: str, suffix: str | None, under: str | None, said: str) -> None:
    if not said:
        assert joined(how, suffix, under) == (suffix, under)
        return
    with pytest.raises(UsageError, match=said):
        joined(how, suffix, under)


def deduplicated(**options: Any) -> Any:
    given = {name: value for name, value in {"to": "jsonl", "output": "/out", **options}.items() if value is not None}
    return prepared(partial(ledgerbeam.dedup, "a.jsonl"), **given).job


@each(
    ("options", "expected"),
    [
        ({"by": "k"}, KeyChoice("digest", ("k",))),
        ({"content": True}, KeyChoice("content")),
        ({"near": "text"}, KeyChoice("digest", ("text",))),
    ],
)
def test_duplicates_have_a_key_or_their_content_or_a_text_in_common(
    options: dict[str, Any], expected: KeyChoice
) -> None:
    assert deduplicated(**options).key == expected


@each(
    ("options", "said"),
    [
        ({}, "expected one rule for duplicates"),
        ({"by": "k", "content": True}, "expected one rule for duplicates"),
        ({"by": "k", "near": "text"}, "expected one rule for duplicates"),
        ({"near": "text", "content": True}, "expected one rule for duplicates"),
        ({"near": "a,b"}, "near: expected one field, or a function that returns a text, found 'a,b'"),
        ({"by": "k", "ngram": 5}, "give --near FIELD"),
        ({"by": "k", "cluster_bytes": "1G"}, "give --near FIELD"),
        ({"by": "k", "verify": True}, "give --near FIELD"),
        ({"near": "text", "cluster_bytes": "much"}, "cluster_bytes: "),
        ({"near": "text", "minhash": "14"}, "minhash: expected BANDSxROWS such as 14x8"),
        ({"near": "text", "minhash": "0x8"}, "found '0x8'"),
        ({"near": "text", "minhash": "999x999"}, "together at most 4,096 hashes"),
        ({"near": "text", "ngram": 0}, "ngram: expected a whole number from 1"),
        ({"near": "text", "threshold": 1.5}, "threshold: expected a share between 0 and 1"),
        ({"near": "text", "against": ["/L", "/L"]}, "--against /L: the ledger is given twice"),
        ({"near": "text", "verify": True}, "from which texts are near: give --threshold SHARE"),
        ({"near": "text", "verify": True, "minhash": "14x8"}, "from which texts are near: give --threshold SHARE"),
        ({"near": "text", "verify": True, "threshold": 1.5}, "threshold: expected a share between 0 and 1"),
        ({"near": "text", "verify": True, "threshold": 0.8, "minhash": "14"}, "minhash: expected BANDSxROWS"),
        ({"near": "text", "threshold": 0.8, "minhash": "14x8"}, "leave one out, or add --verify"),
        ({"near": "text", "mark": True}, "--mark writes columns: leave --to out"),
        ({"by": "k", "mark": True, "pack": "1M", "compress": "zstd"}, "leave --to and --pack and --compress out"),
        ({"by": "k", "mark": True, "to": None, "frame": "1K", "schema": "s"}, "leave --frame and --schema out"),
        ({"by": "k", "to": None}, "give --to FORMAT, or --mark for columns"),
    ],
)
def test_options_of_dedup_that_mean_nothing_together(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        deduplicated(**options)
