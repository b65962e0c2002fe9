"""Mutants that no test can or should notice, each with the reason.

A key is what `make mutants` prints of a survivor: the module, the function, the text and what takes its place. An
entry that fits no mutant is an error, so that none outlives the code that it speaks of.
"""

from __future__ import annotations

_AT_ONCE = "how many objects are worked on at once: memory and requests"
_LARGE = "from which size on an object is not held in memory"
_MEMORY = "leaves are written in other parts: memory, and how many objects a snapshot has"
_SPEED = "spares look-ups that find nothing"
_STRICT = "lists of one length are zipped"
_TIME = "`_Snapshot.add` sets the time"

EXPLAINED: dict[tuple[str, str, str, str], str] = {
    ("ledgerbeam/io/objects.py", "", "64", "65"): _AT_ONCE,
    ("ledgerbeam/io/objects.py", "", "32 * 1024 * 1024", "32 * 1024"): _LARGE,
    ("ledgerbeam/io/objects.py", "", "32 * 1024 * 1024", "1024"): _LARGE,
    ("ledgerbeam/io/objects.py", "", "32 * 1024", "32"): _LARGE,
    ("ledgerbeam/io/objects.py", "", "32 * 1024", "1024"): _LARGE,
    ("ledgerbeam/io/objects.py", "", "32", "33"): _LARGE,
    ("ledgerbeam/io/objects.py", "", "1024", "1025"): _LARGE,
    ("ledgerbeam/io/publish.py", "", "1024 * 1024", "1024"): "the size of a buffer",
    ("ledgerbeam/io/publish.py", "", "1024", "1025"): _LARGE,
    ("ledgerbeam/io/publish.py", "", "32 * 1024 * 1024", "32 * 1024"): _LARGE,
    ("ledgerbeam/io/publish.py", "", "32 * 1024 * 1024", "1024"): _LARGE,
    ("ledgerbeam/io/publish.py", "", "32 * 1024", "32"): _LARGE,
    ("ledgerbeam/io/publish.py", "", "32 * 1024", "1024"): _LARGE,
    ("ledgerbeam/io/publish.py", "", "32", "33"): _LARGE,
    ("ledgerbeam/io/publish.py", "publish", "0", "1"): "no file is older than the first nanosecond of 1970",
    ("ledgerbeam/io/publish.py", "publish_bytes", "0", "1"): "no file is older than the first nanosecond of 1970",
    ("ledgerbeam/io/publish.py", "_open_temporary", "1", "2"): "of a very long name one byte less is kept",
    (
        "ledgerbeam/io/publish.py",
        "_publish_local",
        'open(descriptor, "wb", buffering=_BUFFER)',
        "open(descriptor, 'wb')",
    ): "the size of a buffer",
    (
        "ledgerbeam/io/publish.py",
        "_publish_local",
        "os.fstat(descriptor).st_mtime_ns < not_before_ns",
        "os.fstat(descriptor).st_mtime_ns <= not_before_ns",
    ): "a time is set to what it is",
    ("ledgerbeam/ledger/compaction.py", "", "50_000", "50001"): _MEMORY,
    ("ledgerbeam/ledger/compaction.py", "", "100", "101"): _AT_ONCE,
    ("ledgerbeam/ledger/compaction.py", "_Snapshot.add", "3", "4"): "one digit more of a time",
    ("ledgerbeam/ledger/compaction.py", "_open_leaves", "0", "1"): _MEMORY,
    ("ledgerbeam/ledger/compaction.py", "_open_leaves", "count += len(leaves)", "pass"): _MEMORY,
    ("ledgerbeam/ledger/compaction.py", "_open_leaves", "count >= _PART_LEAVES", "count > _PART_LEAVES"): _MEMORY,
    ("ledgerbeam/ledger/compaction.py", "_open_leaves", "count >= _PART_LEAVES", "count < _PART_LEAVES"): _MEMORY,
    ("ledgerbeam/ledger/compaction.py", "_open_leaves", "count >= _PART_LEAVES", "True"): _MEMORY,
    ("ledgerbeam/ledger/compaction.py", "_open_leaves", "count >= _PART_LEAVES", "False"): _MEMORY,
    ("ledgerbeam/ledger/compaction.py", "_of_leaves", "0.0", "1.0"): _TIME,
    ("ledgerbeam/ledger/compaction.py", "_sources", "0.0", "1.0"): _TIME,
    ("ledgerbeam/ledger/compaction.py", "_rest", "0.0", "1.0"): _TIME,
    ("ledgerbeam/ledger/compaction.py", "_states", "0.0", "1.0"): _TIME,
    ("ledgerbeam/ledger/folding.py", "", "32", "33"): _AT_ONCE,
    ("ledgerbeam/ledger/folding.py", "", "20", "21"): "how often a listing is made again before that is an error",
    ("ledgerbeam/ledger/folding.py", "snapshot_name", "1", "2"): "ordinals ascend, in whatever steps",
    ("ledgerbeam/ledger/folding.py", "snapshot_name", "0", "1"): "ordinals ascend, from wherever they begin",
    ("ledgerbeam/ledger/folding.py", "read_listed", "True", "False"): _STRICT,
    ("ledgerbeam/ledger/lmdb_floors.py", "", "48", "49"): "also more than the tasks of any source",
    (
        "ledgerbeam/ledger/lmdb_floors.py",
        "read_floors",
        "txn.get(FLOORS, source) if txn.count(FLOORS) else None",
        "txn.get(FLOORS, source)",
    ): _SPEED,
    ("ledgerbeam/ledger/remote_sink.py", "", "10.0", "21.0"): "how often a worker looks",
    (
        "ledgerbeam/ledger/remote_sink.py",
        "RemoteSink._forget_parent",
        "0",
        "1",
    ): "a writer counts its segments from another number on; for the number of a run a test notices it",
    (
        "ledgerbeam/ledger/remote_sink.py",
        "RemoteSink.commit",
        "time.monotonic() - self._checked > CHECK_SECONDS",
        "time.monotonic() - self._checked >= CHECK_SECONDS",
    ): "no clock stands at an instant",
    ("ledgerbeam/ledger/remote_sink.py", "RemoteSink.commit", "1", "2"): "a writer counts its segments in other steps",
    ("ledgerbeam/ledger/remote_sink.py", "RemoteSink.commit", "6", "7"): "one digit more of a time",
    (
        "ledgerbeam/ledger/remote_sink.py",
        "RemoteSink._check_job",
        "64",
        "65",
    ): "in the slice: one object is read in two pages; for the step a test notices it",
    ("ledgerbeam/ledger/remote_sink.py", "RemoteSink._check_job", "True", "False"): _STRICT,
    (
        "ledgerbeam/ledger/sidecar.py",
        "enter",
        "sources if txn.count(FLOORS) or txn.count(RETIRED) else ()",
        "sources",
    ): _SPEED,
    (
        "ledgerbeam/ledger/sidecar.py",
        "lacks_sources",
        "txn.count(FLOORS) > 0 and any(may_be_early(txn, source, segment.number) for source in others)",
        "any((may_be_early(txn, source, segment.number) for source in others))",
    ): _SPEED,
    ("ledgerbeam/ledger/sidecar.py", "lacks_sources", "txn.count(FLOORS) > 0", "txn.count(FLOORS) >= 0"): _SPEED,
    ("ledgerbeam/ledger/sidecar.py", "lacks_sources", "txn.count(FLOORS) > 0", "True"): _SPEED,
}
