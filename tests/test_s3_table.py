"""What the table of raw S3 measures: all bytes pass, and what a program used is counted."""

from __future__ import annotations

import sys
from hashlib import sha256
from pathlib import Path

import pytest

from benchmarks import s3_work
from benchmarks.s3 import run
from ledgerbeam.io import publish_bytes
from ledgerbeam.io.storage.ranges import RangeReader
from tests.servers.s3 import S3Server

SPIN = "import time\nwhile time.process_time() < 0.3: pass\n"


@pytest.mark.s3
def test_an_object_is_read_in_pieces_and_files_are_published(s3: S3Server, tmp_path: Path) -> None:
    place = s3.place()
    data = bytes(range(256)) * 10
    publish_bytes(f"{place}/whole.bin", data, s3.options)
    assert s3_work.digest(f"{place}/whole.bin", s3.options, 1000) == sha256(data).hexdigest()  # the last one is shorter
    wall, cpu = s3_work.read(f"{place}/whole.bin", s3.options, 1000)
    assert wall > 0 < cpu
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(name.encode() * 3)
    assert min(s3_work.write(str(tmp_path), f"{place}/out", s3.options)) > 0
    assert [RangeReader(f"{place}/out/{name}", s3.options).read(0, 3) for name in "ab"] == [b"aaa", b"bbb"]


def test_what_a_program_used_is_counted_and_a_failure_is_told() -> None:
    used = run([sys.executable, "-S", "-c", SPIN], {})
    assert 0.3 <= used.cpu < 2
    assert used.wall >= 0.3
    with pytest.raises(RuntimeError, match=r"ended with 3:\n.*said"):
        run([sys.executable, "-c", "import sys\nsys.stderr.write('said')\nsys.exit(3)"], {})
