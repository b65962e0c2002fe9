"""``ledgerbeam launch slurm``: an array of Slurm, each of whose tasks is a host that shares the job."""

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
"""How long before the end of its time a task is told, so that what it has begun is given back at once."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the way."""
    add_size(parser)
    add_setup(parser)
    parser.add_argument("--time", type=_value, metavar="LIMIT", help="of each host, for example 12:00:00")
    parser.add_argument("--partition", type=_value, metavar="NAME", help="partition of the cluster")
    parser.add_argument("--account", type=_value, metavar="NAME", help="account that is charged")
    parser.add_argument(
        "--sbatch",
        type=_option,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="one more option of sbatch, such as qos=high; may be repeated",
    )


def text(args: argparse.Namespace, words: Sequence[str]) -> str:
    """Return the script."""
    directives = "".join(f"#SBATCH --{option}\n" for option in _directives(args))
    setup = "".join(f"{line}\n" for line in args.setup)
    return (
        f"#!/bin/bash\n{directives}set -euo pipefail\n{setup}"
        f"# In place of the shell, so that it gets the signal which comes before the end of the time.\n"
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
    yield "requeue"  # a host that is taken away comes back, and goes on
    yield "open-mode=append"
    yield f"signal=B:TERM@{GRACE_SECONDS}"
    yield "output=%x-%A_%a.log"
    yield from args.sbatch


def _value(text: str) -> str:
    if not _VALUE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"expected a value of an option of sbatch without spaces, found {text!r}")
    return text


def _option(text: str) -> str:
    if not _OPTION.fullmatch(text):
        raise argparse.ArgumentTypeError(f"expected NAME or NAME=VALUE as in qos=high, found {text!r}")
    return text
