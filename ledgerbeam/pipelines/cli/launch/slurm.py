"""``ledgerbeam launch slurm``: script of a Slurm array. Each array task is a host that shares the job."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator, Sequence

from ledgerbeam.pipelines.cli.launch.options import add_setup, add_size, mebibytes

TEXT = "print the script of a Slurm array, for sbatch"

_VALUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.,:=@%+/-]*")
_OPTION = re.compile(r"[a-z][a-z-]*(=[^\s]+)?")
GRACE_SECONDS = 60
"""Seconds from the signal to the end of an array task's time. The host then releases its claimed work at once."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the launcher."""
    add_size(parser)
    add_setup(parser)
    parser.add_argument("--time", type=_value, metavar="LIMIT", help="time limit of each host, for example 12:00:00")
    parser.add_argument("--partition", type=_value, metavar="NAME", help="partition of the cluster")
    parser.add_argument("--account", type=_value, metavar="NAME", help="account to charge")
    parser.add_argument(
        "--sbatch",
        type=_option,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a further sbatch option, such as qos=high; may be repeated",
    )


def text(args: argparse.Namespace, words: Sequence[str]) -> str:
    """Return the script."""
    directives = "".join(f"#SBATCH --{option}\n" for option in _directives(args))
    setup = "".join(f"{line}\n" for line in args.setup)
    return (
        f"#!/bin/bash\n{directives}set -euo pipefail\n{setup}"
        f"# exec replaces the shell, so that the command gets the signal before its time ends.\n"
        f"exec {shlex.join(words)}\n"
    )


def _directives(args: argparse.Namespace) -> Iterator[str]:
    yield f"job-name={args.name}"
    yield f"array=0-{args.hosts - 1}"
    yield "nodes=1"
    yield "ntasks=1"
    if args.cpus is not None:
        yield f"cpus-per-task={args.cpus}"
    if args.memory is not None:
        yield f"mem={mebibytes(args.memory)}M"
    for name in ("time", "partition", "account"):
        if (value := getattr(args, name)) is not None:
            yield f"{name}={value}"
    yield "requeue"  # a preempted host is started again and resumes
    yield "open-mode=append"
    yield f"signal=B:TERM@{GRACE_SECONDS}"
    yield "output=%x-%A_%a.log"
    yield from args.sbatch


def _value(text: str) -> str:
    if not _VALUE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"expected the value of an sbatch option, without spaces, found {text!r}")
    return text


def _option(text: str) -> str:
    if not _OPTION.fullmatch(text):
        raise argparse.ArgumentTypeError(f"expected NAME or NAME=VALUE such as qos=high, found {text!r}")
    return text
