"""Transforms that are made of the plain values of a YAML file; `examples.test_pipeline_yaml` runs one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ledgerbeam import transforms
from ledgerbeam.errors import FunctionError, UsageError
from ledgerbeam.transforms import beam_yaml

GRAPH = "examples.mixture:train"
FUNCTION = "textwrap:shorten"


def test_a_listing_is_of_patterns_or_a_list_or_a_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found: Any = beam_yaml.ReadListing(["in/*.jsonl", "gcs://b/x"], group="key", index_root="idx/", columns=["a"])
    assert found.patterns == (f"{tmp_path}/in/*.jsonl", "gs://b/x")
    assert (found.sources_from, found.graph, found.group) == (None, None, "key")
    assert (found.index_root, found.columns, found.base) == (f"{tmp_path}/idx", ("a",), None)
    found = beam_yaml.ReadListing(sources_from="list", base="in")
    assert (found.patterns, found.sources_from, found.base) == ((), f"{tmp_path}/list", f"{tmp_path}/in/")
    found = beam_yaml.ReadListing(graph=GRAPH, epochs=3)
    assert (found.graph, found.epochs) == (GRAPH, 3)
    for others in ({"patterns": ["x"]}, {"sources_from": "list"}):
        with pytest.raises(UsageError, match="pass one of them"):
            beam_yaml.ReadListing(graph=GRAPH, **others)
    with pytest.raises(UsageError, match="expected auto, pairs or key, found 'keys'"):
        beam_yaml.ReadListing(["x"], group="keys")


def test_each_transform_is_given_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert isinstance(beam_yaml.SkipCompleted(), transforms.SkipCompleted)
    assert isinstance(beam_yaml.CommitTasks(), transforms.CommitTasks)
    plan: Any = beam_yaml.PlanTasks(task_bytes=7, task_records=8)
    assert (plan.task_bytes, plan.task_records) == (7, 8)
    read: Any = beam_yaml.ReadTasks("reject")
    assert read.on_error == "reject"
    written: Any = beam_yaml.WriteTasks("out", "tar")
    assert (written.output, written.to) == (f"{tmp_path}/out", "tar")
    with pytest.raises(UsageError, match="on_error"):
        beam_yaml.ReadTasks("ignore")


def test_an_exchange_is_of_plain_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scatter: Any = beam_yaml.Scatter("runs", "a.b,c", order="hash", buckets=7)
    assert (scatter.output, scatter.keys.fields, scatter.scheme, scatter.buckets) == (
        f"{tmp_path}/runs",
        ("a.b", "c"),
        "hash",
        7,
    )
    scatter = beam_yaml.Scatter("runs", "a", descending=True, nulls="first", bucket_bytes=9)
    assert (scatter.order.descending, scatter.order.nulls, scatter.bucket_bytes) == (True, "first", 9)
    found: Any = beam_yaml.ReadBuckets("runs", "progress", whole_keys=False, keep_runs=True)
    assert (found.runs, found.ledger) == (f"{tmp_path}/runs", f"{tmp_path}/progress")
    assert (found.whole_keys, found.keep_runs) == (False, True)
    kept: Any = beam_yaml.KeepRecords("tar")
    assert kept.function.output_format == "tar"
    groups: Any = beam_yaml.GroupRecords("operator:add", "jsonl", "url")
    assert (groups.function.reference, groups.function.by) == ("operator:add", "url")
    with pytest.raises(FunctionError, match="expected a function of the key and its records"):
        beam_yaml.GroupRecords("json:loads", "jsonl", "url")


def test_a_function_is_looked_at_before_anything_runs() -> None:
    made: Any = beam_yaml.MapRecords(FUNCTION, "jsonl", values={"width": 9}, batch=4, on_error="reject")
    assert (made.function.reference, made.function.output_format) == (FUNCTION, "jsonl")
    assert (made.function.batch, made.function.on_error) == (4, "reject")
    assert made.function.set_up().call("some long words") == "[...]"
    with pytest.raises(UsageError, match="textwrap:shorten needs 'width'"):
        beam_yaml.MapRecords(FUNCTION, "jsonl")
    with pytest.raises(FunctionError, match="there is no module"):
        beam_yaml.MapRecords("missing_module_x:f", "jsonl")
