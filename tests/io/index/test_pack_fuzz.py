"""Damaged `.idxpack` files, versions 2 and 3: `python -m tests.io.index.test_pack_fuzz INPUTS [SEED]`."""

from __future__ import annotations

import random
from pathlib import Path

from ledgerbeam.io.idxpack.reader import IndexPack
from ledgerbeam.io.idxpack.writer import PackArray, PackSources, write_index_pack
from tests.io.fuzzing import Files, Trial, fuzz_briefly, main
from tests.iterators.data import write_lines, write_pack, write_samples

SOURCE_BYTES = 4096


def pack_trial(folder: Path) -> Trial:
    lines = [write_lines(folder / f"{number}.jsonl", count, 100 * number) for number, count in enumerate([5, 1, 40])]
    tar = write_samples(folder / "a.tar", 3)
    write_pack(folder / "two.idxpack", lines)
    write_index_pack(
        str(folder / "three.idxpack"),
        [
            PackArray("rows", "u32", "s", [[4, 0, 2**32 - 1], [], [7]]),
            PackSources("r", "k", "s", [*lines, tar]),
            PackSources("names", "k", "s", lines[:1], offsets=False),
        ],
    )
    names = ["two.idxpack", "three.idxpack"]
    contents = {name: (folder / name).read_bytes() for name in names}
    text = {name: int.from_bytes(contents[name][16 + 48 : 16 + 56], "little") for name in names}
    fields = {name: [8, 12, *range(16, 96, 8), *range(256, text[name], 8)] for name in names}
    files = Files(folder, contents, fields)
    most = sum(Path(source).stat().st_size for source in [*lines, tar])

    def trial(chance: random.Random) -> str:
        name, content = files.damage(chance)
        pack = IndexPack(f"{folder}/{name}")
        if chance.random() < 0.2:
            pack.verify()
        if not pack.keys:
            return "empty"
        key = chance.choice(pack.keys)
        row = pack._row(key)
        sources = pack.sources(key)
        if row["flags"] & 2:
            assert sum(len(part) for part in pack.array(key)) * 4 <= len(content)
            return "read numbers"
        assert sum(map(len, sources)) <= len(content) * max(1, len(sources))
        if row["flags"]:
            return "read names"
        records = pack.collection(key)
        try:
            numbers = [chance.randrange(len(records)) for _ in range(3)] if len(records) else []
            assert len(records.read_many(numbers)) == len(numbers) <= most
        finally:
            records.close()
        return "read records"

    return trial


def test_damaged_packs_give_typed_errors(tmp_path: Path) -> None:
    outcomes = fuzz_briefly(pack_trial(tmp_path), 600, name=str(tmp_path))
    assert outcomes["IndexMismatchError"] > 200
    assert min(outcomes["read records"], outcomes["read numbers"]) > 10


if __name__ == "__main__":
    main(pack_trial)
