"""Files of columns as sources: cut between row groups and inside large ones, and read by rows, on every store."""

from __future__ import annotations

import dataclasses
import os
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerbeam.errors import ChangedSourceError, UsageError
from ledgerbeam.io import ArrowFormat, ParquetFormat, TarFormat, publish_bytes
from ledgerbeam.io.columns.format import ColumnFileFormat
from ledgerbeam.io.formats.format import RowGroup
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.io.storage.stat import stat
from ledgerbeam.ledger import Source
from ledgerbeam.sources import FileSources, TaskLimits
from ledgerbeam.sources.files import ColumnFile
from ledgerbeam.sources.kind import LEAST_ROW, MOST_EXPANSION, plan_rows
from tests.io.columns.tables import arrow_bytes, parquet_bytes, table
from tests.io.conftest import Place, place, s3_place  # noqa: F401 - fixtures

CONTENTS = {"a.parquet": parquet_bytes(table(90, "int64", "string"), row_group_size=10)}
CONTENTS["a.arrow"] = arrow_bytes(table(90, "int64", "string"), 10)


def source_of(url: str, options: dict[str, object] | None = None) -> Source:
    found = stat(url, options)
    return Source(found.url, found.size, found.version)


def size_of(group: RowGroup) -> int:
    return max(group.size, group.rows * LEAST_ROW, group.plain_size // MOST_EXPANSION)


GROUPS = st.lists(st.builds(RowGroup, st.integers(0, 50), st.integers(0, 5000), st.integers(0, 50_000)), max_size=12)


@given(GROUPS, st.none() | st.integers(1, 10_000), st.none() | st.integers(1, 100))
def test_spans_are_all_rows_in_order(groups: list[RowGroup], task_bytes: int | None, task_records: int | None) -> None:
    spans = plan_rows(groups, task_bytes=task_bytes, task_records=task_records)
    count = sum(group.rows for group in groups)
    edges = [start for start, _ in spans] + [stop for _, stop in spans[-1:]]
    assert edges == sorted(set(edges))
    assert spans == list(pairwise(edges))
    assert (edges[0], edges[-1]) == (0, count) if spans else count == 0
    if task_records:
        assert all(stop - start <= task_records for start, stop in spans)
    if task_bytes:
        whole = {
            row
            for group, first in zip(groups, accumulate((g.rows for g in groups), initial=0), strict=False)
            if size_of(group) <= task_bytes
            for row in range(first + 1, first + group.rows)
        }
        assert task_records or whole.isdisjoint(edges)
        sizes = [
            (first, first + g.rows, size_of(g))
            for g, first in zip(groups, accumulate((g.rows for g in groups), initial=0), strict=False)
        ]
        for start, stop in spans:
            held = [size for first, end, size in sizes if start <= first and end <= stop and end > first]
            assert len(held) < 2 or sum(held) <= task_bytes


def test_row_groups_stay_whole_until_one_exceeds_a_task() -> None:
    small, large = RowGroup(10, 1000), RowGroup(10, 3500)
    assert plan_rows([small] * 4, task_bytes=2000) == [(0, 20), (20, 40)]
    assert plan_rows([small] * 4, task_bytes=1900) == [(0, 10), (10, 20), (20, 30), (30, 40)]
    assert plan_rows([small, large, small], task_bytes=1000) == [
        (0, 10),
        (10, 12),
        (12, 15),
        (15, 17),
        (17, 20),
        (20, 30),
    ]
    assert plan_rows([RowGroup(1000, 1)], task_bytes=LEAST_ROW * 500) == [(0, 500), (500, 1000)]
    assert plan_rows([RowGroup(2, 10**6)], task_bytes=1) == [(0, 1), (1, 2)]
    assert plan_rows([RowGroup(100, 10**4, 8 * 10**4)], task_bytes=10**4) == [(0, 100)]
    assert plan_rows([RowGroup(100, 10**3, 16 * 10**4)], task_bytes=10**4) == [(0, 50), (50, 100)]
    empty = RowGroup(0, 200)  # it takes room, too
    assert plan_rows([RowGroup(10, 900), empty, RowGroup(10, 700)], task_bytes=1000) == [(0, 10), (10, 20)]


@given(GROUPS, st.integers(1, 10_000))
def test_a_span_has_as_many_whole_row_groups_as_fit(groups: list[RowGroup], task_bytes: int) -> None:
    edges, first, held, is_open = {0}, 0, 0, False
    for rows, size in ((group.rows, size_of(group)) for group in groups):
        if is_open and held + size <= task_bytes:
            held += size
        else:
            parts = min(-(-size // task_bytes), rows) if size > task_bytes else 1
            edges |= {first + part * rows // parts for part in range(parts)}
            held, is_open = size, size <= task_bytes
        first += rows
    assert plan_rows(groups, task_bytes=task_bytes) == list(pairwise(sorted(edges | {first})))


def columns_of(path: Path, found: pa.Table) -> Source:
    pq.write_table(found, path)
    return source_of(str(path))


def test_one_file_with_the_columns_is_enough_and_few_are_looked_at(tmp_path: Path) -> None:
    sources = FileSources(columns=("x",))
    has = columns_of(tmp_path / "has.parquet", pa.table({"x": [1]}))
    lacks = [columns_of(tmp_path / f"{number}.parquet", pa.table({f"y{number}": [1]})) for number in range(9)]
    other = Source("/data/a.jsonl", 3, "7")  # there is nothing to look at
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    bad = source_of(str(tmp_path / "bad.parquet"))
    for good in ([], [other], [bad], [has], [*lacks[:7], *[other] * 9, has], [bad, *lacks[:6], has, lacks[7]]):
        sources.check_columns(good)
    for few in ([lacks[0]], [lacks[0], other, bad, lacks[1]], [*lacks[:8], has]):
        with pytest.raises(UsageError, match=r"0\.parquet.* has no column 'x'; expected one of 'y0'"):
            sources.check_columns(few)


def test_formats_with_options_keep_them_beside_the_chosen_columns() -> None:
    sources = FileSources((TarFormat("key"), ParquetFormat(row_group_bytes=7)), columns=("x",))
    assert sources.type_of("/data/a.tar").format == TarFormat("key")
    assert sources.type_of("/data/a.parquet").format == ParquetFormat(("x",), row_group_bytes=7)
    assert sources.type_of("/data/a.arrow").format == ArrowFormat(("x",))
    plain = FileSources((TarFormat("key"), ParquetFormat(row_group_bytes=7)))
    assert plain.configured == plain.formats


@pytest.mark.parametrize("keys", [(), ("x",), ("x.y",)])
def test_columns_are_read_in_the_version_that_was_listed(tmp_path: Path, keys: tuple[str, ...]) -> None:
    folder = ObjectFolder(f"memory://{tmp_path.name}{len(keys)}")
    folder.create("a.parquet", (tmp_path / columns_of(tmp_path / "a.parquet", pa.table({"x": [4]})).url).read_bytes())
    source = source_of(f"{folder.url}/a.parquet")
    sources = FileSources(keys=keys)
    reader = sources.open_file(source)
    assert list(reader.read_span(0, 1)) == [{"x": 4}]
    reader.close()
    with pytest.raises(ChangedSourceError):
        sources.open_file(dataclasses.replace(source, version="1")).read_span(0, 1)


def test_an_object_that_is_opened_for_its_schema_and_for_its_rows_is_of_one_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns_of(tmp_path / "a.parquet", pa.table({"x": [4]}))
    columns_of(tmp_path / "b.parquet", pa.table({"x": [5]}))
    folder = ObjectFolder(f"memory://{tmp_path.name}")
    folder.create("a.parquet", (tmp_path / "a.parquet").read_bytes())
    source = source_of(f"{folder.url}/a.parquet")
    real = ParquetFormat.open_columns

    def replacing(kind: ParquetFormat, *asked: Any, **named: Any) -> Any:
        found = real(kind, *asked, **named)
        if not kind.columns:  # all columns are read, as in the schema
            assert found.schema.names == ["x"]
            folder.delete(["a.parquet"])
            folder.create("a.parquet", (tmp_path / "b.parquet").read_bytes())
        return found

    monkeypatch.setattr(ParquetFormat, "open_columns", replacing)
    with pytest.raises(ChangedSourceError):
        FileSources(keys=("x.y",)).open_file(source).read_span(0, 1)


def rows_of(sources: FileSources, source: Source) -> list[object]:
    kind = sources.kind_of(source)
    cut = kind.cut(source, TaskLimits())
    opened = kind.open(cut.source)
    rows = [row for start, stop in cut.spans for row in opened.read_span(start, stop)]
    opened.close()
    return rows


@pytest.mark.parametrize(
    ("keys", "columns", "expected"),
    [
        ((), (), {"a": {"b": 1, "c": 2}, "a.d": 3, "x": 4, "y": 5}),
        (("x",), (), {"x": 4}),
        (("x", "y"), (), {"x": 4, "y": 5}),
        (("a.b", "x"), (), {"a": {"b": 1, "c": 2}, "x": 4}),
        (("a.d",), (), {"a.d": 3}),
        (("x",), ("y",), {"y": 5}),
        (("a.b",), ("y",), {"y": 5}),
    ],
)
def test_of_columns_those_are_read_that_are_chosen_or_looked_up(
    tmp_path: Path, keys: tuple[str, ...], columns: tuple[str, ...], expected: dict[str, object]
) -> None:
    """A key a.b is a column, or a value in the column a."""
    table = pa.table({"a": [{"b": 1, "c": 2}], "a.d": [3], "x": [4], "y": [5]})
    sources = FileSources(keys=keys, columns=columns)
    assert rows_of(sources, columns_of(tmp_path / "a.parquet", table)) == [expected]
    configured = {kind.name: kind.columns for kind in sources.configured if isinstance(kind, ColumnFileFormat)}
    chosen = columns or (() if any("." in key for key in keys) else keys)
    assert configured == ({"parquet": chosen, "arrow": chosen} if chosen else {})


@pytest.mark.parametrize("name", CONTENTS)
def test_a_file_is_read_by_spans_wherever_it_lies(place: Place, name: str) -> None:  # noqa: F811
    publish_bytes(place / name, CONTENTS[name], place.options)
    sources = FileSources(storage_options=place.options or {}, columns=("int64",))
    source = source_of(place / name, place.options)
    kind = sources.kind_of(source)
    assert isinstance(kind, ColumnFile)
    cut = kind.cut(source, TaskLimits(task_records=25))
    assert [stop - start for start, stop in cut.spans] == [25, 25, 25, 15]
    opened = kind.open(cut.source)
    rows = [row for start, stop in cut.spans for row in opened.read_span(start, stop)]
    assert rows == [{"int64": number} for number in range(90)]
    assert opened.read_each(80, 90) == rows[80:]
    assert [raw.record for raw in opened.read_raw(3, 5)] == [3, 4]
    opened.close()


def test_a_file_that_was_replaced_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(CONTENTS["a.parquet"])
    source = source_of(str(path))
    os.utime(path, ns=(1, 1))
    with pytest.raises(ChangedSourceError, match=r"a\.parquet: changed since it was listed"):
        FileSources().kind_of(source).cut(source, TaskLimits(16))


def test_columns_are_refused_where_there_are_none(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(CONTENTS["a.parquet"])
    with pytest.raises(UsageError, match=r"has no column 'x'; expected one of 'int64', 'string'"):
        FileSources(columns=("x",)).kind_of(source_of(str(path))).cut(source_of(str(path)), TaskLimits(16))
    with pytest.raises(UsageError, match=r"a\.jsonl: --columns x is for files of columns"):
        FileSources(columns=("x",)).check_names(["a.parquet", "a.jsonl"])
