"""Damaged gzip and Zstandard files with seek points: `python -m tests.io.compression.test_fuzz_seek INPUTS [SEED]`.

The seek points, the table or the data are damaged, and records are read through them.
"""

from __future__ import annotations

import gzip
import io
import random
from pathlib import Path

import pyzstd

from ledgerbeam.io.compression.content import ContentReader
from ledgerbeam.io.compression.gzip_points import gzip_points
from tests.io.fuzzing import Files, Trial, fuzz_briefly, main

_SPACING = 33_000  # the minimum of the points
_DATA = random.Random(5).randbytes(3000) * 40


def seek_trial(folder: Path) -> Trial:
    plain = folder / "a.jsonl.gz"
    several = folder / "b.jsonl.gz"
    plain.write_bytes(gzip.compress(_DATA))
    several.write_bytes(gzip.compress(_DATA[:50_000]) + gzip.compress(b"") + gzip.compress(_DATA[50_000:]))
    packed = io.BytesIO()
    with pyzstd.SeekableZstdFile(packed, "w", max_frame_content_size=20_000) as file:
        file.write(_DATA)
    contents = {"c.jsonl.zst": packed.getvalue()}
    fields: dict[str, list[int]] = {"c.jsonl.zst": [-13, -9, -5, -4, *range(-65, -9, 4)]}
    for path in (plain, several):
        points = gzip_points(str(path), spacing=_SPACING)
        count = int.from_bytes(points[31:35], "little")
        contents[f"{path.name}.gzidx"] = points
        fields[f"{path.name}.gzidx"] = [
            7,
            15,
            23,
            27,
            31,
            *(35 + 18 * row + at for row in range(count) for at in (0, 8, 16)),
        ]
        contents[path.name] = path.read_bytes()
        fields[path.name] = [0, -8]
    files = Files(folder, contents, fields)

    def trial(chance: random.Random) -> str:
        name, _ = files.damage(chance)
        url = f"{folder}/{name.removesuffix('.gzidx')}"
        with ContentReader(url, f"{url}.idx") as reader:
            size = reader.size
            start = chance.randrange(size + 1)
            stop = chance.choice([min(size, start + 300), size, chance.randrange(start, size + 1)])
            found = reader.read(start, stop)
        assert len(found) == stop - start
        return f"read {name}" if found == _DATA[start:stop] else f"read other bytes with a damaged {name}"

    return trial


def test_damaged_seek_points_give_typed_errors(tmp_path: Path) -> None:
    outcomes = fuzz_briefly(seek_trial(tmp_path), 400, name=str(tmp_path))
    assert outcomes["IndexMismatchError"] > 50
    assert outcomes["SourceError"] > 50
    assert sum(count for outcome, count in outcomes.items() if outcome.startswith("read ")) > 20


if __name__ == "__main__":
    main(seek_trial)
