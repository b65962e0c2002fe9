"""Objects of a hostile writer: `python -m tests.fault.fuzz --inputs N --seed S` feeds a ledger's readers with them.

Valid objects are mutated as values, and sealed again, so that what lies behind the checksum is reached; a smaller part
is mutated as bytes. Readers may raise a LedgerbeamError, and nothing else. A part of what does decode is folded into a
sidecar, which must stay consistent in itself.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ledgerbeam.errors import LedgerbeamError, LedgerDamagedError
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.ledger.lmdb.tables import (
    APPLIED,
    COMPLETED,
    COUNTS,
    GONE,
    OUTPUTS,
    PENDING,
    PENDING_ROW,
    SOURCES,
    STATISTICS,
    Transaction,
)
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.ledger.model.job import Job
from ledgerbeam.ledger.model.rows import Failure, Mark
from ledgerbeam.ledger.model.task import Source
from ledgerbeam.ledger.model.values import decode
from ledgerbeam.ledger.remote import apply as sidecar
from ledgerbeam.ledger.remote.controls import Control, decode_control, decode_ledger, encode_control, encode_ledger
from ledgerbeam.ledger.remote.replay import INVALID_ROWS, SnapshotManifest, decode_manifest, encode_manifest
from ledgerbeam.ledger.remote.segment import MAGIC, Segment, decode_segment, encode_segment, seal
from ledgerbeam.ledger.remote.store import RemoteStore
from tests.fault.ledger_model import tree_of
from tests.ledger.builders import plain
from tests.ledger.stores import picture

FOLD_SHARE = 0.25
STORE_FOLDS = 60
BYTES_SHARE = 0.1

SOURCES_OF_FUZZ = [plain(name, version) for name in "abc" for version in "12"] + [Source.pack([plain("a"), plain("d")])]

HOSTILE: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63 - 1, 2**63, 10**30, -(2**70), 0.5, 1e300, "", "..", "../../etc/passwd",
    "/etc/passwd", "a/../../b", "a\x00b", "\ud800", "s3://bucket/name", "file:///etc/passwd", "x" * 5000, "00" * 16,
    "ff" * 16, [], {}, [[]], [[0, 1]], [[0, 2**62]], [[2**62, 2**63 - 1]], [[0, 1]] * 500, {"a": {"b": []}}, "nan",
]  # fmt: skip


def mutate(choice: random.Random, value: Any) -> Any:
    """Change one place of a JSON value, however deep."""
    if isinstance(value, dict) and value and choice.random() < 0.9:
        key = choice.choice(sorted(value))
        if choice.random() < 0.05:
            return {name: item for name, item in value.items() if name != key}
        return {**value, key: mutate(choice, value[key])}
    if isinstance(value, list) and value and choice.random() < 0.9:
        place = choice.randrange(len(value))
        what = choice.random()
        if what < 0.05:
            return value[:place] + value[place + 1 :]
        if what < 0.1:
            return [*value, value[place]]
        return [*value[:place], mutate(choice, value[place]), *value[place + 1 :]]
    if isinstance(value, int) and not isinstance(value, bool) and choice.random() < 0.4:
        return value + choice.choice([-1, 1, 2, 5])
    if isinstance(value, str) and len(value) == 32 and choice.random() < 0.5:
        return choice.choice(SOURCES_OF_FUZZ).id.hex()
    return choice.choice(HOSTILE)


SNAPSHOT = "snapshots/000003-000001-0123456789abcdef"


class Inputs:
    """Makes hostile objects from a seed."""

    def __init__(self, seed: int) -> None:
        self.choice = random.Random(seed)
        self.readers: list[tuple[str, Callable[[bytes, str], object], list[bytes]]] = [
            ("segment", decode_segment, [encode_segment(segment) for segment in _segments()]),
            ("manifest", decode_manifest, [encode_manifest(manifest) for manifest in _manifests()]),
            ("control", decode_control, [encode_control(control) for control in _controls()]),
            ("job", decode_ledger, [encode_ledger("ab" * 16, Job("map", {"to": "jsonl", "deep": {"a": [1]}}))]),
        ]

    def make(self) -> tuple[str, Callable[[bytes, str], object], bytes]:
        """Return one object, its kind and its reader."""
        kind, reader, seeds = self.choice.choices(self.readers, [6, 1, 2, 1])[0]
        data = self.choice.choice(seeds)
        if self.choice.random() < BYTES_SHARE:
            return kind, reader, self._mutate_bytes(data)
        sealed = data.startswith(MAGIC)
        value = decode(data[32:] if sealed else data)
        for _ in range(self.choice.choice([1, 1, 1, 2, 4])):
            value = mutate(self.choice, value)
        payload = json.dumps(value).encode("ascii")
        if self.choice.random() < 0.01:
            depth = self.choice.choice([100, 2000, 100_000])
            payload = payload[:-1] + b',"x":' + b"[" * depth + b"]" * depth + b"}"
        return kind, reader, seal(payload) if sealed else payload

    def _mutate_bytes(self, data: bytes) -> bytes:
        found = bytearray(data)
        what = self.choice.random()
        if what < 0.3:
            return bytes(found[: self.choice.randrange(len(found))])
        for _ in range(self.choice.choice([1, 2, 8])):
            found[self.choice.randrange(len(found))] = self.choice.randrange(256)
        return bytes(found)


def _segments() -> list[Segment]:
    leaves = [leaf for source in SOURCES_OF_FUZZ for leaf in tree_of(source).values()]
    ids = [source.id for source in SOURCES_OF_FUZZ]
    failures = [Failure(ids[0], ((0, 2),), "task", "ValueError", "bad")]
    hexed = [source.hex() for source in ids]
    state = {
        "cutoffs": [[hexed[0], 3, 1, 0, 2]],
        "retired": [[hexed[1], ["/data/a.jsonl"]]],
        "replaces": [[hexed[2]]],
        "back": [[hexed[2], 3]],
        "complete": [
            [hexed[3], 1_700_000_000, [1, 2, 3, 0, 5], [["data/x", 1, "sum", 1, 0]]],
            [
                *(hexed[4], 1_700_000_000, [2, 7, 3, 0, 5], [["data/y", 1, "sum", 1, 0, 0, "de"]]),
                [[hexed[0], [6, 4, [["short", 1]], [["bad", 1]], [["", 3], ["de", 2]], 3, 5]]],
            ],
        ],
        "statistics": [[hexed[4], hexed[0], [["length", "count", "AAAA"], ["seen", "kll", ""]]]],
        "contradicted": [[hexed[4]]],
        "failed": [[hexed[0], hexed[1], "task", "why", "error", 2, 1.5, False]],
        "attempts": [[hexed[0], hexed[1], 2]],
        "superseded": [[hexed[5], "data/old", 3]],
        "history": [[170_000_000, 1, 1, 2, 3, 0, 5, 1, 0], [170_000_001, 1, 2, 3, 0, 5, 1, 0]],
        "durations": [[3, 4]],
    }
    return [
        Segment(3, 1.7e9, "ab" * 16, sources=SOURCES_OF_FUZZ),
        Segment(3, 1.7e9, "ab" * 16, leaves=leaves, failures=failures),
        Segment(4, 1.7e9, deaths=[Mark(ids[0], ids[1], "task")], dropped=["data/old"], gone=ids[:2], back=ids[2:3]),
        Segment(4, 1.7e9, runs={"000001": {"listed": 3, "listing_finished": True, "ended": 1.5, "outcome": "done"}}),
        Segment(5, 1.7e9, state=state),
    ]


def _manifests() -> list[SnapshotManifest]:
    covers = ["segments/000001/t-host-1-ab-000001.seg", f"{SNAPSHOT}.json"]
    return [SnapshotManifest(SNAPSHOT, 3, {f"{SNAPSHOT}/000001.seg": "ab" * 16}, covers)]


def _controls() -> list[Control]:
    ids = [source.id for source in SOURCES_OF_FUZZ]
    job = Job("map", {"to": "jsonl"})
    return [
        Control(1, "run", 1.5, "token", info={"host": "here"}),
        Control(2, "forget", 1.5, "token", sources=ids[:2], failures_only=False),
        Control(3, "restart", 1.5, "token", job=job),
        Control(4, "accept", 1.5, "token", job=job),
    ]


class Sidecar:
    """A sidecar into which hostile segments and controls are folded."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self._made = 0
        self._store: RemoteStore | None = None

    def fold(self, kind: str, found: Any) -> None:
        """Folds what was decoded. Raises LedgerDamagedError for what cannot be."""
        if self._store is None or self._count >= STORE_FOLDS:
            self.close()
            self._made += 1
            folder = self._folder / str(self._made)
            self._store = RemoteStore(ObjectFolder(str(folder / "ledger")), str(folder / "host"))
            self._store.open(create=True)
            self._count = 0
        self._count += 1
        _, environment = self._store.parts()

        def change(txn: Transaction) -> None:
            try:
                if kind == "segment":
                    sidecar.fold_segment(txn, f"segments/{self._count}", found)
                else:
                    sidecar.fold_control(txn, f"controls/{self._count}", found, "hostile")
            except INVALID_ROWS as error:
                raise LedgerDamagedError(f"{error}") from None

        environment.write(change)

    def check(self) -> None:
        """Check that the sidecar is consistent in itself, and that everything that reads it works."""
        if self._store is None:
            return
        shown = picture(self._store)
        assert all(number >= 0 for number in shown["sources"].values()), shown["sources"]
        list(self._store.outputs(ordered=False))
        by_source = RecordCounts()
        for row in shown["rows"]:
            by_source = by_source.plus(row.counts)
        assert by_source.as_dict() == shown["records"], "the sources do not add up to the records"
        self._store.history()
        self._store.durations()
        with self._store.parts()[1].read() as txn:
            sources = {key for key, _ in txn.scan(SOURCES, b"")}
            complete = {key for key, _ in txn.scan(COMPLETED, b"")}
            pending = {key: PENDING_ROW.unpack(row)[0] for key, row in txn.scan(PENDING, b"")}
            for table in (COMPLETED, PENDING, GONE, OUTPUTS, APPLIED, COUNTS, STATISTICS):
                strays = {key[:16] for key, _ in txn.scan(table, b"")} - sources
                assert not strays, f"{table} has rows of sources that are not registered"
            assert not complete & pending.keys(), "a source is complete and pending"
            assert all(count > 0 for count in pending.values()), "a pending source has no live task"

    def close(self) -> None:
        if self._store is not None:
            self.check()
            self._store.close()
            self._store = None


def fuzz(inputs: int, seed: int, folder: Path, fold_share: float = FOLD_SHARE) -> Counter[str]:
    """Feed hostile objects. Raises whatever is not a typed error, with the object as a note."""
    made = Inputs(seed)
    target = Sidecar(folder)
    counts: Counter[str] = Counter()
    for number in range(inputs):
        kind, reader, data = made.make()
        counts[kind] += 1
        try:
            found = reader(data, f"hostile/{SNAPSHOT}.json")
            counts["decoded"] += 1
            if kind in ("segment", "control") and made.choice.random() < fold_share:
                try:
                    target.fold(kind, found)
                    counts["folded"] += 1
                except LedgerDamagedError:
                    counts["refused in folding"] += 1
        except LedgerbeamError:
            counts["refused"] += 1
        except Exception as error:
            error.add_note(f"input {number} of seed {seed}, a {kind}: {data[:3000]!r}")
            raise
    target.close()
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fault.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    used = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 30), -1))  # LMDB maps 1 GiB an environment, twice at most
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        counts = fuzz(args.inputs, args.seed, Path(folder))
    figures = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"{args.inputs} inputs of seed {args.seed}: {figures}; peak {peak} MB, {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
