"""An emulator of Google Cloud Storage: fake-gcs-server, its objects in memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.servers import pins
from tests.servers.process import Process, answers, free_port, server_folder
from tests.servers.s3 import ObjectServer

START_SECONDS = 120.0


class GcsServer(ObjectServer):
    """A running emulator of GCS."""

    @property
    def options(self) -> dict[str, Any]:
        """Storage options with which gcsfs reaches it."""
        return {"endpoint_url": self.endpoint, "token": "anon", "project": "tests"}

    @property
    def env(self) -> dict[str, str]:
        """Environment variables with which another process reaches it, through gcsfs and Google's own client."""
        return {"STORAGE_EMULATOR_HOST": self.endpoint, "FSSPEC_GCS_TOKEN": "anon", "FSSPEC_GCS_PROJECT": "tests"}

    def place(self) -> str:
        """Make an empty bucket and return its URL."""
        return f"gs://{self.make('gs://', 'bucket')}"


def missing() -> str | None:
    """Return what is missing to run the emulator and to reach it; None when nothing is."""
    if find_spec("gcsfs") is None:
        return "no gcsfs: pip install 'ledgerbeam[gcs]'"
    return None if pins.FAKE_GCS.path.is_file() else f"no fake-gcs-server: {pins.REMEDY}"


@contextlib.contextmanager
def gcs_server(folder: Path | None = None) -> Iterator[GcsServer]:
    """Run an emulator of GCS with empty storage."""
    with server_folder("gcs", folder) as logs:
        where = f"127.0.0.1:{(port := free_port())}"
        endpoint = f"http://{where}"
        at = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
        # It answers for a host of this name only, and sends the parts of large uploads to this URL.
        names = ["-public-host", where, "-external-url", endpoint]
        command = [str(pins.FAKE_GCS.path), "-backend", "memory", "-log-level", "warn", *at, *names]
        with Process(command, name="fake-gcs-server", folder=logs) as process:
            health = f"{endpoint}/_internal/healthcheck"
            process.wait_until(lambda: answers(health), seconds=START_SECONDS)
            yield GcsServer(endpoint, process)
