"""A real S3 server: MinIO on one folder."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.servers import pins
from tests.servers.object_server import ObjectServer
from tests.servers.process import Process, answers, free_port, server_folder

USER = "ledgerbeam"
PASSWORD = "ledgerbeam-tests"
START_SECONDS = 30.0


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
        """Makes an empty bucket and gives its name."""
        return self.make("s3://", "bucket")


def options_of(endpoint: str) -> dict[str, Any]:
    """Gives the storage options with which s3fs reaches our S3 server at an endpoint, such as a proxy's."""
    return {"key": USER, "secret": PASSWORD, "client_kwargs": {"endpoint_url": endpoint}}


def env_of(endpoint: str) -> dict[str, str]:
    """Gives the environment with which another process reaches our S3 server at an endpoint."""
    return {
        "AWS_ACCESS_KEY_ID": USER,
        "AWS_SECRET_ACCESS_KEY": PASSWORD,
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_DEFAULT_REGION": "us-east-1",
    }


def program() -> Path:
    """Gives the path of MinIO; `LEDGERBEAM_MINIO` names another one."""
    return Path(os.environ.get("LEDGERBEAM_MINIO", pins.MINIO.path))


def missing() -> str | None:
    """Says what is missing to run the server; None when nothing is."""
    return None if program().is_file() else f"no S3 server: {pins.REMEDY}"


@contextlib.contextmanager
def s3_server(
    folder: Path | None = None, *, address: str = "127.0.0.1", prefix: Sequence[str] = ()
) -> Iterator[S3Server]:
    """Runs an S3 server with empty storage.

    Args:
        folder: Takes the log; a temporary one by default.
        address: The address that it binds.
        prefix: Command that runs the server elsewhere, such as in a network namespace.

    Raises:
        ServerError: It did not start.
    """
    with server_folder("s3", folder) as logs:
        work = logs / "s3"
        where = f"{address}:{free_port()}"
        env = {
            "MINIO_ROOT_USER": USER,
            "MINIO_ROOT_PASSWORD": PASSWORD,
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
            "HOME": str(work),
        }
        command = [*prefix, str(program()), "server", str(work / "data"), "--address", where, "--quiet"]
        with Process(command, name="minio", folder=logs, env=env, work=work) as process:
            endpoint = f"http://{where}"
            process.wait_until(lambda: answers(f"{endpoint}/minio/health/ready"), seconds=START_SECONDS)
            yield S3Server(endpoint, process)
