"""A format of one's own: text in any encoding, a record is a line. docs/own-format.md has what there is to know.

    python examples/own_format.py texts.lines

indexes a text and prints its lines in a random order. A package that names `TextLines` as an entry point makes it a
format of the command line too:

    [project.entry-points."ledgerbeam.formats"]
    lines = "own_format:TextLines"
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ledgerbeam.io import LineFormat, build_index, open_source, register, write_index
from ledgerbeam.iterators import Records


@dataclass(frozen=True)
class TextLines(LineFormat):
    """Text in any encoding.

    Attributes:
        encoding: How characters are written; one in which a newline is the one byte 10.
    """

    name = "lines"
    suffixes = (".lines",)

    encoding: str = "utf-8"

    def decode(self, data: bytes) -> str:
        """Return the line in some bytes, without its end."""
        return data.removesuffix(b"\n").decode(self.encoding)

    def encode_record(self, record: Any) -> bytes:
        """Return the bytes of a line."""
        if not isinstance(record, str) or "\n" in record:
            raise ValueError(f"expected a string without line ends, found {record!r:.40}; map records to such strings")
        return record.encode(self.encoding) + b"\n"


def shout(line: str) -> str | None:
    """Return a function for `ledgerbeam map`: blank lines are dropped."""
    return line.upper() if line.strip() else None


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Print the lines of a text in a random order.")
    parser.add_argument("text")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)

    register(TextLines())  # not needed where an entry point names it
    write_index(f"{args.text}.idx", build_index(args.text))
    for line in Records(open_source(args.text), shuffle=True, seed=args.seed):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
