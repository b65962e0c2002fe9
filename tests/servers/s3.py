"""An S3 server: MinIO on one folder where `make servers` has built it, else moto, which Python brings."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ledgerbeam.io.storage import client
from tests.servers import pins
from tests.servers.process import Process, answers, free_port, listens, server_folder

USER = "ledgerbeam"
PASSWORD = "ledgerbeam-tests"
START_SECONDS = 120.0


@dataclass
class ObjectServer(ABC):
    """A running server of objects."""

    endpoint: str  # `http://ADDRESS:PORT`, for Azure with the account behind it
    process: Process
    numbers: Iterator[int] = field(default_factory=itertools.count)  # of fresh names

    @property
    @abstractmethod
    def options(self) -> dict[str, Any]:
        """Storage options with which fsspec reaches it."""

    def make(self, scheme: str, kind: str) -> str:
        """Make an empty bucket or container and return its name."""
        name = f"{kind}-{next(self.numbers):04d}"
        client.filesystem(scheme, self.options).mkdir(name)
        return name


class S3Server(ObjectServer):
    """A running S3 server."""

    @property
    def options(self) -> dict[str, Any]:
        """Storage options with which s3fs reaches it."""
        return options_of(self.endpoint)

    @property
    def env(self) -> dict[str, str]:
        """Environment variables with which another process reaches it without options."""
        return env_of(self.endpoint)

    def bucket(self) -> str:
        """Make an empty bucket and return its name."""
        return self.make("s3://", "bucket")

    def place(self) -> str:
        """Make an empty bucket and return its URL."""
        return f"s3://{self.bucket()}"


def options_of(endpoint: str) -> dict[str, Any]:
    """Return the storage options with which s3fs reaches our S3 server at an endpoint, such as a proxy's."""
    return {"key": USER, "secret": PASSWORD, "client_kwargs": {"endpoint_url": endpoint}}


def env_of(endpoint: str) -> dict[str, str]:
    """Return the environment with which another process reaches our S3 server at an endpoint."""
    return {
        "AWS_ACCESS_KEY_ID": USER,
        "AWS_SECRET_ACCESS_KEY": PASSWORD,
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_DEFAULT_REGION": "us-east-1",
    }


def minio() -> Path | None:
    """Return the path of MinIO, None where there is none; `LEDGERBEAM_MINIO` names another one."""
    path = Path(os.environ.get("LEDGERBEAM_MINIO", pins.MINIO.path))
    return path if path.is_file() else None


def missing() -> str | None:
    """Return what is missing to run a server; None when nothing is."""
    if minio() or all(find_spec(name) for name in ("moto", "flask", "flask_cors")):
        return None
    return f"no S3 server: {pins.REMEDY}, or pip install 'ledgerbeam[test]'"


@contextlib.contextmanager
def s3_server(
    folder: Path | None = None, *, address: str = "127.0.0.1", prefix: Sequence[str] = ()
) -> Iterator[S3Server]:
    """Run an S3 server with empty storage: MinIO, or moto where MinIO is not built.

    Args:
        prefix: Command that runs the server elsewhere, such as in a network namespace.
    """
    program = minio()
    with (
        server_folder("s3", folder) as logs,
        _minio(program, logs, address, prefix) if program else _moto(logs, address, prefix) as server,
    ):
        yield server


@contextlib.contextmanager
def _minio(program: Path, logs: Path, address: str, prefix: Sequence[str]) -> Iterator[S3Server]:
    work = logs / "s3"
    where = f"{address}:{free_port()}"
    env = {
        "MINIO_ROOT_USER": USER,
        "MINIO_ROOT_PASSWORD": PASSWORD,
        "MINIO_BROWSER": "off",
        "MINIO_UPDATE": "off",
        "HOME": str(work),
    }
    command = [*prefix, str(program), "server", str(work / "data"), "--address", where, "--quiet"]
    with Process(command, name="minio", folder=logs, env=env, work=work) as process:
        endpoint = f"http://{where}"
        process.wait_until(lambda: answers(f"{endpoint}/minio/health/ready"), seconds=START_SECONDS)
        yield S3Server(endpoint, process)


@contextlib.contextmanager
def _moto(logs: Path, address: str, prefix: Sequence[str]) -> Iterator[S3Server]:
    port = free_port()
    # -P: the modules beside the script hide no package of the same name, such as azure.
    command = [*prefix, sys.executable, "-P", str(Path(__file__).with_name("s3_moto.py")), address, str(port)]
    with Process(command, name="moto", folder=logs) as process:
        process.wait_until(lambda: listens(port, address), seconds=START_SECONDS)
        yield S3Server(f"http://{address}:{port}", process)
