"""An emulator of Azure's Blob Storage: Azurite on one folder."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.servers import pins
from tests.servers.process import Process, free_port, listens, server_folder
from tests.servers.s3 import ObjectServer

ACCOUNT = "ledgerbeam"
KEY = "bGVkZ2VyYmVhbS10ZXN0cw=="
START_SECONDS = 120.0


class AzureServer(ObjectServer):
    """A running emulator of Azure's Blob Storage."""

    @property
    def options(self) -> dict[str, Any]:
        """Storage options with which adlfs reaches it."""
        named = {"AccountName": ACCOUNT, "AccountKey": KEY, "BlobEndpoint": self.endpoint}
        return {"connection_string": ";".join(f"{name}={value}" for name, value in named.items())}

    def place(self) -> str:
        """Make an empty container and return its URL."""
        return f"az://{self.make('az://', 'container')}"


def missing() -> str | None:
    """Return what is missing to run the emulator and to reach it; None when nothing is."""
    if find_spec("adlfs") is None:
        return "no adlfs: pip install 'ledgerbeam[azure]'"
    if shutil.which("node") is None:
        return "no node on PATH: install Node.js 20 or newer (https://nodejs.org)"
    return None if pins.AZURITE.ready else f"no Azurite: {pins.REMEDY}"


@contextlib.contextmanager
def azure_server(folder: Path | None = None) -> Iterator[AzureServer]:
    """Run an emulator of Blob Storage with empty storage."""
    with server_folder("azure", folder) as logs:
        work = logs / "azure"
        port = free_port()
        at = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(work)]
        # It knows the service versions up to its own release; a newer client asks for a newer one.
        command = [str(pins.AZURITE.program), *at, "--silent", "--skipApiVersionCheck", "--disableTelemetry"]
        env = {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"}
        with Process(command, name="azurite", folder=logs, env=env, work=work) as process:
            process.wait_until(lambda: listens(port), seconds=START_SECONDS)
            yield AzureServer(f"http://127.0.0.1:{port}/{ACCOUNT}", process)
