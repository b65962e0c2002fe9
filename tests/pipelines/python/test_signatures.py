"""The command line, the calls in Python and their reference have the same options, from one table."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import keyword
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ledgerbeam
from ledgerbeam.errors import UsageError
from ledgerbeam.pipelines.calls import MODULES
from ledgerbeam.pipelines.calls.call import spec_of
from ledgerbeam.pipelines.calls.call_spec import expected_type
from ledgerbeam.pipelines.calls.result import JobInterrupt, ListedRows
from ledgerbeam.pipelines.cli.parser import build_parser
from tests.cases import each

CALLS: dict[str, Callable[..., ledgerbeam.Result]] = {name: getattr(ledgerbeam, name) for name in MODULES}
CONSOLE = {"help", "json", "quiet", "debug"}
"""Options of the command line alone; all but the last stand for `progress`."""

OF_PYTHON = {"progress", "options", "debug"}
"""Parameters of calls alone: how it is told of, and what follows ``--``."""


def actions(command: str) -> dict[str, argparse.Action]:
    """Return the options and arguments of a command by the names that calls have for them."""
    (commands,) = (one for one in build_parser()._actions if isinstance(one, argparse._SubParsersAction))
    return {_name(action): action for action in commands.choices[command]._actions}


def test_a_command_shows_the_defaults_and_the_flags_of_the_table() -> None:
    shown = {name: (action.help or "") % {"choices": ""} for name, action in actions("dedup").items()}
    assert shown["task_bytes"].endswith("(default: 64M)")
    assert "of --near, in place of --minhash" in shown["threshold"]
    documented_near = documented("dedup")["threshold"]
    assert "of `near`, in place of `minhash`" in documented_near.replace("Of", "of")


def _name(action: argparse.Action) -> str:
    if not action.option_strings:
        return action.dest
    name = next(word for word in action.option_strings if word.startswith("--")).removeprefix("--").replace("-", "_")
    return f"{name}_" if keyword.iskeyword(name) else name


def parameters(command: str) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(CALLS[command]).parameters)


def documented(command: str) -> dict[str, str]:
    """Return the text of each argument in a call's docstring."""
    text = inspect.getdoc(CALLS[command]) or ""
    block = text.partition("Args:\n")[2].partition("\n\n")[0]
    found = re.findall(r"^ {4}(\w+): ((?:.*)(?:\n {8}.*)*)", block, re.MULTILINE)
    return {name: " ".join(words.split()) for name, words in found}


@each("command", CALLS)
def test_every_option_is_a_parameter_and_the_other_way_round(command: str) -> None:
    further = {one.flag.removeprefix("--") for one in spec_of(command).arguments if one.flag}  # a list in Python
    assert set(actions(command)) - CONSOLE - further == set(parameters(command)) - OF_PYTHON


@each("command", CALLS)
def test_the_parser_holds_no_default_of_its_own(command: str) -> None:
    own = {name: one.default for name, one in actions(command).items() if name not in CONSOLE}
    assert own == dict.fromkeys(own, argparse.SUPPRESS)


@each("command", CALLS)
def test_what_must_be_given_must_be_given_in_both(command: str) -> None:
    required = {name for name, one in actions(command).items() if one.required and one.nargs != "*"}
    empty = inspect.Parameter.empty
    kinds = (inspect.Parameter.VAR_POSITIONAL,)
    assert required == {n for n, one in parameters(command).items() if one.default is empty and one.kind not in kinds}


@each("command", CALLS)
def test_what_the_command_line_reads_is_of_the_type_that_the_call_takes(command: str) -> None:
    rows = spec_of(command).rows
    for name, action in actions(command).items():
        if name not in rows:
            continue
        for text in ("3", "a=1", "a", "1.5", '{"a": 1}'):
            with contextlib.suppress(argparse.ArgumentTypeError, ValueError):
                read = True if action.nargs == 0 else action.type(text) if callable(action.type) else text
                value = [read] if isinstance(action, argparse._AppendAction) else read
                if action.choices is None or value in action.choices:
                    assert expected_type(value, rows[name].hint) is None, (name, value)


@each("command", CALLS)
def test_every_parameter_is_documented_in_order(command: str) -> None:
    assert list(documented(command)) == list(parameters(command))


@pytest.mark.parametrize("command", CALLS)
def test_help_of_a_call_is_a_page_with_its_signature(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    help(CALLS[command])
    shown = capsys.readouterr().out
    assert f"function {command} in module ledgerbeam.pipelines.calls.{MODULES[command]}" in shown
    assert "-> 'Result'" in shown
    for part in ("Args:", "Returns:", "Raises:"):
        assert part in shown


@each(
    ("options", "message"),
    [
        ({"group": "some"}, "group: expected one of 'auto', 'pairs', 'key', found 'some'"),
        ({"on_job_change": "no"}, "on_job_change: expected one of 'refuse', 'restart', 'accept', found 'no'"),
        ({"existing": "no"}, "existing: expected one of 'replace', 'keep', None, found 'no'"),
        ({"no_index": "false"}, "no_index: expected true or false, found 'false'"),
        ({"to": "xml"}, "to: expected one of jsonl, tar, .*, lit, found 'xml'"),
        ({"task_bytes": "many"}, "task_bytes: expected a size such as 16M, found 'many'"),
        ({"task_bytes": 0}, "task_bytes: expected at least 1 byte, found 0"),
        ({"workers": 0}, "workers: expected a whole number from 1, found 0"),
        ({"workers": True}, "workers: expected a whole number, found True"),
        ({"batch": 1.5}, "batch: expected a whole number or a table or a list, found 1.5"),
        ({"flush_interval": 0}, "flush_interval: expected seconds from 0.01 to 3600, found 0"),
        ({"columns": ["a", ""]}, "columns: expected names of columns"),
        ({"devices": [0, 0]}, "devices: expected different IDs of devices"),
        ({"storage_options": "no"}, "storage_options: expected a JSON object"),
        ({"storage_options": {1: "secret"}}, "storage_options: expected a table or a text, found a dict, not shown"),
        ({"progress": "no"}, "progress: expected True, False or None, found 'no'"),
        ({"options": "--runner=PrismRunner"}, "options: expected a list of Beam options"),
        ({"set": {"n": object()}}, "set: 'n' is a object that JSON cannot hold .*functools.partial"),
        ({"set": {"n": float("nan")}}, "set: 'n' is a float that JSON cannot hold"),
        ({"set": {"other": 1}}, "json:dumps has no|other"),
        ({"output": 3}, "expected a path or a URL, found 3"),
        ({"sources_from": "list"}, "give source patterns, or a list"),
        ({"sample": 0}, "sample: expected a whole number"),
        ({"ledger": "s3://me:secret@host/x"}, "expected a ledger without credentials"),
    ],
)
def test_values_that_mean_nothing_are_refused(options: dict[str, Any], message: str) -> None:
    asked: dict[str, Any] = {"output": "/nonexistent/out", "to": "jsonl", **options}
    with pytest.raises(UsageError, match=message):
        ledgerbeam.map("html:escape", "/nonexistent/*.jsonl", **asked)


def test_errors_hold_no_secrets(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    secret = "hunter2hunter2"
    with pytest.raises(ledgerbeam.LedgerbeamError) as caught:
        ledgerbeam.map(
            "html:escape",
            f"{tmp_path}/{secret}.jsonl",
            output=tmp_path / "out",
            to="jsonl",
            storage_options={"password": secret},
        )
    assert secret not in str(caught.value)
    assert "***" in str(caught.value)


def test_an_interrupt_survives_its_way_between_processes() -> None:
    stopped = pickle.loads(pickle.dumps(JobInterrupt("stopped", ledgerbeam.Result("map", tasks=3))))
    assert issubclass(type(stopped), KeyboardInterrupt)
    assert (str(stopped), stopped.result.tasks, stopped.result.command) == ("stopped", 3, "map")


def test_a_result_that_nothing_is_wrong_with_returns_itself() -> None:
    result = ledgerbeam.Result("verify", sources=2)
    assert result.raise_for_failures() is result
    problem = ledgerbeam.Result("verify", failures=ListedRows([{"source": "a", "problem": "a.idx: is stale"}]))
    with pytest.raises(ledgerbeam.TasksFailedError, match=r"^verify: 1 problem: a\.idx: is stale$"):
        problem.raise_for_failures()
    with pytest.raises(ledgerbeam.TasksFailedError, match=r"^map: 2 outputs out of date; call it again.*ledger L"):
        ledgerbeam.Result("map", ledger="L", warnings=("2 outputs out of date",)).raise_for_failures()
