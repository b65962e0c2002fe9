"""``ledgerbeam ledger forget`` and ``ledgerbeam ledger compact``: actions that change a ledger."""

from __future__ import annotations

import argparse
import dataclasses

from ledgerbeam.errors import UsageError
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.ledger import compact as compact_store
from ledgerbeam.ledger.remote.store import RemoteStore
from ledgerbeam.pipelines.console.reporter import print_json
from ledgerbeam.pipelines.console.run_progress import count


def forget(store: LedgerStore, args: argparse.Namespace) -> int:
    """Forget sources, so that the next run processes them again. Returns 0.

    Raises:
        UsageError: A pattern matches no source.
    """
    forgotten: list[str] = []
    gone = store.gone_ids() if not args.failures_only else set()
    missed = {row.url for row in store.sources() if row.source_id in gone} if gone else set()
    for pattern in args.patterns:
        found = store.forget(pattern, failures_only=args.failures_only)
        if not found:
            raise UsageError(f"{pattern}: no source of the ledger matches; its URLs are absolute, and * also matches /")
        forgotten += found
    if args.json:
        print_json({"forgotten": forgotten})
    else:
        print(f"{count(len(forgotten), 'source')} forgotten; the next run processes them again")
        if missing := missed.intersection(forgotten):
            print(
                f"{len(missing):,} of them were missing from the last listing; if they are still missing, their "
                "outputs are kept, and the next run names them"
            )
    return 0


def compact(store: LedgerStore, args: argparse.Namespace) -> int:
    """Replace the objects of a remote ledger by one snapshot. Returns 0.

    Raises:
        UsageError: The ledger is local.
    """
    if not isinstance(store, RemoteStore):
        raise UsageError(f"ledger {args.url}: only remote ledgers can be compacted; a local ledger does not need it")
    done = compact_store(store)
    if args.json:
        print_json(dataclasses.asdict(done))
    else:
        print(f"{count(done.replaced, 'object')} replaced by a snapshot of {done.parts:,}, {count(done.bytes, 'byte')}")
    return 0
