"""``ledgerbeam launch ...``: print a script or manifest that starts a command on many hosts, which share its ledger."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ledgerbeam._base.redaction import command_without_secrets, without_secrets
from ledgerbeam.errors import UsageError
from ledgerbeam.pipelines.cli.arguments import Command, Parser, add_base_options, set_usage
from ledgerbeam.pipelines.cli.launchers import LAUNCHERS, PROGRAM


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(only_prints=True)
    ways = parser.add_subparsers(dest="way", metavar="WAY", required=True, parser_class=Parser)
    for name, way in LAUNCHERS.items():
        text = f"{way.text[0].upper()}{way.text[1:]}."
        added = ways.add_parser(name, help=way.text, description=text, allow_abbrev=False)
        add_base_options(added)
        way.add_arguments(added)
        added.epilog = "The command follows '--', for example: -- ledgerbeam map ... --ledger s3://bucket/progress"
        set_usage(added)
        added.usage = f"{added.usage} -- COMMAND"
    parser.set_defaults(behind_dashes="command")


def _run(args: argparse.Namespace, words: list[str]) -> int:
    check_command(words)
    print(LAUNCHERS[args.way].script(args, words), end="")
    return 0


def check_command(words: Sequence[str]) -> None:
    """Refuse a command that hosts cannot share, or that contains a secret.

    Args:
        words: The command. Other programs than ledgerbeam are only checked for secrets.

    Raises:
        UsageError: The command is empty or wrong, contains a secret, is not a job, or its ledger cannot be shared.
    """
    if not words:
        raise UsageError("no command: give it after '--', for example -- ledgerbeam map ... --ledger s3://bucket/run")
    _refuse_secrets(words)
    if words[0] == PROGRAM:
        _check_job(words[1:])


def _refuse_secrets(words: Sequence[str]) -> None:
    for word, shown in zip(words, command_without_secrets(words), strict=True):
        # Storage options are always hidden in `shown`; the secrets in them are registered by now.
        options = word.removeprefix("--storage-options=").startswith("{")
        if shown != word and not (options and without_secrets(word) == word):
            raise UsageError(
                f"the command contains a secret, which would be printed ({' '.join(command_without_secrets(words))}); "
                "leave it out and set it on the hosts, in the environment of the store's client"
            )


def _check_job(words: Sequence[str]) -> None:
    from ledgerbeam.io.storage.urls import is_local
    from ledgerbeam.pipelines.cli.parser import parse_words

    args, _beam_args = parse_words(list(words))
    if args.behind_dashes != "beam options":
        raise UsageError(f"{args.prog}: hosts cannot share this command; use a job such as ledgerbeam map")
    ledger = getattr(args, "ledger", None)
    if ledger is None or is_local(ledger):
        raise UsageError(
            f"--ledger: expected the URL of an object store, by which hosts share the job, found {ledger or 'none'}; "
            "use a URL such as s3://bucket/progress"
        )


COMMANDS = {"launch": Command("print a script to start a job on many hosts", _add_arguments, _run)}
