"""Failures of the network and the store, between a real client and a real server.

Every operation of the storage layer under every fault returns the right result, or raises an error that names the
object and the cause. It never returns wrong or missing bytes, or half a listing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from ledgerbeam.errors import LedgerbeamError, SourceNotFoundError, StorageError
from ledgerbeam.io.index.file import write_index
from ledgerbeam.io.lines.jsonl import JsonlReader, encode_jsonl
from ledgerbeam.io.listing import pages as listing
from ledgerbeam.io.storage import client as remote
from ledgerbeam.io.storage import files as storage
from ledgerbeam.io.storage import responses, stat
from ledgerbeam.io.storage import uploads as publishing_to_s3
from ledgerbeam.io.storage.publish import publish, publish_bytes
from ledgerbeam.io.storage.ranges import RangeReader
from tests.cases import each
from tests.servers.s3_proxy import Fault, Kind, S3Proxy, expired, throttled

pytestmark = pytest.mark.s3

CONTENT = bytes(range(256)) * 400
STARTS = list(range(0, 100_000, 5_000))


@dataclass(frozen=True)
class Line:
    """A bucket seen through a proxy."""

    url: str
    proxy: S3Proxy
    direct: dict[str, Any]

    @property
    def options(self) -> dict[str, Any]:
        """Storage options for the proxy, with a time-out of one second where the proxy never responds.

        In other tests a busy machine could use up the attempts that are meant for faults.
        """
        if all(fault.kind != "silent" for fault in self.proxy.faults):
            return self.proxy.options
        options = self.proxy.options
        return {**options, "config_kwargs": {**options["config_kwargs"], "read_timeout": 1}}


@pytest.fixture
def line(faulty_s3: S3Proxy, monkeypatch: pytest.MonkeyPatch) -> Line:
    monkeypatch.setattr(remote, "PAUSE_SECONDS", 0.02)
    bucket = faulty_s3.server.bucket()
    direct = faulty_s3.server.options
    publish_bytes(f"s3://{bucket}/x", CONTENT, direct)
    return Line(f"s3://{bucket}", faulty_s3, direct)


Operation = Callable[[Line], None]


def read_whole(line: Line) -> None:
    assert storage.read_bytes(f"{line.url}/x", line.options) == CONTENT


def read_one_range(line: Line) -> None:
    assert RangeReader(f"{line.url}/x", line.options).read(1_000, 90_000) == CONTENT[1_000:90_000]


def read_many_ranges(line: Line) -> None:
    stops = [start + 100 for start in STARTS]
    pieces = RangeReader(f"{line.url}/x", line.options).read_many(STARTS, stops, gap=0)
    assert pieces == [CONTENT[start:stop] for start, stop in zip(STARTS, stops, strict=True)]


def ask(line: Line) -> None:
    assert stat.stat(f"{line.url}/x", line.options).size == len(CONTENT)


def list_all(line: Line) -> None:
    pages = listing.list_pages([f"{line.url}/*"], line.options)
    assert [url for page in pages for url in page.urls] == [f"{line.url}/x"]


def publish_small(line: Line) -> None:
    publish_bytes(f"{line.url}/new", CONTENT, line.options)
    assert storage.read_bytes(f"{line.url}/new", line.direct) == CONTENT


def publish_large(line: Line) -> None:
    data = CONTENT * 50  # read in place, in each attempt from its start
    publish_bytes(f"{line.url}/new", data, line.options)
    assert storage.read_bytes(f"{line.url}/new", line.direct) == data


def publish_over(line: Line) -> None:
    with publish(f"{line.url}/x", line.options) as file:
        file.write(b"another")
    assert storage.read_bytes(f"{line.url}/x", line.direct) == b"another"


def delete(line: Line) -> None:
    storage.delete(f"{line.url}/x", line.options)
    with pytest.raises(SourceNotFoundError):
        stat.stat(f"{line.url}/x", line.direct)


OPERATIONS = [read_whole, read_one_range, read_many_ranges, ask, list_all]
OPERATIONS += [publish_small, publish_large, publish_over, delete]

PASSING = {
    "an answer of 500": lambda: Fault("status", status=500, code="InternalError", times=3),
    "an answer of 503": lambda: Fault("status", times=3),
    "throttling": lambda: throttled(times=3),
    "an answer of 502 from a gateway": lambda: Fault("status", status=502, code="BadGateway", times=3),
    "a reset before the server acts": lambda: Fault("reset", times=3),
    "an answer that is lost": lambda: Fault("lost", times=3),
    "a body that ends in its middle": lambda: Fault("truncated", times=3),
    "silence": lambda: Fault("silent", seconds=30, times=1),
    "a long wait": lambda: Fault("late", seconds=0.5, times=1),
    "every second request": lambda: Fault("status", every=2),
    "one request in five": lambda: Fault("reset", chance=0.2, seed=7),
}


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
@pytest.mark.parametrize("fault", PASSING)
def test_what_passes_is_survived(line: Line, operation: Operation, fault: str) -> None:
    line.proxy.faults.append(PASSING[fault]())
    operation(line)


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
@pytest.mark.parametrize(
    ("fault", "said"),
    [(lambda: Fault("reset"), "connect|reset by peer|disconnected"), (expired, "credentials have expired")],
    ids=["resets", "expired credentials"],
)
def test_what_stays_is_one_error_that_says_so(
    line: Line, operation: Operation, fault: Callable[[], Fault], said: str
) -> None:
    line.proxy.faults.append(fault())
    with pytest.raises(StorageError, match=rf"(?i){line.url}.*({said})") as caught:
        operation(line)
    assert not isinstance(caught.value, SourceNotFoundError)
    line.proxy.clear()
    assert storage.read_bytes(f"{line.url}/x", line.direct) == CONTENT


@pytest.mark.slow
@pytest.mark.parametrize("operation", [ask, publish_small], ids=lambda operation: operation.__name__)
def test_throttling_without_end_is_one_error_that_says_so(line: Line, operation: Operation) -> None:
    line.proxy.faults.append(throttled())
    with pytest.raises(StorageError, match=rf"{line.url}.*rejects requests since they are too many.*fewer workers"):
        operation(line)


@pytest.mark.minio("checks no signatures")
def test_what_is_final_is_not_asked_again(line: Line) -> None:
    wrong = {**line.options, "secret": "wrong-secret"}
    with pytest.raises(StorageError, match="permission"):
        RangeReader(f"{line.url}/x", wrong).read(0, 1)
    line.proxy.faults.append(expired())
    with pytest.raises(StorageError, match="ExpiredToken"):
        RangeReader(f"{line.url}/x", line.options).read(0, 1)
    assert line.proxy.count() == 2


@pytest.mark.slow
def test_only_the_failed_ranges_of_many_are_asked_again(line: Line) -> None:
    line.proxy.faults.append(Fault("status", times=4))
    read_many_ranges(line)
    assert line.proxy.count("GET") == len(STARTS) + 4


def test_many_ranges_are_read_from_a_store_that_refuses_most_requests(line: Line) -> None:
    line.proxy.faults.append(Fault("status", chance=0.8, seed=3))
    read_many_ranges(line)


def test_a_range_that_comes_short_without_a_word_is_noticed(line: Line) -> None:
    line.proxy.faults.append(Fault("short", methods=frozenset({"GET"})))
    with pytest.raises(StorageError, match=r"expected 1000 bytes at \[0, 1000\), found 500"):
        RangeReader(f"{line.url}/x", line.options).read(0, 1000)
    with pytest.raises(StorageError, match=r"expected 100 bytes at \[0, 100\), found 50"):
        read_many_ranges(line)


@pytest.mark.slow
def test_records_are_right_or_missing_with_an_error_under_any_weather(line: Line) -> None:
    records = [{"id": number, "text": "x" * (number % 300)} for number in range(3_000)]
    url = f"{line.url}/records.jsonl"
    data, offsets = encode_jsonl(records)
    publish_bytes(url, data, line.direct)
    write_index(f"{url}.idx", offsets, line.direct)
    kinds: list[Kind] = ["status", "reset", "truncated", "short", "lost"]
    line.proxy.faults += [Fault(kind, chance=0.05, seed=seed) for seed, kind in enumerate(kinds)]
    read = 0
    said: list[str] = []
    for start in range(0, 3_000, 50):
        wanted = list(range(start, start + 50))
        try:
            with JsonlReader(url, options=line.options) as reader:
                found = reader.read_many(wanted)
        except LedgerbeamError as error:
            said.append(str(error))
            continue
        assert found == [records[number] for number in wanted]
        read += 1
    assert read > 40
    # Short bodies, and nothing else; where the store sends a checksum, the client is first to find that one is short.
    assert [text for text in said if "expected" not in text.lower()] == []
    assert all(fault.hits for fault in line.proxy.faults)


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("kind", ["status", "lost"])
def test_a_large_output_is_whole_after_faults_at_every_step(line: Line, kind: Kind, *, at_once: bool) -> None:
    part = bytes(range(256)) * 4096
    size = 110
    line.proxy.faults += [
        Fault(kind, methods=frozenset({"POST"}), key="*/large", every=2, times=2),
        Fault(kind, methods=frozenset({"PUT"}), key="*/large", every=2, times=2),
    ]
    if at_once:
        publish_bytes(f"{line.url}/large", part * size, line.proxy.options)
    else:
        with publish(f"{line.url}/large", line.proxy.options) as file:
            for _ in range(size):
                file.write(part)
    assert all(fault.hits for fault in line.proxy.faults)
    reader = RangeReader(f"{line.url}/large", line.direct)
    assert reader.size == size * len(part)
    assert all(reader.read(at * len(part), (at + 1) * len(part)) == part for at in range(0, size, 7))


@each(
    ("error", "transient"),
    [
        *((error, True) for error in (TimeoutError(), ConnectionResetError(), OSError(5, "input/output error"))),
        *((error, False) for error in (FileNotFoundError(2, "no"), PermissionError(13, "no"), ValueError("no"))),
        (StorageError("already worded"), False),
    ],
)
def test_which_errors_pass(error: Exception, *, transient: bool) -> None:
    assert responses.is_transient(error) is transient


def test_an_upload_of_which_a_part_is_refused_is_ended_and_leaves_no_parts(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing_to_s3, "_PART", 5 * 2**20)  # the minimum of a store
    url = f"{line.url}/parts"
    line.proxy.clear()
    line.proxy.faults.append(Fault("status", frozenset({"PUT"}), every=2, times=1, status=403, code="AccessDenied"))
    with pytest.raises(StorageError, match=r"/parts: .*permission"):
        publish_bytes(url, bytes(11 * 2**20), line.options)
    assert line.proxy.count("DELETE", "*/parts") == 1
    assert line.proxy.count("PUT", "*/parts") == 3
    with pytest.raises(SourceNotFoundError):
        stat.stat(url, line.direct)
