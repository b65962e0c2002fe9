"""Damaged Megatron datasets: only typed errors, and memory bounded by the size of the input.

python -m tests.io.datasets.megatron.test_fuzz INPUTS [SEED]
"""

from __future__ import annotations

import os
import random
import resource
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from ledgerbeam.errors import LedgerbeamError
from ledgerbeam.io.datasets.megatron import MegatronReader
from tests.io.datasets.megatron.test_layout import MAGIC, fairseq, index
from tests.io.fuzzing import limit_memory

INPUTS = 1500
MOST_BYTES = 1_000_000
"""Far more than any of the inputs, of some 100 bytes, and far less than what their counts and lengths say."""


def test_damaged_datasets_give_typed_errors_and_take_little_memory(tmp_path: Path) -> None:
    run(50, 2, str(tmp_path))  # imports and caches
    tracemalloc.start()
    try:
        outcomes = run(INPUTS, 1, str(tmp_path))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MOST_BYTES
    assert outcomes["read"] > INPUTS / 2
    assert outcomes["IndexMismatchError"] > INPUTS / 4
    assert outcomes["open: IndexMismatchError"] > INPUTS / 4


SEEDS = [
    index(),
    index(rest=b"\1\2\3"),
    index(code=8),
    index(lengths=(), pointers=(), documents=(0,)),
    index(lengths=(0, 0), pointers=(0, 0), documents=(0, 0, 1, 2)),
    fairseq(4, (3, 2, 4), 4),
    fairseq(9, (9,), 4),
]
NUMBERS = [0, 1, 2, 3, 4, 8, 9, 36, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 8, 2**64 - 1]


def mutated(chance: random.Random) -> bytes:
    """Change an index here and there."""
    content = bytearray(chance.choice(SEEDS))
    for _ in range(chance.choice([1, 1, 2, 5])):
        at = chance.randrange(len(content) + 1)
        match chance.randrange(6):
            case 0:
                content[at : at + 8] = chance.choice(NUMBERS).to_bytes(8, "little")
            case 1:
                content[at : at + 4] = (chance.choice(NUMBERS) & 0xFFFFFFFF).to_bytes(4, "little")
            case 2:
                content[at : at + 1] = chance.randbytes(1)
            case 3:
                field = chance.choice([18, 26, 34, 38, 46, 54, 70])
                content[field : field + 8] = chance.choice(NUMBERS).to_bytes(8, "little")
            case 4:
                del content[at:]
            case _:
                content += chance.randbytes(chance.randrange(40))
    return bytes(content) if chance.random() < 0.95 else MAGIC + chance.randbytes(chance.randrange(120))


def read_all(prefix: str, chance: random.Random) -> list[Callable[[], object]]:
    """Ways to read. Each may raise typed errors."""
    mmap, multimodal, compat, check = (chance.random() < 0.5 for _ in range(4))
    reader = MegatronReader(prefix, mmap=mmap, multimodal=multimodal, compat=compat, check=check)
    number = chance.choice([0, 1, 2, -1, -3, 5])
    part = slice(chance.choice([None, 0, 1, -1]), chance.choice([None, 1, 3, -1]))
    return [
        lambda: reader[number],
        lambda: reader[part],
        lambda: reader.read_many([number] * chance.choice([1, 40])),
        lambda: list(reader),
        lambda: reader.get(number, chance.choice([0, 1, -1, 99]), chance.choice([None, 0, 1, -1, 2**40])),
        lambda: reader.document(number),
        lambda: reader.raw(number),
        reader.verify,
        reader.close,
    ]


def run(inputs: int, seed: int, folder: str) -> Counter[str]:
    """Read that many inputs in every way; return how often each outcome was met. Any other error is raised."""
    chance = random.Random(seed)
    prefix = os.path.join(folder, "fuzzed")
    outcomes: Counter[str] = Counter()
    for _ in range(inputs):
        Path(prefix + ".idx").write_bytes(mutated(chance))
        Path(prefix + ".bin").write_bytes(chance.randbytes(chance.choice([0, 36, 36, 36, 35, 72])))
        try:
            reads = read_all(prefix, chance)
        except LedgerbeamError as error:
            outcomes[f"open: {type(error).__name__}"] += 1
            continue
        for read in reads:
            try:
                read()
                outcomes["read"] += 1
            except (LedgerbeamError, IndexError) as error:
                outcomes[type(error).__name__] += 1
    return outcomes


if __name__ == "__main__":
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    limit_memory()
    with TemporaryDirectory(dir="/dev/shm") as place:
        print(run(int(sys.argv[1]), int((sys.argv[2:] or ["1"])[0]), place))
    print(f"memory grew by {(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024:.1f} MiB")
