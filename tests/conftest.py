"""Fixtures that several parts share: real servers, started once a session on loopback ports."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from zlib import crc32

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.servers import azure, flink, gcs, hosts, pins, prism, s3, spark
from tests.servers.azure import AzureServer, azure_server
from tests.servers.flink import FlinkCluster, flink_cluster
from tests.servers.gcs import GcsServer, gcs_server
from tests.servers.hosts import Hosts, two_hosts
from tests.servers.prism import Prism
from tests.servers.s3 import S3Server, s3_server
from tests.servers.s3_proxy import S3Proxy, s3_proxy
from tests.servers.spark import SparkCluster, spark_cluster

__all__ = ["AzureServer", "GcsServer", "S3Server"]

_OF_PYTHON = {signal.SIGPIPE, signal.SIGXFSZ}  # ignored by Python; `subprocess` gives them back to programs


def _hand_down_working_signals() -> None:
    """Make no signal ignored or blocked in what this process starts.

    A shell has its background jobs ignore SIGINT, as `nohup` does SIGHUP, and every program that they start inherits
    it: a test that interrupts one would wait for ever. This process goes on as if it ignored them: by a handler, which
    no program inherits.
    """
    for number in signal.valid_signals() - _OF_PYTHON:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL if number == signal.SIGCHLD else _pass)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _pass(number: int, frame: FrameType | None) -> None:
    """Do nothing."""


_hand_down_working_signals()

_dont_write_bytecode = sys.dont_write_bytecode
sys.dont_write_bytecode = False  # pytest caches rewritten assertions, which take two thirds of the collection

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy one too
settings.register_profile(
    "first failure", settings.get_profile("any machine"), phases=[Phase.explicit, Phase.reuse, Phase.generate]
)  # for who asks whether there is one, not which is the shortest
settings.load_profile("any machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", metavar="K/N", type=_part, help="the Kth of N parts of the tests, by their names")


def _part(text: str) -> tuple[int, int]:
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise argparse.ArgumentTypeError(f"expected K/N such as 1/3, found {text!r}")
    return int(part), int(parts)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of other parts than the one that is asked for."""
    wanted = config.getoption("--part")
    if wanted is not None:
        part, parts = wanted
        others = [item for item in items if crc32(item.nodeid.encode()) % parts != part - 1]
        config.hook.pytest_deselected(items=others)
        left_out = set(others)
        items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    """Leave the modules that tests write as the environment says: with or without bytecode."""
    sys.dont_write_bytecode = _dont_write_bytecode


def _need(missing: str | None) -> None:
    if missing is not None:
        pytest.skip(missing)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what moto, the S3 server in Python, cannot show where MinIO is not built."""
    mark = item.get_closest_marker("minio")
    if mark is not None and s3.minio() is None:
        pytest.skip(f"moto {mark.args[0]}: {pins.REMEDY}")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what is known here of remote ledgers apart from other sessions, whose buckets have the same names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEDGERBEAM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(name="s3", scope="session")
def _s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """An S3 server; skips where there is none."""
    _need(s3.missing())
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(name="gcs", scope="session")
def _gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcsServer]:
    """An emulator of GCS; skips where there is none, or no client."""
    _need(gcs.missing())
    with gcs_server(tmp_path_factory.mktemp("gcs")) as server:
        yield server


@pytest.fixture(name="azure", scope="session")
def _azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureServer]:
    """An emulator of Azure's Blob Storage; skips where there is none, or no client."""
    _need(azure.missing())
    with azure_server(tmp_path_factory.mktemp("azure")) as server:
        yield server


@pytest.fixture(name="faulty_s3")
def _faulty_s3(request: pytest.FixtureRequest) -> Iterator[S3Proxy]:
    """A proxy in front of the S3 server, which makes the faults that a test asks for and counts requests."""
    server: S3Server = request.getfixturevalue("s3")
    with s3_proxy(server) as proxy:
        yield proxy


@pytest.fixture(name="prism", scope="session")
def _prism(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prism]:
    """A running Prism, whose workers reach the S3 server."""
    _need(prism.missing())
    with prism.prism(tmp_path_factory.mktemp("prism"), env=s3.env) as server:
        yield server


@pytest.fixture(name="flink", scope="session")
def _flink(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlinkCluster]:
    """A running Flink cluster, whose workers reach the S3 server."""
    _need(flink.missing())
    with flink_cluster(tmp_path_factory.mktemp("flink"), env=s3.env) as cluster:
        yield cluster


@pytest.fixture(name="spark", scope="session")
def _spark(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A running Spark cluster, whose workers reach the S3 server."""
    _need(spark.missing())
    with spark_cluster(tmp_path_factory.mktemp("spark"), env=s3.env) as cluster:
        yield cluster


@pytest.fixture(name="hosts")
def _hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Two hosts that share nothing but an S3 server."""
    _need(hosts.missing())
    with two_hosts(tmp_path_factory.mktemp("hosts")) as pair:
        yield pair


class S3Requests:
    """The requests that s3fs makes of a server, as its own log tells."""

    def __init__(self, records: Callable[[], list[logging.LogRecord]]) -> None:
        self._records = records
        self._taken = 0

    def take(self) -> list[str]:
        """Return the names of the requests since the last call, oldest first, such as `get_object`."""
        calls = [record.getMessage() for record in self._records() if record.name == "s3fs"]
        made = [call.split()[1] for call in calls if call.startswith("CALL: ")]
        fresh = made[self._taken :]
        self._taken = len(made)
        return fresh


@pytest.fixture
def s3_requests(caplog: pytest.LogCaptureFixture) -> S3Requests:
    """Counts what s3fs asks of the server."""
    caplog.set_level(logging.DEBUG, "s3fs")
    return S3Requests(lambda: caplog.records)
