"""The user's object in a worker process: built once, called by one thread at a time, closed at the end."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from ledgerbeam.errors import ChangedSourceError, FunctionError, StorageError, UsageError
from ledgerbeam.ledger import FailedTask, Source, Task
from ledgerbeam.transforms import MapRecords
from ledgerbeam.user_code import objects as user_object
from ledgerbeam.user_code.objects import UserObject, close_objects, take_set_ups, watched_checksums
from tests._base.test_process import in_child

HERE = __name__
built: list[Any] = []
closed: list[str] = []


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    close_objects()
    take_set_ups()
    built.clear()
    closed.clear()
    yield
    close_objects()


class Model:
    def __init__(self, name: str = "a", seconds: float = 0.0) -> None:
        self.name = name
        self.seconds = seconds
        self.inside = 0
        built.append(self)

    def __call__(self, record: Any) -> Any:
        self.inside += 1
        assert self.inside == 1, "called by two threads at once"
        time.sleep(self.seconds)
        self.inside -= 1
        if record.get("bad"):
            raise ValueError("bad")
        return {**record, "name": self.name}

    def close(self) -> None:
        closed.append(self.name)


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self, record: Any) -> Any:
        self.count += 1
        return {"count": self.count}


class Raises:
    def __init__(self) -> None:
        raise OSError("no licence")

    def __call__(self, record: Any) -> Any: ...


class Leaves(Raises):
    def __init__(self) -> None:
        raise SystemExit(2)


class Interrupted(Raises):
    def __init__(self) -> None:
        raise KeyboardInterrupt


class ClosesDescriptors(Model):
    def __init__(self) -> None:
        super().__init__("descriptors")
        for number in (0, 1, 2):
            os.close(number)


class ClosesDescriptorsAtTheEnd(Model):
    def close(self) -> None:
        for number in (0, 1, 2):
            os.close(number)


class WaitsAtTheEnd(Model):
    def close(self) -> None:
        released.wait(60)


released = threading.Event()


class HangsAtTheEnd(Model):
    def close(self) -> None:
        time.sleep(60)


class RaisesAtTheEnd(Model):
    def close(self) -> None:
        raise SystemExit(3)


def plain(record: Any, name: str = "") -> Any:
    return {**record, "name": name}


def task_of(records: list[Any]) -> Task:
    return Task(Source("/data/a.jsonl", 100, "1"), 0, len(records), ((0, 1),), records)


def written(mapper: MapRecords, records: list[Any]) -> list[Any]:
    found: Any = mapper(task_of(records))
    return list(found.records.datasets[""])


def test_a_class_is_built_once_in_a_process_with_its_values() -> None:
    for _ in range(2):
        mapper = MapRecords(f"{HERE}:Model", "jsonl", values={"name": "b"})
        assert written(mapper, [{}, {}]) == [{"name": "b"}, {"name": "b"}]
    assert len(built) == len(take_set_ups()) == 1
    written(MapRecords(f"{HERE}:Model", "jsonl", values={"name": "c"}), [{}])
    assert [model.name for model in built] == ["b", "c"]
    assert (len(take_set_ups()), take_set_ups()) == (1, [])
    close_objects()
    assert closed == ["c", "b"]
    close_objects()
    assert closed == ["c", "b"]


def test_one_object_is_built_of_the_same_values_whatever_they_are_and_in_any_order() -> None:
    values: list[dict[str, Any]] = [
        {"name": Path("a"), "seconds": 0.0},
        {"seconds": 0.0, "name": Path("a")},
        {"name": Path("b")},
    ]
    for some in values:
        UserObject(f"{HERE}:Model", some).ready()
    assert [model.name for model in built] == [Path("a"), Path("b")]


def test_it_is_told_how_long_a_set_up_took() -> None:
    began = time.monotonic()
    UserObject(f"{HERE}:Model").ready()
    (seconds,) = take_set_ups()
    assert 0 <= seconds <= time.monotonic() - began


def test_values_of_a_function_are_keyword_arguments() -> None:
    assert written(MapRecords(f"{HERE}:plain", "jsonl", values={"name": "x"}), [{}]) == [{"name": "x"}]
    with pytest.raises(UsageError, match="has no such parameter"):
        MapRecords(f"{HERE}:plain", "jsonl", values={"nme": "x"}).set_up()


def test_threads_take_turns() -> None:
    mapper = MapRecords(f"{HERE}:Model", "jsonl", values={"seconds": 0.01})
    results: list[Any] = []
    threads = [threading.Thread(target=lambda: results.append(mapper(task_of([{}] * 5)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [type(result) for result in results] == [Task] * 4
    assert len(built) == 1


@pytest.mark.parametrize(
    ("name", "said"), [("Raises", "Raises cannot be built: OSError: no licence"), ("Leaves", "SystemExit: 2")]
)
def test_a_class_that_raises_ends_the_job_and_no_task_fails(name: str, said: str) -> None:
    mapper = MapRecords(f"{HERE}:{name}", "jsonl", on_error="reject")
    for call in (mapper.set_up, lambda: mapper(task_of([{}]))):
        with pytest.raises(FunctionError, match=said):
            call()
    assert take_set_ups() == []


def test_an_interrupt_while_it_is_built_goes_through() -> None:
    with pytest.raises(KeyboardInterrupt):
        MapRecords(f"{HERE}:Interrupted", "jsonl").set_up()


def test_a_module_that_cannot_be_imported_ends_the_job() -> None:
    with pytest.raises(FunctionError, match="there is no module 'no_such_module'"):
        MapRecords("no_such_module:f", "jsonl")(task_of([{}]))


def test_a_file_that_changed_is_told_also_when_that_is_why_it_cannot_be_built(tmp_path: Path) -> None:
    path = tmp_path / "words"
    path.write_text("one")
    watched = watched_checksums([str(path)])
    path.write_text("two")
    for name in ("Model", "Raises", "plain"):
        with pytest.raises(ChangedSourceError, match="this watched file has changed"):
            UserObject(f"{HERE}:{name}", watched=watched).ready()


class Locked(MemoryFileSystem):
    """A store that is open to who gives a key."""

    protocol = "locked"

    def __init__(self, key: str = "", **options: Any) -> None:
        super().__init__(**options)
        self.key = key

    def info(self, path: str, **options: Any) -> Any:
        if self.key != "mine":
            raise PermissionError(path)
        return super().info(path, **options)


def test_watched_files_are_read_with_the_options_that_the_function_is_given() -> None:
    fsspec.register_implementation("locked", Locked, clobber=True)
    options = {"key": "mine"}
    with fsspec.open("locked://watched/words", "wb", **options) as file:
        file.write(b"one")
    mapper = MapRecords(f"{HERE}:plain", "jsonl", watched=watched_checksums(["locked://watched/words"], options))
    with pytest.raises(StorageError, match="locked://watched/words"):
        mapper.set_up()
    assert written(mapper.with_storage_options(options), [{}]) == [{"name": ""}]
    with fsspec.open("locked://watched/words", "wb", **options) as file:
        file.write(b"two")
    close_objects()  # forget the object that was built and found unchanged
    with pytest.raises(ChangedSourceError, match="this watched file has changed"):
        mapper.with_storage_options(options).set_up()


def test_a_failed_task_does_not_close_it() -> None:
    mapper = MapRecords(f"{HERE}:Model", "jsonl")
    assert isinstance(mapper(task_of([{"bad": True}])), FailedTask)
    assert closed == []
    assert written(mapper, [{}]) == [{"name": "a"}]


def test_a_close_that_hangs_or_raises_is_told_and_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(user_object, "CLOSE_SECONDS", 0.1)
    for name in ("Model", "HangsAtTheEnd", "RaisesAtTheEnd"):
        UserObject(f"{HERE}:{name}").ready()
    close_objects()
    assert closed == ["a"]
    assert "RaisesAtTheEnd: close() raised SystemExit: 3" in caplog.text
    assert "HangsAtTheEnd: close() did not return" in caplog.text


def test_a_close_that_hangs_does_not_keep_the_process_from_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_object, "CLOSE_SECONDS", 0.01)
    released.clear()
    before = threading.enumerate()
    UserObject(f"{HERE}:WaitsAtTheEnd").ready()
    close_objects()
    (left,) = set(threading.enumerate()) - set(before)
    released.set()
    left.join()
    assert left.daemon


def test_objects_are_closed_also_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    for name in "ab":
        UserObject(f"{HERE}:Model", {"name": name}).ready()
    monkeypatch.setattr(threading.Thread, "start", start)
    close_objects()
    assert closed == ["b", "a"]


def test_an_object_may_close_standard_descriptors_as_it_is_built_or_closed(tmp_path: Path) -> None:
    def act() -> None:
        for name in ("ClosesDescriptors", "ClosesDescriptorsAtTheEnd"):
            UserObject(f"{HERE}:{name}").ready()
            assert [os.isatty(number) for number in range(3)] == [False] * 3
            close_objects()
            assert os.open("/dev/null", os.O_RDONLY) > 2

    assert in_child(act, tmp_path / "log") == ""


def test_a_forked_process_has_objects_and_set_ups_of_its_own(tmp_path: Path) -> None:
    def act() -> None:
        assert take_set_ups() == []
        UserObject(f"{HERE}:Model").ready()
        assert len(built) == 2
        close_objects()
        assert closed == ["a"]

    UserObject(f"{HERE}:Model").ready()
    assert in_child(act, tmp_path / "log") == ""
    assert len(take_set_ups()) == 1
    close_objects()
    assert closed == ["a"]


def test_the_end_of_the_process_closes_what_is_built_however_much_that_is(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(atexit, "register", asked.append)
    for name in "ab":
        UserObject(f"{HERE}:Model", {"name": name}).ready()
    assert asked == [close_objects]


PROGRAM = f"""
import os, sys
from {HERE} import ClosesDescriptors
from ledgerbeam.user_code.objects import UserObject
ClosesDescriptors.close = lambda self: open(sys.argv[1], "a").write(f"closed {{os.getpid() == parent}}\\n")
parent = os.getpid()
UserObject("{HERE}:ClosesDescriptors").ready()
assert os.open("/dev/null", os.O_RDONLY) > 2
if os.fork() == 0:
    sys.exit(0)  # a child that ends does not close what is its parent's
os.wait()
"""


def test_it_is_closed_as_a_process_ends_which_keeps_its_descriptors(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path / "said")], check=True, timeout=60)
    assert (tmp_path / "said").read_text() == "closed True\n"
