"""Fixtures that several parts share: a real S3 server, started once a session on a loopback port."""

from __future__ import annotations

import itertools
import logging
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.io import storage

MINIO = Path(__file__).resolve().parents[1] / ".cache" / "bin" / "minio"
USER = "ledgerbeam"
PASSWORD = "ledgerbeam-tests"


@dataclass
class S3Server:
    """A running S3 server.

    Attributes:
        endpoint: `http://127.0.0.1:PORT`.
        numbers: Where fresh bucket names come from.
    """

    endpoint: str
    numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def options(self) -> dict[str, Any]:
        """Storage options with which s3fs reaches it."""
        return {"key": USER, "secret": PASSWORD, "client_kwargs": {"endpoint_url": self.endpoint}}

    @property
    def env(self) -> dict[str, str]:
        """Environment variables with which another process reaches it without options."""
        return {
            "AWS_ACCESS_KEY_ID": USER,
            "AWS_SECRET_ACCESS_KEY": PASSWORD,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def bucket(self) -> str:
        """Makes an empty bucket and gives its name."""
        name = f"bucket-{next(self.numbers):04d}"
        storage.filesystem("s3://", self.options).mkdir(name)
        return name


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server; skips where there is none."""
    binary = Path(os.environ.get("LEDGERBEAM_MINIO", MINIO))
    if not binary.is_file():
        pytest.skip('no S3 server: run "make servers"')
    folder = tmp_path_factory.mktemp("s3")
    endpoint = f"http://127.0.0.1:{_free_port()}"
    environment = os.environ | {
        "MINIO_ROOT_USER": USER,
        "MINIO_ROOT_PASSWORD": PASSWORD,
        "MINIO_BROWSER": "off",
        "MINIO_UPDATE": "off",
        "HOME": str(folder),
    }
    address = endpoint.removeprefix("http://")
    command = [str(binary), "server", str(folder / "data"), "--address", address, "--quiet"]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        _wait_until_ready(f"{endpoint}/minio/health/ready", server, folder / "log")
        yield S3Server(endpoint)
    finally:
        server.terminate()
        try:
            server.wait(timeout=10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


class S3Requests:
    """The requests that s3fs makes of a server, as its own log tells."""

    def __init__(self, records: Callable[[], list[logging.LogRecord]]) -> None:
        self._records = records
        self._taken = 0

    def take(self) -> list[str]:
        """Gives the names of the requests since the last call, oldest first, such as `get_object`."""
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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _wait_until_ready(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if server.poll() is not None:
            break
        try:
            with urllib.request.urlopen(url, timeout=1):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    raise RuntimeError(f"{url}: the S3 server did not start: {log.read_text(errors='replace')[-2000:]}")
