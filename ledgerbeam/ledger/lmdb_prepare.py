"""What of a commit can be computed before its transaction begins, while other processes commit theirs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from hashlib import blake2b
from itertools import groupby
from operator import attrgetter
from typing import Any

from ledgerbeam.ledger.counting import Entry, entries
from ledgerbeam.ledger.identity import name_key, node_id
from ledgerbeam.ledger.json_rows import decode, encode
from ledgerbeam.ledger.segment import output_row, read_output
from ledgerbeam.ledger.store import Leaf, Output
from ledgerbeam.ledger.values import rows, text


class PreparedLeaf:
    """A leaf with its rows.

    Attributes:
        leaf: what was finished.
        is_all: no task above it fanned out into more than one, so it is all that its source owes.
        node: 16 bytes, the leaf's own.
        outputs: its rows of `outputs`, in key order.
        share: what it adds to the totals.
    """

    def __init__(self, leaf: Leaf) -> None:
        self.leaf = leaf
        self.is_all = leaf.lineage == ((0, 1),) * len(leaf.lineage)
        self.node = node_id(leaf.source_id, leaf.lineage)
        node, source = self.node.hex(), leaf.source_id
        self.outputs = sorted((source + name_key(output.name), encode_output(output, node)) for output in leaf.outputs)
        self.share = leaf.share()
        if not self.is_all:
            self.group, self.digest  # noqa: B018 - they will be needed, and not in the transaction

    @cached_property
    def group(self) -> tuple[Entry, ...]:
        """The entries of the leaf and of what is above it."""
        return entries(self.leaf.source_id, self.leaf.lineage)

    @cached_property
    def digest(self) -> bytes:
        """8 bytes by which the same result is known again."""
        digest = blake2b(self.leaf.kind.encode(), digest_size=8, person=b"lb.result")
        for output in sorted(self.leaf.outputs, key=attrgetter("name")):
            digest.update(self.leaf.source_id + name_key(output.name) + encode([output.size, output.checksum]))
        return digest.digest()


def prepare(leaves: Iterable[Leaf]) -> list[tuple[bytes, list[PreparedLeaf]]]:
    """Group leaves by source, in key order, with their rows computed."""
    ordered = sorted(leaves, key=attrgetter("source_id"))
    return [
        (source, [PreparedLeaf(leaf) for leaf in group])
        for source, group in groupby(ordered, key=attrgetter("source_id"))
    ]


def encode_output(output: Output, node: str) -> bytes:
    """Make a row of `outputs`."""
    return encode([*output_row(output), node])


def decode_output(row: bytes) -> tuple[Output, str]:
    """Read a row of `outputs`: the output and the hexadecimal node that published it. Raises ValueError."""
    *output, node = rows(decode(row))
    return read_output(output), text(node)


def decode_outputs(encoded: Sequence[bytes]) -> list[list[Any]]:
    """Read many rows of `outputs` at once: for each its name and its size, then what else it holds.

    Raises:
        ValueError: one does not read.
    """
    found = rows(decode(b"[%b]" % b",".join(encoded)))
    if len(found) != len(encoded):
        raise ValueError(f"expected {len(encoded)} outputs, found {len(found)}")
    for row in found:
        if type(row) is not list or len(row) not in (6, 7) or type(row[0]) is not str or type(row[1]) is not int:
            raise ValueError(f"expected a name, a size and more values, found {row!r:.80}")
    return found
