"""What the options that the calls of exchanges share are read as, and which of them mean nothing together."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.errors import FunctionError, UsageError
from ledgerbeam.pipelines.calls.call import Values, read_values, spec_of
from ledgerbeam.pipelines.calls.dedup import dedup
from ledgerbeam.pipelines.calls.exchanges import join
from ledgerbeam.pipelines.calls.job_values import gather_values, key_choice, output_values
from ledgerbeam.pipelines.exchange.partition import KeyChoice
from ledgerbeam.pipelines.jobs.shard_job import OutputCompression
from ledgerbeam.pipelines.outputs.columns import ColumnLayout
from tests.cases import each
from tests.pipelines.exchanges.in_process import prepared


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
    with pytest.raises(UsageError, match=rf"to: expected a format of files, found '{to}': .*publish --as {to}"):
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
    job: Any = prepared(partial(join, "a.jsonl", "b.jsonl"), how=how, suffix=suffix, as_=under, **JOIN).job
    return job.suffix, job.under


@each(
    ("how", "suffix", "under", "said"),
    [
        ("semi", "_r", None, "--how semi writes records of the left side alone: leave --suffix and --as out"),
        ("anti", None, "right", "--how anti writes records of the left side alone: leave --suffix and --as out"),
        ("left", "_r", "right", "--as gives all of the right side one field, and --suffix its fields other names"),
        ("left", "", None, "expected a text behind --suffix and --as, found none"),
        ("inner", None, "", "expected a text behind --suffix and --as, found none"),
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
    return prepared(partial(dedup, "a.jsonl"), **{"to": "jsonl", "output": "/out", **options}).job


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
        ({}, "one of the three"),
        ({"by": "k", "content": True}, "one of the three"),
        ({"by": "k", "near": "text"}, "one of the three"),
        ({"near": "a,b"}, "near: expected one field or function that gives a text, found 'a,b'"),
        ({"by": "k", "ngram": 5}, "give --near FIELD"),
        ({"near": "text", "against": ["/L", "/L"]}, "--against /L: it is given twice"),
        ({"near": "text", "verify": True}, "give --threshold SHARE"),
        ({"near": "text", "threshold": 0.8, "minhash": "14x8"}, "leave one of them out, or give --verify"),
        ({"by": "k", "mark": True, "to": "tar"}, "--mark writes plain lines: .* found --to tar"),
        ({"by": "k", "mark": True, "compress": "zstd"}, "--mark writes plain lines: .* found --to jsonl"),
    ],
)
def test_options_of_dedup_that_mean_nothing_together(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        deduplicated(**options)
