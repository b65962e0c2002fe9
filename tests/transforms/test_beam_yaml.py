"""Transforms that are made of the plain values of a YAML file; `examples.test_pipeline_yaml` runs one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.errors import JobMismatchError, LedgerError, UsageError
from ledgerbeam.io import TarFormat
from ledgerbeam.iterators.job_source import GraphSource
from ledgerbeam.ledger.model.user_modules import user_modules
from ledgerbeam.ledger.places import open_store
from ledgerbeam.opening import open_ledger
from ledgerbeam.sources import FileSources
from ledgerbeam.transforms import beam_yaml

GRAPH = "examples.mixture:train"
FUNCTION = "json:loads"


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    """A ledger of a job."""
    url = str(tmp_path / "L")
    beam_yaml.SkipCompleted(f"{url}/", "job", parameters={"n": 1}, functions=[FUNCTION])
    return url


def test_a_listing_is_of_patterns_or_a_list_or_a_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found: Any = beam_yaml.ReadListing(["in/*.jsonl", "gcs://b/x"], storage_options={"anon": True})
    assert found.listing.patterns == (f"{tmp_path}/in/*.jsonl", "gs://b/x")
    assert (found.listing.sources_from, found.listing.storage_options) == (None, {"anon": True})
    found = beam_yaml.ReadListing(sources_from="list")
    assert (found.listing.patterns, found.listing.sources_from) == ((), f"{tmp_path}/list")
    found = beam_yaml.ReadListing(graph=GRAPH, epochs=3)
    assert found.listing == GraphSource(GRAPH, 3)
    assert beam_yaml.ReadListing(graph=GRAPH).listing == GraphSource(GRAPH, 1)  # type: ignore[attr-defined]
    for others in ({"patterns": ["x"]}, {"sources_from": "list"}):
        with pytest.raises(UsageError, match="give it without patterns and sources_from"):
            beam_yaml.ReadListing(graph=GRAPH, **others)


def test_the_ledger_is_made_for_the_job(ledger: str) -> None:
    store = open_store(ledger, create=False)
    job = store.job()
    store.close()
    assert job is not None
    made_of = user_modules(FUNCTION)
    assert (job.pipeline, dict(job.parameters)) == ("job", {"n": 1, "functions": {FUNCTION: made_of}})
    skip: Any = beam_yaml.SkipCompleted(ledger, "job", parameters={"n": 1}, functions=[FUNCTION])
    assert (skip.ledger.url, skip.ledger.job) == (ledger, job.fingerprint)


def test_a_ledger_of_another_job_is_refused_unless_that_is_wanted(ledger: str) -> None:
    for other in ({"parameters": {"n": 2}, "functions": [FUNCTION]}, {"parameters": {"n": 1}}):
        with pytest.raises(JobMismatchError):
            beam_yaml.SkipCompleted(ledger, "job", **other)
    with pytest.raises(UsageError, match="expected refuse, restart or accept, found 'ignore'"):
        beam_yaml.SkipCompleted(ledger, "job", on_job_change="ignore")
    for choice in ("restart", "accept"):
        beam_yaml.SkipCompleted(ledger, choice, on_job_change=choice)


def test_what_comes_before_the_job_is_refused(tmp_path: Path) -> None:
    url = str(tmp_path / "new")
    for make in (beam_yaml.CommitTasks, beam_yaml.PlanTasks, beam_yaml.ReadTasks):
        with pytest.raises(LedgerError, match="SkipCompleted of the same ledger must come before"):
            make(url)


def test_each_transform_is_given_what_it_needs(ledger: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = {"anon": True}
    commit: Any = beam_yaml.CommitTasks(f"{ledger}/")
    assert commit.ledger.url == ledger
    plan: Any = beam_yaml.PlanTasks(
        ledger, task_bytes=7, task_records=8, group="key", index_root="idx/", storage_options=options
    )
    made = plan.plan
    assert (made.task_bytes, made.task_records, made.ledger.storage_options) == (7, 8, options)
    read: Any = beam_yaml.ReadTasks(ledger, group="key", index_root="idx/", storage_options=options)
    for opened in (made.sources, read.sources):
        assert (opened.formats, opened.index.root) == ((TarFormat("key"),), f"{tmp_path}/idx")
        assert opened.storage_options == options
    assert read.ledger == made.ledger
    assert beam_yaml.ReadTasks(ledger).sources == FileSources((TarFormat(),))  # type: ignore[attr-defined]
    assert beam_yaml.ReadTasks(ledger, graph=GRAPH).sources == GraphSource(GRAPH)  # type: ignore[attr-defined]
    assert beam_yaml.PlanTasks(ledger, graph=GRAPH).plan.sources == GraphSource(GRAPH)  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="expected auto, pairs or key, found 'keys'"):
        beam_yaml.ReadTasks(ledger, group="keys")


def test_the_ledger_is_reached_with_the_options_of_its_store(ledger: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def noting(url: str, options: Any, **more: Any) -> Any:
        given.append(options)
        return open_ledger(url, {}, **more)

    monkeypatch.setattr(beam_yaml, "open_ledger", noting)
    options = {"endpoint_url": "http://store"}
    beam_yaml.SkipCompleted(ledger, "job", parameters={"n": 1}, functions=[FUNCTION], storage_options=options)
    beam_yaml.MapRecords(ledger, FUNCTION, "jsonl", storage_options=options)
    for make in (beam_yaml.PlanTasks, beam_yaml.ReadTasks, beam_yaml.CommitTasks):
        make(ledger, storage_options=options)
    beam_yaml.WriteTasks(ledger, "/out", "jsonl", storage_options=options)
    assert len(given) >= 6
    assert all(one == options for one in given)


def test_a_function_must_be_one_that_the_job_knows(ledger: str) -> None:
    made: Any = beam_yaml.MapRecords(ledger, FUNCTION, "jsonl")
    assert (made.function.reference, made.function.output_format, made.ledger.url) == (FUNCTION, "jsonl", ledger)
    with pytest.raises(UsageError, match="expected 'json:dumps' among the functions of SkipCompleted"):
        beam_yaml.MapRecords(ledger, "json:dumps", "jsonl")
    with pytest.raises(Exception, match="cannot be imported"):
        beam_yaml.MapRecords(ledger, "missing_module_x:f", "jsonl")


def test_names_of_outputs_are_relative_to_what_is_read(
    ledger: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def base(**given: Any) -> str | None:
        made: Any = beam_yaml.WriteTasks(ledger, "out", "tar", storage_options={"anon": True}, **given)
        assert (made.output, made.to, made.storage_options) == (f"{tmp_path}/out", "tar", {"anon": True})
        assert made.ledger.url == ledger
        found: str | None = made.base
        return found

    assert base(base="in", patterns=["x/*.tar"]) == f"{tmp_path}/in/"
    assert base(patterns=["in/a/*.tar", "in/b/*.tar"]) == f"{tmp_path}/in/"
    assert base() is None
    assert base(graph=GRAPH, base="in") == f"{GraphSource(GRAPH).base.rstrip('/')}/"


def test_the_values_of_a_job_are_those_of_its_function(tmp_path: Path) -> None:
    url, function = str(tmp_path / "L"), "textwrap:shorten"
    beam_yaml.SkipCompleted(url, "job", functions=[function])
    with pytest.raises(UsageError, match="textwrap:shorten needs 'width'"):
        beam_yaml.MapRecords(url, function, "jsonl")
    beam_yaml.SkipCompleted(url, "job", functions=[function], values={"width": 9}, on_job_change="restart")
    made: Any = beam_yaml.MapRecords(url, function, "jsonl", batch=4, on_error="reject")
    assert (made.function.batch, made.function.on_error) == (4, "reject")
    assert made.function.set_up().call("some long words") == "[...]"
    with pytest.raises(JobMismatchError, match="width"):
        beam_yaml.SkipCompleted(url, "job", functions=[function], values={"width": 8})
    with pytest.raises(UsageError, match="on_error"):
        beam_yaml.ReadTasks(url, on_error="ignore")


def test_a_batch_that_shapes_the_outputs_is_one_of_the_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "yaml_batches.py").write_text("def work(records): return records\nwork.batch_invariant = False\n")
    monkeypatch.syspath_prepend(tmp_path)
    url, function = str(tmp_path / "L"), "yaml_batches:work"
    beam_yaml.SkipCompleted(url, "job", parameters={"batch": 4}, functions=[function])
    assert beam_yaml.MapRecords(url, function, "jsonl", batch=4)
    with pytest.raises(UsageError, match="expected batch: 5 among the parameters of SkipCompleted, found 4"):
        beam_yaml.MapRecords(url, function, "jsonl", batch=5)
