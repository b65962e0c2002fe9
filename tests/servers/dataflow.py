"""A loopback Dataflow: takes jobs over the REST API `v1b3`, checks them as the service does, runs them on Prism.

A job comes as Beam's DataflowRunner sends it, its files staged on an emulator of Cloud Storage. What runs is the staged
proto of its pipeline, with one change: the containers of its environments are the worker pool of Prism. Machines, and
with them autoscaling, are the service's own and not here.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.servers import gcs, pins, prism
from tests.servers.dataflow_job import DataflowJob, RefusedError, accept
from tests.servers.gcs import GcsServer
from tests.servers.prism import Prism
from tests.servers.process import server_folder

IMAGE = "region-docker.example/project/ledgerbeam-worker:0.1.0"
"""What jobs name as the image of their workers; nothing is pulled."""

_PATH = re.compile(r"/v1b3/projects/project/locations/region/jobs(?:/(?P<id>[^/]+)(?:/(?P<part>messages|metrics))?)?")
_BAD_REQUEST, _NOT_FOUND = 400, 404


@dataclass
class Dataflow:
    """A running service.

    Attributes:
        jobs: All that were accepted, by id, in the order of their coming.
        refused: Why others were not.
    """

    port: int
    storage: GcsServer
    bucket: str
    engine: Prism
    folder: Path
    jobs: dict[str, DataflowJob] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    name = "Dataflow"

    @property
    def options(self) -> list[str]:
        """Beam options that submit a job."""
        return [
            "--runner=DataflowRunner",
            "--project=project",
            "--region=region",
            f"--temp_location={self.bucket}/tmp",
            f"--sdk_container_image={IMAGE}",
            f"--dataflow_endpoint=http://localhost:{self.port}",
            "--no_auth",
        ]

    @property
    def env(self) -> dict[str, str]:
        """Environment variables with which a launcher reaches the storage, and looks for no account of Google's."""
        return {**self.storage.env, "NO_GCE_CHECK": "true"}

    @property
    def workers(self) -> list[int]:
        """Process ids of the living Python workers."""
        return self.engine.workers

    @property
    def executors(self) -> list[int]:
        """None: the machines are the service's own."""
        return []

    def pids(self) -> list[int]:
        """Process ids of all that is running of it."""
        return [self.storage.process.pid, *self.engine.pids()]

    def last(self) -> DataflowJob:
        """Return the job that came last."""
        return list(self.jobs.values())[-1]

    def cancel_all(self) -> None:
        """Cancel the jobs that have not ended."""
        for job in self.jobs.values():
            if not job.ended:
                job.request("JOB_STATE_CANCELLED")

    def create(self, told: dict[str, Any]) -> dict[str, Any]:
        """Take a job, and start it."""
        try:
            running = {job.told["name"] for job in self.jobs.values() if not job.ended}
            job = accept(told, f"job-{len(self.jobs)}", running, self.storage.endpoint, self.folder)
        except RefusedError as error:
            self.refused.append(str(error))
            raise
        self.jobs[job.id] = job
        job.start(self.engine)
        return job.answer()


def missing() -> str | None:
    """Return what is missing to run it and to submit to it; None when nothing is."""
    lacking = gcs.missing() or prism.missing()
    if lacking is not None:
        return lacking
    return None if pins.DATAFLOW.ready else f"no venv with Google's client of Dataflow: {pins.REMEDY}"


@contextlib.contextmanager
def dataflow(folder: Path | None = None, *, env: Mapping[str, str] | None = None) -> Iterator[Dataflow]:
    """Run the service, with an emulator of Cloud Storage, a Prism and workers of its own."""
    with server_folder("dataflow", folder) as logs, contextlib.ExitStack() as stack:
        storage = stack.enter_context(gcs.gcs_server(logs))
        workers = {**storage.env, **(env or {})}
        engine = stack.enter_context(prism.prism(logs, env=workers, python=pins.DATAFLOW.python))
        server = _Server(("127.0.0.1", 0), _Handler)
        server.service = service = Dataflow(server.server_port, storage, storage.place(), engine, logs / "staged")
        thread = threading.Thread(target=server.serve_forever, name="dataflow")
        thread.start()
        try:
            yield service
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
            for job in service.jobs.values():
                job.close()


class _Server(ThreadingHTTPServer):
    service: Dataflow


class _Handler(BaseHTTPRequestHandler):
    """The methods of `v1b3` that Beam's client calls."""

    server: _Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        service = self.server.service
        job, part = self._asked()
        if job is None:
            self._answer({"jobs": [found.answer() for found in service.jobs.values()]})
        elif part == "messages":
            self._answer({"jobMessages": job.messages})
        elif part == "metrics":
            self._answer({"metrics": job.metrics()})
        else:
            self._answer(job.answer())

    def do_POST(self) -> None:
        self._asked()
        self._answer(self.server.service.create(self._body()))

    def do_PUT(self) -> None:
        job, _ = self._asked()
        assert job is not None
        job.request(self._body()["requestedState"])
        self._answer(job.answer())

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except RefusedError as error:
            self._fail(_BAD_REQUEST, str(error))
        except LookupError as error:
            self._fail(_NOT_FOUND, str(error))

    def _asked(self) -> tuple[DataflowJob | None, str | None]:
        found = _PATH.fullmatch(self.path.partition("?")[0])
        if found is None:
            raise LookupError(f"{self.command} {self.path}: there is no such method of v1b3 here")
        job = found["id"]
        if job is not None and job not in self.server.service.jobs:
            raise LookupError(f"there is no job {job}")
        return None if job is None else self.server.service.jobs[job], found["part"]

    def _body(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        return told

    def _answer(self, told: Mapping[str, Any], status: int = 200) -> None:
        body = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _fail(self, status: int, message: str) -> None:
        self._answer({"error": {"code": status, "message": message}}, status)

    def log_message(self, *_: object) -> None:
        """Print nothing."""
