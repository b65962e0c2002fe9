"""Shared options of the launchers, and parsers of their values."""

from __future__ import annotations

import argparse
import re

from ledgerbeam.pipelines.calls.values import parse_count, parse_size

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,50}[a-z0-9])?")


def add_size(parser: argparse.ArgumentParser) -> None:
    """Add the options for the number, name and size of hosts."""
    parser.add_argument("--hosts", type=parse_count, required=True, metavar="N", help="number of hosts")
    parser.add_argument(
        "--name",
        type=parse_name,
        default="ledgerbeam",
        metavar="NAME",
        help="job name (default: ledgerbeam)",
    )
    parser.add_argument("--cpus", type=parse_count, metavar="N", help="cores of each host")
    parser.add_argument("--memory", type=parse_size, metavar="BYTES", help="memory of each host, for example 16G")


def add_setup(parser: argparse.ArgumentParser) -> None:
    """Add ``--setup``."""
    parser.add_argument(
        "--setup",
        type=_line,
        action="append",
        default=[],
        metavar="LINE",
        help="a shell line that each host runs first, such as '. venv/bin/activate'; may be repeated",
    )


def mebibytes(size: int) -> int:
    """Return a size in MiB, rounded up."""
    return -(-size // 2**20)


def parse_name(text: str) -> str:
    """Return a name that is valid for Slurm and Kubernetes.

    Raises:
        argparse.ArgumentTypeError: The name is not valid.
    """
    if not _NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"expected at most 52 lowercase letters, digits and dashes, found {text!r}")
    return text


def _line(text: str) -> str:
    if "\n" in text or not text.strip():
        raise argparse.ArgumentTypeError(f"expected one shell line, found {text!r}")
    return text
