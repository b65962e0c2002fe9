"""Values of the command line: text to what it means, or argparse's error."""

from __future__ import annotations

import argparse
import json
from typing import Any

__all__ = ["parse_count", "parse_options", "parse_part", "parse_seconds", "parse_size"]

_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def parse_size(text: str) -> int:
    """Reads a number of bytes such as ``1000000``, ``64K``, ``16MiB``; units are powers of 1024."""
    lowered = text.strip().lower().removesuffix("b").removesuffix("i")
    digits = lowered.rstrip("kmgt")
    unit = lowered[len(digits) :]
    try:
        size = int(float(digits) * _UNITS[unit])
    except (ValueError, KeyError, OverflowError):
        raise argparse.ArgumentTypeError(f"expected a size such as 16M, found {text!r}") from None
    if size < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1 byte, found {text!r}")
    return size


def parse_count(text: str) -> int:
    """Reads a whole number from 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, found {text!r}")
    return int(text)


def parse_seconds(text: str) -> float:
    """Reads seconds from 0.01 to 3,600."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.01 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"expected seconds from 0.01 to 3600, found {text!r}")
    return value


def parse_options(text: str) -> dict[str, Any]:
    """Reads a JSON object."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("expected a JSON object, found something else, not shown as it may be secret")
    return value


def parse_part(text: str) -> tuple[str, str]:
    """Reads ``NAME=PATTERN`` as a pair."""
    name, _, pattern = text.partition("=")
    if not name or not pattern:
        raise argparse.ArgumentTypeError(f"expected NAME=PATTERN such as 'val=b*', found {text!r}")
    return name, pattern
