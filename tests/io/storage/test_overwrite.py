"""Foreign files with the name of an output: recognised by their first and last bytes, and kept."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ledgerbeam.errors import UsageError
from ledgerbeam.io.storage.files import refuse_foreign
from ledgerbeam.io.storage.publish import publish_bytes

LOOKS = re.compile(rb"begin(?s:.*)end\Z")


@pytest.mark.parametrize("between", [0, 60_000, 65_528, 131_000, 500_001])
@pytest.mark.parametrize("store", ["disk", "memory"])
def test_the_beginning_and_the_end_are_looked_at(tmp_path: Path, between: int, store: str) -> None:
    root = str(tmp_path) if store == "disk" else f"memory://foreign-{between}"
    ours, other = f"{root}/ours", f"{root}/other"
    assert refuse_foreign({ours: LOOKS}, {}, kind="ours") == []
    publish_bytes(ours, b"begin" + bytes(between) + b"end")
    assert refuse_foreign({ours: LOOKS, f"{root}/none": LOOKS}, {}, kind="ours") == [ours]
    publish_bytes(other, b"begin" + bytes(between) + b"other")
    with pytest.raises(UsageError, match=rf"{other}: expected no file, or ours, .*another file: move it away, or give"):
        refuse_foreign({ours: LOOKS, other: LOOKS}, {}, kind="ours")


def test_all_names_are_looked_at_whichever_are_free(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"other")
    files = {str(tmp_path / name): LOOKS for name in ("none", "other")}
    with pytest.raises(UsageError, match="other: expected no file, or ours"):
        refuse_foreign(files, {}, kind="ours")


def test_numbers_of_eight_bytes_are_not_cut(tmp_path: Path) -> None:
    class Numbers:
        def match(self, content: bytes, /) -> bool:
            return all(content[at : at + 8] == b"12345678" for at in range(0, len(content) // 8 * 8, 8))

    for more in (b"", b"123"):
        (tmp_path / "numbers").write_bytes(b"12345678" * 30_001 + more)
        assert refuse_foreign({str(tmp_path / "numbers"): Numbers()}, {}, kind="numbers")


def test_of_a_large_file_the_beginning_and_the_end_alone_are_read(tmp_path: Path) -> None:
    seen: list[bytes] = []

    class All:
        def match(self, content: bytes, /) -> bool:
            seen.append(content)
            return True

    data = b"".join(b"%07d\n" % number for number in range(125_000)) + b"end"
    (tmp_path / "large").write_bytes(data)
    refuse_foreign({str(tmp_path / "large"): All()}, {}, kind="large")
    end = data[(len(data) - 65_536) // 8 * 8 :]
    assert seen == [data[:65_536] + end]
