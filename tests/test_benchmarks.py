"""What the tables of speed measure and compare, and the relay behind them."""

from __future__ import annotations

import contextlib
import pickle
import shutil
import socket
import sys
import threading
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import s3_work
from benchmarks.far_away import far_away
from benchmarks.functions import describe
from benchmarks.job_check import same_records
from benchmarks.job_programs import PROGRAMS
from benchmarks.loader_sources import Lines, Reordered, Rows, Samples, by_groups, canonical
from benchmarks.loaders import make_files, require_same
from benchmarks.measured import measure
from benchmarks.s3 import run
from benchmarks.scale_law import fit
from benchmarks.scale_runs import LINE, Measured, Shape
from ledgerbeam.io import Sample, publish_bytes
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.iterators import IndexedManifest, IndexedParquet, IndexedTar, IteratorNode
from tests.servers.s3 import S3Server

SPIN = "import time\nwhile time.process_time() < 0.5: pass\n"
MEGABYTES = 60


def python(program: str) -> list[str]:
    return [sys.executable, "-S", "-c", program]


def test_what_children_and_orphans_use_is_counted(tmp_path: Path) -> None:
    orphan = "import subprocess, sys\nsubprocess.Popen([sys.executable, '-S', '-c', sys.argv[1]])\n"
    child = "subprocess.run([sys.executable, '-S', '-c', sys.argv[1]])\n"
    found = measure([*python(orphan + child), SPIN], tmp_path)
    assert 1.0 <= found.cpu < 3.0
    assert found.first == found.wall  # it has written nothing


def test_the_peak_of_memory_is_that_of_the_largest_process(tmp_path: Path) -> None:
    program = f"import time\nheld = bytearray({MEGABYTES} << 20)\ntime.sleep(0.4)\ndel held\ntime.sleep(0.4)\n"
    found = measure(python(program), tmp_path)
    assert MEGABYTES << 20 <= found.memory < 2 * MEGABYTES << 20


def test_the_first_output_is_noticed_and_no_temporary_file(tmp_path: Path) -> None:
    program = "import time\nopen('.a.lbtmp', 'w')\ntime.sleep(0.5)\nopen('a', 'w')\ntime.sleep(1)\n"
    found = measure(python(f"import os\nos.chdir({str(tmp_path)!r})\n{program}"), tmp_path)
    assert 0.5 <= found.first <= found.wall - 0.5


def test_a_program_that_fails_is_told_with_what_it_said(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"ended with 3:\n.*said"):
        measure(python("import sys\nsys.stderr.write('said')\nsys.exit(3)"), tmp_path)


def test_records_are_the_same_in_any_order_form_and_number_of_files(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        folder.mkdir()
    (one / "a.jsonl").write_text('{"a": 1, "b": "é"}\n{"a": 2}\n')
    (other / "x.json").write_text('{"a":2}\n')
    (other / "y.jsonl").write_text('{"b":"\\u00e9","a":1}\n')
    (other / "y.jsonl.idx").write_bytes(bytes(16))
    assert same_records(str(one)) == same_records(str(other))
    (other / "y.jsonl").write_text('{"b":"e","a":1}\n')
    assert same_records(str(one)) != same_records(str(other))
    shutil.rmtree(other)


def test_the_bare_loop_maps_every_record(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(3):
        (tmp_path / "in" / f"{number}.jsonl").write_text(f'{{"text": "one three {number}"}}\n' * 5)
    PROGRAMS["bare"](str(tmp_path / "in"), str(tmp_path / "out"))
    written = (tmp_path / "out" / "2.jsonl").read_text()
    assert written == '{"text":"one three 2","words":3,"letters":9,"longest":5}\n' * 5
    assert describe({"text": ""}) == {"text": "", "words": 0, "letters": 0, "longest": 0}
    assert same_records(str(tmp_path / "out"))[0] == 15


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
    assert 0.5 <= used.cpu < 2
    assert used.wall >= 0.5
    with pytest.raises(RuntimeError, match=r"ended with 3:\n.*said"):
        run([sys.executable, "-c", "import sys\nsys.stderr.write('said')\nsys.exit(3)"], {})


SHAPES = [Shape(100, 1, 10), Shape(1000, 1, 10), Shape(10, 10, 10), Shape(10, 100, 10), Shape(10, 10, 100_000)]


def runs(start: float, source: float, task: float, gigabyte: float) -> list[Measured]:
    cost = [start + source * s.sources + task * s.tasks + gigabyte * s.size / 1e9 for s in SHAPES]
    return [Measured(shape, shape.tasks, seconds, {}, 0) for shape, seconds in zip(SHAPES, cost, strict=True)]


def test_a_law_is_found_again() -> None:
    law = fit(runs(5, 0.01, 0.002, 30), lambda run: run.seconds)
    assert (law.start, law.source, law.task, law.gigabyte) == pytest.approx((5, 0.01, 0.002, 30))
    assert law.worst < 1e-9
    assert law.of(10**6, 10**9, 10**6) == pytest.approx(5 + 10**4 + 2 * 10**6 + 30 * 10**6)


def test_nothing_costs_less_than_nothing() -> None:
    law = fit(runs(5, 0.01, -0.002, 30), lambda run: run.seconds)
    assert min(law.start, law.source, law.task, law.gigabyte) >= 0
    assert law.worst > 0.001


def test_a_shape_adds_up() -> None:
    shape = Shape(3, 4, 5)
    assert (shape.tasks, shape.task_bytes, shape.size, len(LINE)) == (12, 500, 6000, 100)


COUNT = 200


def digest(sample: Any) -> str:
    return sha256(b"\0".join(canonical(sample))).hexdigest()


def sides(folder: Path, kind: str) -> tuple[IteratorNode, Any]:
    files = make_files(folder, kind, COUNT)
    if kind == "jsonl":
        return IndexedManifest(files[0], files[1]), Lines(*files)
    if kind == "tar":
        return IndexedTar(files[0], files[1]), Samples(files[0], files[2])
    return IndexedParquet(files), Rows(*files)


@pytest.mark.parametrize("kind", ["jsonl", "tar", "parquet"])
def test_a_source_by_hand_has_the_samples_of_the_graph(tmp_path: Path, kind: str) -> None:
    graph, source = sides(tmp_path, kind)
    wanted = list(map(digest, graph))
    assert len(source) == len(set(wanted)) == COUNT
    for opened in (source, pickle.loads(pickle.dumps(source))):
        assert [digest(opened[number]) for number in range(COUNT)] == wanted
    turned = Reordered(source, range(COUNT - 1, -1, -1))
    assert [digest(turned[place]) for place in range(len(turned))] == wanted[::-1]


def test_what_a_sample_holds_decides_its_digest() -> None:
    assert digest({"a": 1, "b": "x"}) == digest({"b": "x", "a": 1}) != digest({"a": 1, "b": "y"})
    ours, theirs = Sample("k", {"bin": b"1", "cls": b"2"}), {"__key__": "k", "cls": b"2", "bin": b"1"}
    assert digest(ours) == digest(theirs) != digest({**theirs, "__key__": "l"})
    assert digest(theirs) != digest({**theirs, "bin": b"2"})
    assert digest(np.array([1, 2], np.uint16)) != digest(np.array([1, 2], np.int32))


def test_a_shuffle_by_groups_has_every_row_once_and_each_group_together() -> None:
    order = by_groups([3, 0, 5, 1])
    assert sorted(order) == list(range(9)) != order
    groups = [0 if row < 3 else 2 if row < 8 else 3 for row in order]
    assert len([one for one, before in zip(groups, [None, *groups], strict=False) if one != before]) == 3


def test_loaders_that_deliver_other_samples_are_refused() -> None:
    require_same({"ours": [2, "a"], "torch": [2, "a"]}, 2, "jsonl")
    for found, count in (({"ours": [2, "a"], "torch": [2, "b"]}, 2), ({"ours": [1, "a"], "torch": [1, "a"]}, 2)):
        with pytest.raises(RuntimeError, match="jsonl: expected 2 samples"):
            require_same(found, count, "jsonl")


SECONDS = 0.05


def echo(listener: socket.socket) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:  # the listener was closed
            return
        with connection:
            while some := connection.recv(1 << 16):
                connection.sendall(some)


def send(client: socket.socket, data: bytes) -> None:
    client.sendall(data)
    client.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def far_client(port: int, seconds: float) -> Iterator[socket.socket]:
    with far_away(f"http://127.0.0.1:{port}", seconds) as endpoint:
        host, _, near = endpoint.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(near)), timeout=30) as client:
            yield client


@pytest.fixture
def server() -> Iterator[socket.socket]:
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=echo, args=(listener,))
    thread.start()
    yield listener
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def test_what_is_sent_arrives_later_whole_and_in_order(server: socket.socket) -> None:
    data = bytes(range(256)) * 20_000
    with far_client(server.getsockname()[1], SECONDS) as client:
        began = time.monotonic()
        sending = threading.Thread(target=send, args=(client, data))
        sending.start()
        found = bytearray(client.recv(1))
        assert time.monotonic() - began >= SECONDS
        while some := client.recv(1 << 16):
            found += some
        sending.join()
    assert bytes(found) == data


def test_where_nobody_listens_the_connection_is_cut() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobody = closed.getsockname()[1]
    with far_client(nobody, 0.01) as client, contextlib.suppress(ConnectionResetError):
        assert client.recv(1) == b""
