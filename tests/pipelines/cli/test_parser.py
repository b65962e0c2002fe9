"""The whole command line: its page in the documentation, its help, and shell completion."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ledgerbeam.errors import UsageError
from ledgerbeam.io.formats.registry import GROUP
from ledgerbeam.pipelines.calls.values import FORMATS_GROUP
from ledgerbeam.pipelines.cli.parser import SHELLS, build_parser
from tests.cases import each
from tests.pages import ROOT, blocks
from tests.pipelines.conftest import JOBS, Workspace

PAGE = ROOT / "docs" / "command-line.md"


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Return every parser of the command line, commands and actions included."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from parsers(inner)


def test_the_page_begins_with_the_synopsis_that_help_prints() -> None:
    block = blocks(PAGE, "text")[0][1]
    expected = build_parser().synopsis().rstrip("\n") + "\n"
    assert block == expected, f"docs/command-line.md: put this into its first block:\n{expected}"
    assert expected in build_parser().format_help()
    assert max(map(len, expected.splitlines())) <= 120


def test_the_page_names_every_option_and_action() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert not blocks(PAGE, "console"), "blocks of this page are not run"
    found = [action for parser in parsers(build_parser()) for action in parser._actions]
    options = {option for action in found for option in action.option_strings if option.startswith("--")}
    assert len(options) > 40
    unnamed = {"--help", "--version", "--no-append-eod"}
    missing = sorted(option for option in options - unnamed if option not in text)
    assert not missing, f"docs/command-line.md does not name {missing}"
    names = {name for action in found if isinstance(action, argparse._SubParsersAction) for name in action.choices}
    assert {"index", "compact", "completion"} <= names
    assert not [name for name in names if f"`{name}" not in text and f"index {name}`" not in text]


@each(
    ("words", "required"),
    [
        (["map"], "module:function, --output, --to"),
        (["merge"], "--output"),
        (["show"], "SOURCE"),
        (["plan"], "FILE"),
        (["run"], "FILE"),
        (["ledger", "forget"], "URL, PATTERN"),
    ],
)
def test_what_may_be_left_out_is_not_asked_for(words: list[str], required: str) -> None:
    with pytest.raises(UsageError, match=rf"^the following arguments are required: {required}; see: ledgerbeam "):
        build_parser().parse_args(words)


def test_only_jobs_take_beam_options() -> None:
    commands = {parser.prog.split()[1]: parser for parser in parsers(build_parser()) if len(parser.prog.split()) == 2}
    behind = {name: parser.get_default("behind_dashes") for name, parser in commands.items()}
    assert {name for name, taken in behind.items() if taken == "beam options"} == {*JOBS, "run"}
    assert {name for name, taken in behind.items() if taken == "command"} == {"launch"}


def test_help_imports_nothing_that_takes_long() -> None:
    code = (
        "import sys; from ledgerbeam.pipelines.cli.parser import build_parser; build_parser().format_help(); "
        "print(sorted({'apache_beam', 'fsspec', 'lmdb', 'numpy', 'rich', 'shtab'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


def test_formats_of_other_packages_are_in_the_group_of_the_registry() -> None:
    assert FORMATS_GROUP == GROUP


def test_index_verify_and_verify_are_one_command(workspace: Workspace) -> None:
    workspace.jsonl("a.jsonl", 1)
    ran = [workspace.run(*words, "a.jsonl") for words in (("index", "verify"), ("verify",))]
    assert [one.status for one in ran] == [1, 1]
    assert ran[0].out == ran[1].out
    assert ran[0].out.endswith("\n1 source, 0 records, 1 problem\n")
    assert "see: ledgerbeam index verify --help" in workspace.run("verify", "--nothing").err
    text = workspace.run("verify", "--help").out
    assert text.startswith("usage: ledgerbeam index verify PATTERN...")
    assert "ledgerbeam ledger verify" in text


def completed(script: str, *words: str) -> set[str]:
    """Return the completions of bash for the last of some words."""
    line = " ".join(f"'{word}'" for word in words)
    typed = f"COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}"
    code = f"{script}\n{typed}\n_shtab_ledgerbeam\nprintf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


def test_bash_completes_commands_options_and_values_and_every_shell_has_a_script(workspace: Workspace) -> None:
    script = workspace.run("completion", "bash").out
    assert completed(script, "ledgerbeam", "ma") == {"map", "materialize"}
    assert completed(script, "ledgerbeam", "ledger", "com") == {"compact"}
    assert completed(script, "ledgerbeam", "convert", "--on") == {"--on-job-change", "--only-failed"}
    assert completed(script, "ledgerbeam", "convert", "--to", "mega") == {"megatron"}
    for shell in SHELLS:
        assert "materialize" in workspace.run("completion", shell, status=0).out
