"""Records during which the function hangs, crashes or exhausts memory."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest

from ledgerbeam import stats
from ledgerbeam.errors import FunctionError
from ledgerbeam.ledger import FailedTask
from ledgerbeam.transforms import MapRecords
from ledgerbeam.user_code.objects import close_objects
from tests.cases import each
from tests.servers.process import wait_until
from tests.transforms.mapping.test_map_records import task_of

HOSTILE = "tests.user_code.hostile"
ENDING = ("hang", "segfault")


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    yield
    close_objects()


def mapped(records: list[Any], function: str = "hostile", **options: Any) -> Any:
    given: dict[str, Any] = {"record_timeout": 30.0, "on_error": "reject", **options}
    return MapRecords(f"{HOSTILE}:{function}", "jsonl", **given)(task_of(records))


def doing(*what: str, **fields: Any) -> list[dict[str, Any]]:
    """Return records of which each does what is said; "" is a plain record."""
    return [{"id": number, "do": do, **fields} for number, do in enumerate(what)]


def rejects(found: Any) -> list[tuple[int, str]]:
    return [(one.rejection.position, one.rejection.reason) for one in found.records.rejects]


def ids(found: Any) -> list[int]:
    return [record["id"] for record in found.records.datasets[""]]


@each(
    ("do", "reason", "error"),
    [
        ("segfault", "signal 11", "tests.user_code.hostile:hostile was killed by signal 11 (SIGSEGV)"),
        ("exit", "exit status 3", "tests.user_code.hostile:hostile ended its process with exit status 3"),
        ("memory", "out of memory", "tests.user_code.hostile:hostile ran out of memory: no"),
        ("kill", "signal 9", "tests.user_code.hostile:hostile was killed by signal 9 (SIGKILL)"),
        ("leave", "SystemExit", "bye"),
        ("raise", "KeyError", "1"),
    ],
)
def test_a_record_that_ends_its_process_is_rejected_alone(do: str, reason: str, error: str) -> None:
    found = mapped(doing("", do, ""))
    assert rejects(found) == [(1, reason)]
    assert found.records.rejects[0].rejection.error == error
    assert ids(found) == [0, 2]


@each(("do", "batch"), [("hang", None), ("spin", None), ("hang", 4)])
def test_a_record_that_takes_too_long_is_rejected_alone(do: str, batch: int | None) -> None:
    function = "hostile" if batch is None else "hostile_batch"
    found = mapped(doing("", do, "", "", ""), function, record_timeout=0.5, batch=batch)
    assert rejects(found) == [(1, "timeout")]
    assert ids(found) == [0, 2, 3, 4]


def test_memory_that_a_record_exhausts_is_free_for_the_next() -> None:
    found = mapped(doing("", "eat", "", "eat", ""), "Limited")
    assert rejects(found) == [(1, "out of memory"), (3, "out of memory")]
    assert ids(found) == [0, 2, 4]


@each(
    ("do", "batch", "reason", "text"),
    [
        (
            "hang",
            None,
            "timeout",
            "/data/books.v1.jsonl, record 11: tests.user_code.hostile:hostile took more than 0.5",
        ),
        ("segfault", None, "signal 11", "record 11: tests.user_code.hostile:hostile was killed by signal 11"),
        ("hang", 2, "timeout", "record 10, and 1 more after it: tests.user_code.hostile:hostile_batch took more than"),
        ("raise", None, "KeyError", "record 11: tests.user_code.hostile:hostile raised KeyError: 1 (at "),
    ],
)
def test_without_rejects_the_task_fails_with_the_record_and_the_reason(
    do: str, batch: int | None, reason: str, text: str
) -> None:
    function = "hostile" if batch is None else "hostile_batch"
    failed = mapped(doing("", do, ""), function, record_timeout=0.5, batch=batch, on_error="fail")
    assert isinstance(failed, FailedTask)
    assert failed.reason == reason
    assert text in failed.error


def test_outcomes_and_statistics_are_those_of_calls_in_the_worker() -> None:
    records = doing("", "drop", "reject", "route", "none", "raise", "", "leave")
    inside, outside = mapped(records, record_timeout=None), mapped(records)
    for name in ("datasets", "counts", "rejects", "statistics"):
        assert getattr(inside.records, name) == getattr(outside.records, name), name


def test_a_result_that_cannot_be_sent_is_an_error_of_its_record() -> None:
    found = mapped(doing("", "generator", ""))
    assert rejects(found) == [(1, "FunctionError")]
    assert "returned a generator" in found.records.rejects[0].rejection.error


def test_a_class_is_built_again_only_after_a_death(tmp_path: Path) -> None:
    built = tmp_path / "built"
    records = doing("", "segfault", "", "hang", *[""] * 50)
    found = mapped(records, "Built", record_timeout=0.5, values={"path": str(built)})
    assert rejects(found) == [(1, "signal 11"), (3, "timeout")]
    close_objects()
    lines = built.read_text().splitlines()
    # The first one, one for the crash alone, one after it, and one after the time-out.
    assert lines == ["built"] * 4 + ["closed"]


def test_processes_that_a_record_has_started_end_with_it(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    found = mapped(doing("", "start", "", pids=str(pids)), record_timeout=1.0)
    assert rejects(found) == [(1, "timeout")]
    assert wait_until(lambda: not _runs(int(pids.read_text())), seconds=5)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_process_that_others_kill_is_started_again(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    found = mapped(doing("", "killed", "", pids=str(pids)))
    assert ids(found) == [0, 1, 2]
    assert not found.records.rejects


def test_a_set_up_that_fails_or_crashes_is_an_error_of_the_job() -> None:
    for function, text in [
        ("NotBuilt", "cannot be built: ValueError"),
        ("Crashing", "signal 11 (SIGSEGV) during its"),
        ("missing", "has no 'missing'"),
    ]:
        with pytest.raises(FunctionError, match=text.replace("(", r"\(").replace(")", r"\)")):
            mapped(doing(""), function)


def test_a_module_with_threads_is_imported_by_the_process_that_calls_it() -> None:
    found: Any = MapRecords("tests.user_code.hostile_threads:answered", "jsonl", record_timeout=30.0)(
        task_of(doing("", ""))
    )
    assert ids(found) == [0, 1]


def test_arrow_rows_that_hang_or_crash_are_found() -> None:
    task = task_of(doing(*["", "hang", "", "segfault", ""] * 4))
    table = pa.Table.from_pylist(task.records)
    mapping = MapRecords(f"{HOSTILE}:hostile_arrow", "parquet", form="arrow", on_error="reject", record_timeout=0.3)
    found: Any = mapping(task.replace(records=table))
    expected = [(place, {1: "timeout", 3: "signal 11"}[place % 5]) for place in range(20) if place % 5 in (1, 3)]
    assert rejects(found) == expected
    assert found.records.datasets[""].column("id").to_pylist() == [n for n in range(20) if n % 5 in (0, 2, 4)]


def test_an_audit_calls_the_object_in_the_same_way() -> None:
    mapping = MapRecords(f"{HOSTILE}:hostile", "jsonl", on_error="reject", record_timeout=0.5)
    again = mapping.recomputed(task_of(doing("", "hang", "segfault", "")), lambda: False)
    assert [record["id"] for record in again.datasets[""]] == [0, 3]


def test_no_process_outlives_the_worker() -> None:
    pid = os.fork()
    if not pid:
        try:
            mapped(doing(*[""] * 3, "hang"), record_timeout=60.0)
        finally:
            os._exit(0)
    assert wait_until(lambda: len(_isolated_below(pid)) == 2, seconds=20)
    found = _isolated_below(pid)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert wait_until(lambda: not any(map(_runs, found)), seconds=5)


def _isolated_below(pid: int) -> list[int]:
    """Return the processes of the isolation below a process: the server, and its child."""
    found = [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()]
    return found + [deeper for one in found for deeper in _isolated_below(one)]


def then(record: dict[str, Any]) -> Any:
    stats.count("then")
    return {**record, "then": True}


def then_batch(records: list[dict[str, Any]]) -> list[Any]:
    stats.count("batches")
    return [{**record, "batch": True} for record in records]


@each("functions", [["hostile", "then"], ["hostile", "then", "then_batch"], ["then", "then_batch", "keeping"]])
def test_the_function_that_ends_its_process_is_named(functions: list[str]) -> None:
    named = [f"{HOSTILE}:{name}" if name in ("hostile", "keeping") else f"{__name__}:{name}" for name in functions]
    records = doing("", "segfault", "", "raise", "drop", "hang", "")

    def found(**options: Any) -> Any:
        return MapRecords(named, "jsonl", batch={"then_batch": 3} if "then_batch" in functions else None, **options)(
            task_of([record for record in records if options["record_timeout"] or record["do"] not in ENDING])
        )

    isolated = found(on_error="reject", record_timeout=0.5)
    label = next(name for name in functions if name in ("hostile", "keeping"))
    ended = [(one.rejection.position, one.rejection.reason, one.rejection.function) for one in isolated.records.rejects]
    assert ended == [(1, "signal 11", label), (3, "KeyError", label), (5, "timeout", label)]
    assert [record["id"] for record in isolated.records.datasets[""]] == [0, 2, 6]
    inside = found(on_error="reject", record_timeout=None)
    own = {name: value for name, value in inside.records.statistics.items() if "calls" in name}
    assert own
    assert own == {name: value for name, value in isolated.records.statistics.items() if "calls" in name}


@each(("function", "batch"), [("hostile", None), ("hostile_batch", 2)])
def test_a_memory_error_has_one_outcome_in_any_process(function: str, batch: int | None) -> None:
    """The death of a worker sends tasks to another process. This must not change the rejected records."""
    outside, inside = (
        mapped(doing("", "memory", "", ""), function, batch=batch, record_timeout=seconds) for seconds in (30.0, None)
    )
    assert rejects(inside) == [(1, "out of memory")]
    assert inside.records.rejects == outside.records.rejects
    assert ids(inside) == ids(outside) == [0, 2, 3]


@each("batch", [None, 2])
def test_a_child_that_cannot_be_started_again_fails_the_task(batch: int | None) -> None:
    with TemporaryDirectory() as folder:
        records = doing("", "exit", "", "", folder=folder)
        failed = mapped(records, "Once" if batch is None else "OnceBatch", batch=batch, values={"folder": folder})
    assert isinstance(failed, FailedTask)
    assert "cannot be built" in failed.error
