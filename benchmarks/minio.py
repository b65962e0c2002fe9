"""A real S3 server, which runs while a table is measured."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.peer import ROOT

BINARY = ROOT / ".cache" / "bin" / "minio"
REMEDY = "run make servers"
_USER, _PASSWORD = "ledgerbeam", "ledgerbeam-bench"
_START_SECONDS = 30


@contextlib.contextmanager
def s3_server(folder: Path) -> Iterator[dict[str, Any]]:
    """Run MinIO on a free loopback port, with its data below `folder`.

    Yields:
        Storage options with its endpoint and credentials.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    with TemporaryDirectory(dir=folder) as home:
        environment = {
            **os.environ,
            "MINIO_ROOT_USER": _USER,
            "MINIO_ROOT_PASSWORD": _PASSWORD,
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
            "HOME": home,
        }
        command = [str(BINARY), "server", f"{home}/data", "--address", address, "--quiet"]
        server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _wait_until_ready(f"http://{address}/minio/health/ready", server)
            yield {"key": _USER, "secret": _PASSWORD, "client_kwargs": {"endpoint_url": f"http://{address}"}}
        finally:
            server.terminate()
            server.wait()


def _wait_until_ready(url: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        with contextlib.suppress(urllib.error.URLError, OSError), urllib.request.urlopen(url, timeout=1):
            return
        time.sleep(0.05)
    raise RuntimeError(f"{url}: the S3 server did not start")
