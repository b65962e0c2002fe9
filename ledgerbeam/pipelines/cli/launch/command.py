"""Checks of the command that many hosts run. An error here is better than the same error from every host."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ledgerbeam._base.redaction import command_without_secrets, without_secrets
from ledgerbeam.errors import UsageError

_PROGRAM = "ledgerbeam"


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
    if words[0] == _PROGRAM:
        _check_job(words[1:])


def with_workers(words: Sequence[str], cores: int | None) -> list[str]:
    """Return the command with ``--workers`` set to the cores of its container.

    Without it, the job would start a worker for each core of the whole node.

    Args:
        words: The command, checked.
        cores: Number of cores of the container; None for all cores of the node.
    """
    cut = words.index("--") if "--" in words else len(words)
    given = any(word.partition("=")[0] == "--workers" for word in words[:cut])
    if words[0] != _PROGRAM or cores is None or given:
        return list(words)
    return [*words[:cut], "--workers", str(cores), *words[cut:]]


def refuse_secret(name: str, value: str) -> None:
    """Refuse the value of an environment variable that is a secret.

    Raises:
        argparse.ArgumentTypeError: The name or the value indicates a secret.
    """
    words = [f"{name}={value}"]
    if command_without_secrets(words) != words:
        raise argparse.ArgumentTypeError(
            f"{name}: its value would be printed; use a Secret of the cluster: --secret-env {name}=SECRET:KEY"
        )


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
