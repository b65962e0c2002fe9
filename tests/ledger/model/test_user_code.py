"""User code: what its exceptions say in a bounded message, and its part in a job's identity."""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ledgerbeam.errors import FunctionError
from ledgerbeam.ledger import Source, Task, code_identity, describe_error, failed_by, function_identity
from ledgerbeam.ledger.model.user_errors import ignore_interrupt, is_break, is_interrupt

TASK = Task(Source("/data/a.jsonl", 10, "1"), 0, 1, ((0, 1),))


class LiarError(ValueError):
    """Says that it is what it is not."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return KeyboardInterrupt


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        raise error from cause
    except BaseException as found:  # noqa: BLE001 - what is tested
        return found


@pytest.mark.parametrize(
    ("error", "broke"),
    [
        (ValueError("x"), False),
        (asyncio.CancelledError(), True),
        (SystemExit(0), True),
        (GeneratorExit(), True),
        (LiarError("x"), False),
        (raised(FunctionError("cannot be imported"), SystemExit(1)), True),
        (raised(FunctionError("cannot be imported"), ImportError("x")), False),
        (raised(ValueError("x"), SystemExit(1)), False),
        (FunctionError("x"), False),
    ],
)
def test_what_would_have_ended_the_worker_is_told_from_what_would_not(error: BaseException, broke: bool) -> None:
    assert is_break(error) is broke
    failed = failed_by(error, TASK, "message")
    assert (failed.broke, failed.reason, failed.error) == (broke, type(error).__name__, "message")


def test_an_interrupt_is_one_in_the_main_thread_of_a_process_that_heeds_it() -> None:
    found: list[bool] = [is_interrupt(KeyboardInterrupt()), is_interrupt(LiarError()), is_interrupt(SystemExit())]
    thread = threading.Thread(target=lambda: found.append(is_interrupt(KeyboardInterrupt())))
    thread.start()
    thread.join()
    for handler in (ignore_interrupt, signal.SIG_IGN):
        before = signal.signal(signal.SIGINT, handler)
        found.append(is_interrupt(KeyboardInterrupt()))
        signal.signal(signal.SIGINT, before)
    assert found == [True, False, False, False, False, False]


def test_messages_are_cut_and_escaped() -> None:
    text = describe_error(raised(ValueError("é\ud800" + "x" * 5_000_000)))
    assert text.startswith(r"ValueError: é\ud800xxx")
    assert "(5,000,002 characters) (at " in text
    assert "test_user_code.py:" in text
    assert len(text) < 2500
    text.encode()


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_edit_of_a_module_changes_the_identity_of_its_functions(tmp_path: Path) -> None:
    path = tmp_path / "edited_module.py"
    path.write_text("FACTOR = 2\n\ndef double(task):\n    return FACTOR\n\nclass Work:\n    def run(self): ...\n")
    module = load(path)
    first = code_identity(module.double, functools.partial(module.Work.run), module.Work)
    assert sorted(first) == ["Work", "Work.run", "double"]
    assert first["double"] == function_identity("edited_module:double")["function_source"]
    path.write_text(path.read_text().replace("FACTOR = 2", "FACTOR = 30"))
    assert code_identity(load(path).double)["double"] != first["double"]


@pytest.mark.parametrize("function", [len, 3, eval("lambda: 1", {"__name__": "nowhere"})])
def test_code_without_a_source_is_refused(function: Callable[[], Any]) -> None:
    with pytest.raises(FunctionError, match="no source"):
        code_identity(function)
