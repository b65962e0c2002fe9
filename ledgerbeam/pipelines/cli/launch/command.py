"""The command that many hosts are to run: checked here, since there its errors would come from all of them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ledgerbeam._base.redaction import command_without_secrets, without_secrets
from ledgerbeam.errors import UsageError

_PROGRAM = "ledgerbeam"


def check_command(words: Sequence[str]) -> None:
    """Refuse a command that hosts could not share, or that holds a secret.

    Args:
        words: The command. Another program than ledgerbeam is taken as it is.

    Raises:
        UsageError: There is none, it is wrong, it is no job, or its ledger cannot be shared.
    """
    if not words:
        raise UsageError("no command: give it behind '--', for example -- ledgerbeam map ... --ledger s3://bucket/run")
    _refuse_secrets(words)
    if words[0] == _PROGRAM:
        _check_job(words[1:])


def with_workers(words: Sequence[str], cores: int | None) -> list[str]:
    """Return a command whose job starts a worker for each core of its container: it sees those of the whole node.

    Args:
        words: The command, checked.
        cores: Of the container; None for all of the node.
    """
    cut = words.index("--") if "--" in words else len(words)
    given = any(word.partition("=")[0] == "--workers" for word in words[:cut])
    if words[0] != _PROGRAM or cores is None or given:
        return list(words)
    return [*words[:cut], "--workers", str(cores), *words[cut:]]


def refuse_secret(name: str, value: str) -> None:
    """Refuse the value of an environment variable that is a secret.

    Raises:
        argparse.ArgumentTypeError: It is one, by its name or by its value.
    """
    words = [f"{name}={value}"]
    if command_without_secrets(words) != words:
        raise argparse.ArgumentTypeError(
            f"{name}: its value would be printed; name the secret that holds it, with --secret-env {name}=SECRET:KEY"
        )


def _refuse_secrets(words: Sequence[str]) -> None:
    for word, shown in zip(words, command_without_secrets(words), strict=True):
        # Storage options are always hidden there; what in them is secret is known by now.
        options = word.removeprefix("--storage-options=").startswith("{")
        if shown != word and not (options and without_secrets(word) == word):
            raise UsageError(
                f"the command holds a secret, which would be printed ({' '.join(command_without_secrets(words))}); "
                "leave it out, and give it to the hosts in the environment of the store's client"
            )


def _check_job(words: Sequence[str]) -> None:
    from ledgerbeam.io.storage.urls import is_local
    from ledgerbeam.pipelines.cli.parser import parse_words

    args, _beam_args = parse_words(list(words))
    if args.behind_dashes != "beam options":
        raise UsageError(f"{args.prog}: expected a job such as ledgerbeam map, which hosts can share")
    ledger = getattr(args, "ledger", None)
    if ledger is None or is_local(ledger):
        raise UsageError(
            f"hosts share a job by its ledger: expected --ledger with the URL of an object store such as "
            f"s3://bucket/progress, found {ledger or 'none'}"
        )
