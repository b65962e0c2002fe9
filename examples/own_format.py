"""File format of your own: text in any encoding, one record for each line. docs/own-format.md explains it.

    python examples/own_format.py texts.lines

The program indexes a text and prints its lines in random order. To use the format on the command line, too, name
`TextLines` as an entry point of a package:

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
        encoding: Encoding of the text. It must encode a newline, and only a newline, as the byte 10.
    """

    name = "lines"
    suffixes = (".lines",)

    encoding: str = "utf-8"

    def decode(self, data: bytes) -> str:
        """Decode a line, without its line end."""
        return data.removesuffix(b"\n").decode(self.encoding)

    def encode_record(self, record: Any) -> bytes:
        """Encode a line."""
        if not isinstance(record, str) or "\n" in record:
            raise ValueError(f"expected a string without line ends, found {record!r:.40}; map records to such strings")
        return record.encode(self.encoding) + b"\n"


def shout(line: str) -> str | None:
    """Convert a line to upper case, and drop blank lines. This is a function for `ledgerbeam map`."""
    return line.upper() if line.strip() else None


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Print the lines of a text in a random order.")
    parser.add_argument("text", help="file with the suffix .lines")
    parser.add_argument("--seed", type=int, default=0, help="number that selects the random order (default: 0)")
    args = parser.parse_args(argv)

    register(TextLines())  # not needed with an entry point
    write_index(f"{args.text}.idx", build_index(args.text))
    for line in Records(open_source(args.text), shuffle=True, seed=args.seed):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
