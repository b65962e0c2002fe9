"""Options that the ways to launch share, and how their values are read."""

from __future__ import annotations

import argparse
import re

from ledgerbeam.pipelines.calls.values import parse_count, parse_size

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,50}[a-z0-9])?")


def add_size(parser: argparse.ArgumentParser) -> None:
    """Add how many hosts, how they are called, and what each has."""
    parser.add_argument("--hosts", type=parse_count, required=True, metavar="N", help="how many share the job")
    parser.add_argument(
        "--name", type=parse_name, default="ledgerbeam", metavar="NAME", help="of the whole (default: ledgerbeam)"
    )
    parser.add_argument("--cpus", type=parse_count, metavar="N", help="cores of each host")
    parser.add_argument("--memory", type=parse_size, metavar="BYTES", help="memory of each host, for example 16G")


def add_setup(parser: argparse.ArgumentParser) -> None:
    """Add what each host does first."""
    parser.add_argument(
        "--setup",
        type=_line,
        action="append",
        default=[],
        metavar="LINE",
        help="a line of shell that each host runs first, such as '. venv/bin/activate'; may be repeated",
    )


def mebibytes(size: int) -> int:
    """Return a size in MiB, rounded up."""
    return -(-size // 2**20)


def parse_name(text: str) -> str:
    """Return a name that Slurm and Kubernetes take.

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    if not _NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"expected at most 52 small letters, digits and dashes, found {text!r}")
    return text


def _line(text: str) -> str:
    if "\n" in text or not text.strip():
        raise argparse.ArgumentTypeError(f"expected one line of shell, found {text!r}")
    return text
