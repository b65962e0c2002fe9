"""What a flow's file may say: steps in order, values that the calls check, and errors that name the key."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path
from typing import Any

import pytest

import ledgerbeam
from ledgerbeam.errors import FunctionError, LedgerbeamError, UsageError
from ledgerbeam.pipelines.cli.cli import main
from ledgerbeam.pipelines.flows.step import COMMANDS, FlowRunOptions, step_options

SOURCES = 'sources = ["in/*.jsonl"]\nto = "jsonl"'
FIRST = f"[steps.first]\nconvert = true\n{SOURCES}\n"


def keep(record: Any) -> Any:
    return record


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"id": 1}\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def flow_of(folder: Path, text: str) -> ledgerbeam.Flow:
    path = folder / "flow.toml"
    path.write_text(text)
    return ledgerbeam.Flow.from_file(path)


def prepare(flow: ledgerbeam.Flow) -> Any:
    return {one.name: one.call for one in flow.prepared((), FlowRunOptions())}


def test_steps_come_behind_those_that_they_read(folder: Path) -> None:
    flow = flow_of(folder, f'root = "r"\n[steps.last]\nsort = true\nfrom = "first"\nby = "id"\nto = "jsonl"\n{FIRST}')
    assert [*flow.steps] == ["first", "last"]
    assert flow.needed(["first"]) == ["first"]
    assert flow.needed(["last"]) == ["first", "last"]


def test_paths_are_below_the_folder_of_the_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    flow = flow_of(folder, f'root = "r"\n{FIRST}[steps.tokens]\ntokenize = "bytes"\nfrom = "first"\n')
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    calls = prepare(flow)
    first, tokens = calls["first"].job, calls["tokens"].job
    assert (first.ledger, first.output) == (f"{folder}/r/first/ledger", f"{folder}/r/first/output")
    assert first.sources().patterns == (f"{folder}/in/*.jsonl",)
    assert tokens.dataset.prefix == f"{folder}/r/tokens/output/tokens"
    assert [one.folder for one in tokens.sources().recorded] == [f"{folder}/r/first/output"]


def test_the_name_of_the_files_folder_is_no_pattern(folder: Path) -> None:
    """It would match the files of another one."""
    (folder / "run[1]").mkdir()
    with pytest.raises(UsageError, match=r"run\[1\]\. Rename this folder, list the files"):
        flow_of(folder / "run[1]", f'root = "r"\n{FIRST}')


def test_options_of_all_steps_hold_where_a_step_says_nothing_else(folder: Path) -> None:
    second = '[steps.second]\nconvert = true\nfrom = "first"\nto = "jsonl"\nworkers = 1\n'
    calls = prepare(flow_of(folder, f'root = "r"\n[defaults]\nworkers = 3\ntask_bytes = "4K"\n{FIRST}{second}'))
    assert [(call.job.workers, call.job.sources().task_bytes) for call in calls.values()] == [(3, 4096), (1, 4096)]


def test_a_flow_in_python_has_functions_as_objects(folder: Path) -> None:
    flow = ledgerbeam.Flow("r", {"a": {"map": keep, "sources": "in/*.jsonl", "to": "jsonl"}})
    assert prepare(flow)["a"].job.functions[0].reference == f"{__name__}:keep"


def test_both_sides_of_a_join_are_patterns_or_steps(folder: Path) -> None:
    text = 'join = true\nleft_from = "first"\nright = ["in/*.jsonl"]\nby = "id"\nto = "jsonl"\n'
    job = prepare(flow_of(folder, f'root = "r"\n{FIRST}[steps.both]\n{text}'))["both"].job
    assert [one.title for one in job.files.recorded] == ["step first"]
    assert job.right.patterns == (f"{folder}/in/*.jsonl",)


def test_a_long_chain_of_steps_is_put_in_order(folder: Path) -> None:
    steps: dict[str, Any] = {"s0": {"convert": True, "sources": "in/*.jsonl"}}
    steps |= {f"s{number}": {"convert": True, "from": f"s{number - 1}"} for number in range(1, 1501)}
    flow = ledgerbeam.Flow("r", dict(reversed(steps.items())), defaults={"to": "jsonl"})
    assert [*flow.steps] == [*steps]
    assert flow.needed(["s1500"]) == [*steps]


def test_steps_that_read_one_step_each_other_way_round_come_once(folder: Path) -> None:
    """A diamond: what two steps read comes before both, and what reads both behind both."""
    reads = {"d": ["b", "c"], "c": ["a"], "b": ["a"], "a": None}
    steps = {
        name: {"convert": True, "to": "jsonl", **({"sources": "in/*.jsonl"} if of is None else {"from": of})}
        for name, of in reads.items()
    }
    assert [*ledgerbeam.Flow("r", steps).steps] == ["a", "b", "c", "d"]


BASE: dict[str, dict[str, Any]] = {
    "map": {"map": "html:escape", "to": "jsonl"},
    "annotate": {"annotate": "html:escape"},
    "select": {"select": True, "to": "jsonl"},
    "decontaminate": {"decontaminate": True, "against": "in/a.jsonl", "to": "jsonl"},
    "convert": {"convert": True, "to": "jsonl"},
    "tokenize": {"tokenize": "bytes"},
    "pack": {"pack": True, "length": 8},
    "split": {"split": True, "by": "id", "parts": 2, "to": "jsonl"},
    "sort": {"sort": True, "by": "id", "to": "jsonl"},
    "shuffle": {"shuffle": True, "to": "jsonl"},
    "repartition": {"repartition": True, "to": "jsonl"},
    "group": {"group": "html:escape", "by": "id", "to": "jsonl"},
    "join": {"join": True, "by": "id", "to": "jsonl"},
    "dedup": {"dedup": True, "by": "id", "to": "jsonl"},
}

# Of every type that TOML has.
VALUES: list[Any] = [True, "false", "", 0, 3, 10**30, 2.5, float("nan"), [1], [""], {"a": [1]}, date(2026, 1, 1)]


def options_of_steps() -> list[tuple[str, str]]:
    """Return each option that steps take, with a command of each type that it has."""
    found = {(key, str(hint)): command for command in COMMANDS for key, hint in step_options(command).items()}
    return sorted((command, key) for (key, _), command in found.items())


def outcome(command: str, key: str, value: Any, *, as_default: bool) -> str:
    """Return "taken" or "refused" for a value, the same value of a step or of all steps."""
    sides = {"left": "in/*.jsonl", "right": "in/*.jsonl"} if command == "join" else {"sources": "in/*.jsonl"}
    step = {**BASE[command], **({} if key == "sources_from" else sides)}
    step = {name: one for name, one in step.items() if name != key or name == command}
    flow = ({"s": step}, {key: value}) if as_default else ({"s": {**step, key: value}}, {})
    try:
        prepare(ledgerbeam.Flow("r", flow[0], defaults=flow[1]))
    except UsageError as error:
        return "refused" if re.search(rf"\b{key.rstrip('_').replace('_', '[_-]')}", str(error)) else str(error)
    except FunctionError:
        return "no function"
    return "taken"


def test_a_value_of_any_type_is_taken_or_refused_by_its_key_alike_in_steps_and_defaults(folder: Path) -> None:
    for command, key in options_of_steps():
        if key == command:
            continue
        for value in VALUES:
            found = {outcome(command, key, value, as_default=as_default) for as_default in (False, True)}
            assert found in ({"taken"}, {"refused"}, {"no function"}), (command, key, value, found)


def test_a_default_for_no_step_is_checked_as_well(folder: Path) -> None:
    for wrong in ({"descending": "no"}, {"dry_run": True}, {"tokenizer": "bytes"}, {"sources": "in/*"}, {"by": 3}):
        with pytest.raises(UsageError, match=f"the flow: defaults: {next(iter(wrong))}: expected"):
            ledgerbeam.Flow("r", {"a": {"convert": True, "sources": "in/*.jsonl", "to": "jsonl"}}, defaults=wrong)


def test_secrets_among_storage_options_are_never_shown(folder: Path) -> None:
    of_step: dict[str, Any] = {**BASE["convert"], "sources": "in/*.jsonl"}
    wrongs: list[dict[str, Any]] = [{"storage_options": ["verysecret"]}, {"storage_options": {1: "verysecret"}}]
    for wrong in wrongs:
        for step, defaults in (of_step | wrong, {}), (of_step, wrong):
            with pytest.raises(UsageError, match="storage_options") as error:
                ledgerbeam.Flow("r", {"a": step}, defaults=defaults)
            assert "verysecret" not in str(error.value)


@pytest.mark.parametrize("steps", [None, [], "x", {"a": None}, {"a": []}, {3: {}}, {"a": {}}])
def test_steps_in_python_that_are_no_tables_are_refused(folder: Path, steps: Any) -> None:
    with pytest.raises(UsageError, match=r"the flow: .*step"):
        ledgerbeam.Flow("r", steps)


READ = '[steps.b]\nconvert = true\nto = "jsonl"\n'

WRONG = {
    "unknown key of the flow": (f"step = 1\n{FIRST}", ["step", "one of root, steps, defaults"]),
    "no steps": ("[steps]\n", ["steps", "a table of steps"]),
    "a name that is none": (FIRST.replace("first", '"a/b"'), ["'a/b'", "letters"]),
    "no command": (f"[steps.a]\n{SOURCES}", ["step a", "the command", "map, annotate, select, decontaminate, convert"]),
    "two commands": (f"[steps.a]\nsort = true\nconvert = true\n{SOURCES}", ["step a", "convert", "sort"]),
    "a command with another value": (f"[steps.a]\nconvert = 3\n{SOURCES}", ["step a: convert", "true", "3"]),
    "unknown key": (f"{FIRST}colour = 1", ["step first", "colour", "one of", "task_bytes"]),
    "key of a run": (f"{FIRST}dry_run = true", ["step first: dry_run", "ledgerbeam run"]),
    "bad type": (f'{FIRST}workers = "two"', ["step first: workers", "a whole number", "'two'"]),
    "true for a number": (f"{FIRST}workers = true", ["step first: workers", "a whole number", "True"]),
    "bad choice": (f'{FIRST}index_rule = "x"', ["step first: index_rule", "'scheme', 'lhotse'", "'x'"]),
    "bad size": (f'{FIRST}task_bytes = "much"', ["step first", "task_bytes", "'much'"]),
    "bad format": (FIRST.replace('jsonl"\n', 'x"\n'), ["first", "to"]),
    "missing option": (f"[steps.a]\nsort = true\n{SOURCES}", ["step a: by", "nothing"]),
    "no sources": (READ, ["step b: sources", "from", "nothing"]),
    "sources twice": (f'{FIRST}{READ}from = "first"\nsources = ["x"]', ["step b: sources", "sources and from"]),
    "unknown step": (f'{READ}from = "z"', ["step b: from", "one of the steps b", "'z'"]),
    "a circle": (f'{READ}from = "b"', ["step b: from", "b -> b"]),
    "a default of a bad type": (
        f'[defaults]\nkeep_runs = "false"\n[steps.a]\nsort = true\nby = "id"\n{SOURCES}',
        ["defaults: keep_runs", "true or false", "'false'"],
    ),
    "a default of a bad value": (f'[defaults]\ntask_bytes = "much"\n{FIRST}', ["first", "task_bytes"]),
    "nested too deep": (f"x = {'[' * 5000}{']' * 5000}\n{FIRST}", ["invalid TOML"]),
    "a number too long": (f"x = {'9' * 5000}\n{FIRST}", ["invalid TOML"]),
    "no path": (f'{FIRST}output = ""', ["step first: output", "a path or a URL"]),
    "unknown default": (f"[defaults]\ncolour = 1\n{FIRST}", ["defaults: colour"]),
    "one output of two": (f'{FIRST}{READ}from = "first"\noutput = "r/first/output/x"', ["step b: output", "apart"]),
    "files of a step": (f'{FIRST}{READ}sources = ["r/*/output/*.jsonl"]', ["step b: sources", 'from = "first"']),
    "a dataset": (
        f'[steps.t]\ntokenize = "bytes"\nsources = ["in/*"]\n{READ}from = "t"',
        ["step b: from", "a Megatron dataset"],
    ),
    "no dataset": (
        f'{FIRST}[steps.b]\npack = true\nlength = 8\nfrom = "first"',
        ["step b: from", "a Megatron dataset", "'first'"],
    ),
    "no part": (
        f'[steps.t]\nsplit = true\nby = "id"\nparts = 2\n{SOURCES}\n{READ}from = "t"',
        ["step b: from", "a part of step t"],
    ),
    "rejected records": (f'{FIRST}{READ}from = "first/_rejects"', ["step b: from", "cannot read rejected"]),
    "no such function": (f'[steps.a]\nmap = "nowhere:f"\n{SOURCES}', ["step a", "nowhere"]),
}
WHOLE = {
    "no root": (FIRST, ["root", "expected", "nothing"]),
    "no TOML": ("root = \n", ["flow.toml", "TOML"]),
    "files of itself": (f'root = "in/r"\n{FIRST.replace("in/*", "in/**/*")}', ["step first: sources", "writes below"]),
    **{name: (f'root = "r"\n{text}', words) for name, (text, words) in WRONG.items()},
}


@pytest.mark.parametrize("name", WHOLE)
def test_errors_name_file_step_and_key(folder: Path, name: str) -> None:
    text, words = WHOLE[name]
    with pytest.raises(LedgerbeamError) as error:
        prepare(flow_of(folder, text))
    message = str(error.value)
    assert all(word in message for word in ("flow.toml", *words)), message


def test_an_unknown_step_is_refused_before_anything_is_done(folder: Path) -> None:
    flow = flow_of(folder, f'root = "r"\n{FIRST}')
    with pytest.raises(UsageError, match="the steps: expected some of first, found 'x'"):
        flow.run("x")
    assert not (folder / "r").exists()


def test_secrets_in_the_urls_of_a_flow_are_refused_and_hidden(folder: Path) -> None:
    with pytest.raises(UsageError) as error:
        flow_of(folder, f'root = "s3://key:verysecret@bucket/flow"\n{FIRST}')
    assert "verysecret" not in str(error.value)
    with pytest.raises(UsageError) as error:
        prepare(flow_of(folder, f'root = "r"\n{FIRST}{READ}sources = ["https://u:verysecret@host/a.jsonl"]'))
    assert "verysecret" not in str(error.value)


def test_a_wrong_flow_is_an_error_of_usage(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "flow.toml").write_text(f'root = "r"\n{FIRST}colour = 1')
    for command in ("plan", "run"):
        assert main([command, "flow.toml"]) == 2
        assert "flow.toml: step first: colour: expected one of" in capsys.readouterr().err
