"""Which objects of a ledger a sidecar has taken in, and of which it must look at the leaves once more."""

from __future__ import annotations

from ledgerbeam.ledger.lmdb.tables import FOLDED, META, Transaction

KEY_NUMBER = b"number"

_WHOLE, _LEAVES_AGAIN = b"", b"leaves"


def highest_number(txn: Transaction) -> int:
    """Return the greatest number of a control object that was folded."""
    return int(txn.get(META, KEY_NUMBER) or b"0")


def is_folded(txn: Transaction, name: str) -> bool:
    """Return whether an object was taken in, and nothing of it is due once more."""
    return txn.get(FOLDED, name.encode()) == _WHOLE


def are_leaves_due(txn: Transaction, name: str) -> bool:
    """Return whether an object was taken in, and its leaves are due once more."""
    return txn.get(FOLDED, name.encode()) == _LEAVES_AGAIN


def mark_folded(txn: Transaction, name: str) -> None:
    """Note that an object was taken in."""
    txn.put(FOLDED, name.encode(), _WHOLE)


def fold_leaves_again(txn: Transaction, number: int) -> None:
    """Have the leaves of all objects that carry a number, or a greater one, folded once more.

    Some of them have left no trace, or were withdrawn with others, and count as is known by now.
    """
    for later in range(number, highest_number(txn) + 1):
        for prefix in (f"segments/{later:06d}/t-", f"snapshots/{later:06d}-"):
            found = [(key, _LEAVES_AGAIN) for key, _ in txn.scan(FOLDED, prefix.encode())]
            txn.put_many(FOLDED, found)
