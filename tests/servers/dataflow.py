"""A loopback Dataflow: takes jobs over the REST API `v1b3`, checks them as the service does, runs them on Prism.

A job comes as Beam's DataflowRunner sends it, its files staged on an emulator of Cloud Storage. What runs is the staged
proto of its pipeline, with one change: the containers of its environments are the worker pool of Prism. Machines, and
with them autoscaling, are the service's own and not here.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
from apache_beam.metrics import monitoring_infos
from apache_beam.portability import common_urns
from apache_beam.portability.api import (
    beam_artifact_api_pb2_grpc,
    beam_job_api_pb2,
    beam_job_api_pb2_grpc,
    beam_runner_api_pb2,
)
from apache_beam.runners.portability import artifact_service
from google.protobuf import struct_pb2

from tests.servers import gcs, pins, prism
from tests.servers.engine import HOST
from tests.servers.gcs import GcsServer
from tests.servers.prism import Prism
from tests.servers.process import QuietHandler, server_folder, serving

IMAGE = "region-docker.example/project/ledgerbeam-worker:0.1.0"  # what jobs name as the image; nothing is pulled
_PATH = re.compile(r"/v1b3/projects/project/locations/region/jobs(?:/(?P<id>[^/]+)(?:/(?P<part>messages|metrics))?)?")


@dataclass
class Dataflow:
    """A running service."""

    port: int
    storage: GcsServer
    bucket: str
    engine: Prism
    folder: Path
    jobs: dict[str, DataflowJob] = field(default_factory=dict)  # all that were accepted, in the order of their coming
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
        return self.engine.workers

    @property
    def executors(self) -> list[int]:
        """None: the machines are the service's own."""
        return []

    def pids(self) -> list[int]:
        return [self.storage.process.pid, *self.engine.pids()]

    def last(self) -> DataflowJob:
        return list(self.jobs.values())[-1]

    def cancel_all(self) -> None:
        """Cancel the jobs that have not ended."""
        for job in self.jobs.values():
            if not job.ended:
                job.request("JOB_STATE_CANCELLED")

    def create(self, told: dict[str, Any]) -> dict[str, Any]:
        """Take a job, and start it."""
        running = {job.told["name"] for job in self.jobs.values() if not job.ended}
        job = accept(told, f"job-{len(self.jobs)}", running, self.storage.endpoint, self.folder)
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
        try:
            with serving(server):
                yield service
        finally:
            for job in service.jobs.values():
                job.close()


class _Server(ThreadingHTTPServer):
    service: Dataflow


class _Handler(QuietHandler):
    """The methods of `v1b3` that Beam's client calls."""

    server: _Server

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
        except (RefusedError, LookupError) as error:
            status = 400 if isinstance(error, RefusedError) else 404
            self._answer({"error": {"code": status, "message": str(error)}}, status)

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


_State = beam_job_api_pb2.JobState.Enum
_ENDED = frozenset({_State.DONE, _State.FAILED, _State.CANCELLED})
_STORE = "storage.googleapis.com/"
_CANCEL = "JOB_STATE_CANCELLED"
# In JSON an enum is its name or its number.
_REQUESTS = {1: "JOB_STATE_STOPPED", 3: "JOB_STATE_DONE", 5: _CANCEL, 7: "JOB_STATE_DRAINING"}
_BATCH = (1, "JOB_TYPE_BATCH")
_SHOWN = ("name", "type", "clientRequestId")


class RefusedError(ValueError):
    """What the service answers with status 400."""


@dataclass
class DataflowJob:
    """A job that was accepted."""

    id: str
    told: dict[str, Any]
    pipeline: beam_runner_api_pb2.Pipeline
    staged: dict[str, Path]
    messages: list[dict[str, Any]] = field(default_factory=list)
    _channel: grpc.Channel | None = None
    _run: str = ""
    _reader: threading.Thread | None = None
    _last: int = _State.STARTING

    @property
    def options(self) -> Any:
        """The options of the pipeline, as the service hands them to its workers."""
        return self.told["environment"]["sdkPipelineOptions"]["options"]

    @property
    def state(self) -> int:
        """A state of Beam's job API."""
        if self._last not in _ENDED and self._channel is not None:
            request = beam_job_api_pb2.GetJobStateRequest(job_id=self._run)
            self._last = self._stub.GetState(request).state
        return self._last

    @property
    def ended(self) -> bool:
        return self.state in _ENDED

    def answer(self) -> dict[str, Any]:
        """Return the job as the API shows it."""
        state = _State.Name(self.state)
        told: dict[str, Any] = {name: self.told[name] for name in _SHOWN}
        known = state if state in {"DONE", "FAILED", "CANCELLED", "CANCELLING"} else "RUNNING"
        return {"id": self.id, **told, "currentState": f"JOB_STATE_{known}"}

    def request(self, state: int | str) -> None:
        """Ask for another state."""
        wanted = _REQUESTS.get(state, str(state)) if isinstance(state, int) else state
        if wanted != _CANCEL:
            raise RefusedError(f"{self.id}: a batch job cannot be brought into {wanted}")
        self._stub.Cancel(beam_job_api_pb2.CancelJobRequest(job_id=self._run))

    def start(self, engine: Prism) -> None:
        """Run the pipeline, its workers in the pool of a Prism."""
        pipeline = beam_runner_api_pb2.Pipeline.FromString(self.pipeline.SerializeToString())
        for environment in pipeline.components.environments.values():
            self._leave_to_pool(environment, engine.pool.port)
        self._channel = grpc.insecure_channel(f"{HOST}:{engine.job_port}")
        options = struct_pb2.Struct()
        options.update({f"beam:option:{name}:v1": value for name, value in self.options.items()})
        prepared = self._stub.Prepare(
            beam_job_api_pb2.PrepareJobRequest(job_name=self.told["name"], pipeline=pipeline, pipeline_options=options)
        )
        self._hand_over(prepared)
        request = beam_job_api_pb2.RunJobRequest(preparation_id=prepared.preparation_id)
        self._run = self._stub.Run(request).job_id
        self._reader = threading.Thread(target=self._read_messages, name=f"{self.id} messages")
        self._reader.start()

    def metrics(self) -> list[dict[str, Any]]:
        """Return what the user's functions have counted, as the API has it."""
        found = self._stub.GetJobMetrics(beam_job_api_pb2.GetJobMetricsRequest(job_id=self._run)).metrics
        attempted, committed = ({_key(info): info for info in infos} for infos in (found.attempted, found.committed))
        told: list[dict[str, Any]] = []
        for key in attempted.keys() | committed.keys():  # the service has both of all, and Beam's client relies on it
            told += _metric(attempted.get(key) or committed[key], {"tentative": "true"})
            told += _metric(committed.get(key) or attempted[key], {})
        return told

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
        if self._reader is not None:
            self._reader.join()

    @property
    def _stub(self) -> Any:
        return beam_job_api_pb2_grpc.JobServiceStub(self._channel)

    def _leave_to_pool(self, environment: beam_runner_api_pb2.Environment, port: int) -> None:
        environment.urn = common_urns.environments.EXTERNAL.urn
        pool = beam_runner_api_pb2.ExternalPayload()
        pool.endpoint.url = f"{HOST}:{port}"
        environment.payload = pool.SerializeToString()
        for needed in environment.dependencies:
            url = beam_runner_api_pb2.ArtifactUrlPayload.FromString(needed.type_payload)
            here = self.staged[url.url.rpartition("/")[2]]
            needed.type_urn = common_urns.artifact_types.FILE.urn
            payload = beam_runner_api_pb2.ArtifactFilePayload(path=str(here), sha256=url.sha256)
            needed.type_payload = payload.SerializeToString()

    def _hand_over(self, prepared: beam_job_api_pb2.PrepareJobResponse) -> None:
        endpoint = prepared.artifact_staging_endpoint.url
        if not endpoint:
            return
        with grpc.insecure_channel(endpoint) as channel:
            artifact_service.offer_artifacts(
                beam_artifact_api_pb2_grpc.ArtifactStagingServiceStub(channel),
                artifact_service.ArtifactRetrievalService(lambda path: io.BytesIO(Path(path).read_bytes())),
                prepared.staging_session_token,
            )

    def _read_messages(self) -> None:
        request = beam_job_api_pb2.JobMessagesRequest(job_id=self._run)
        try:
            for told in self._stub.GetMessageStream(request):
                if told.HasField("message_response"):
                    message = told.message_response
                    importance = beam_job_api_pb2.JobMessage.MessageImportance.Name(message.importance)
                    self._note(importance, message.message_text)
        except (grpc.RpcError, ValueError):
            pass  # Prism has ended, or this server

    def _note(self, importance: str, text: str) -> None:
        now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        told = {"id": str(len(self.messages)), "time": now, "messageImportance": importance, "messageText": text}
        self.messages.append(told)


def accept(told: dict[str, Any], name: str, running: Collection[str], storage: str, folder: Path) -> DataflowJob:
    """Check a job as the service and its workers do, by the names of running jobs, and bring what is staged for it."""
    environment = told["environment"]
    options = environment["sdkPipelineOptions"]["options"]
    if told["name"] in running:
        raise RefusedError(f"{told['name']}: there is already an active job of this name")
    if told.get("replaceJobId"):
        raise RefusedError(f"{told['name']}: a batch job cannot be updated")
    if told["type"] not in _BATCH or environment["version"]["job_type"] != "FNAPI_BATCH":
        raise RefusedError(f"expected a batch job, found {told['type']} and {environment['version']}")
    staged = {}
    (pool,) = environment["workerPools"]
    for package in pool.get("packages", []):
        staged[package["name"]] = _fetch(storage, package["location"].removeprefix(_STORE), folder / name)
    proto = _fetch(storage, options["pipelineUrl"].removeprefix("gs://"), folder / name).read_bytes()
    if (found := sha256(proto).hexdigest()) != options["pipelineProtoHash"]:
        raise RefusedError(f"{options['pipelineUrl']}: expected {options['pipelineProtoHash']}, found {found}")
    pipeline = beam_runner_api_pb2.Pipeline.FromString(proto)
    _check_images(pool, pipeline)
    _check_dependencies(staged, pipeline)
    return DataflowJob(name, told, pipeline, staged)


def _check_images(pool: dict[str, Any], pipeline: beam_runner_api_pb2.Pipeline) -> None:
    images = {image["environmentId"]: image["containerImage"] for image in pool["sdkHarnessContainerImages"]}
    used = {part.environment_id for part in pipeline.components.transforms.values() if part.environment_id}
    if used != images.keys():
        raise RefusedError(f"expected an image for each environment {sorted(used)}, found {images}")
    for name, environment in pipeline.components.environments.items():
        if environment.urn != common_urns.environments.DOCKER.urn:
            raise RefusedError(f"environment {name}: expected a container, found {environment.urn}")
        image = beam_runner_api_pb2.DockerPayload.FromString(environment.payload).container_image
        if images.get(name, image) != image:
            raise RefusedError(f"environment {name}: expected the image {image}, found {images[name]}")


def _check_dependencies(staged: dict[str, Path], pipeline: beam_runner_api_pb2.Pipeline) -> None:
    for environment in pipeline.components.environments.values():
        for needed in environment.dependencies:
            url = beam_runner_api_pb2.ArtifactUrlPayload.FromString(needed.type_payload)
            file = staged.get(url.url.rpartition("/")[2])
            if needed.type_urn != common_urns.artifact_types.URL.urn or file is None:
                raise RefusedError(f"expected staged files only, found {needed.type_urn} {url.url}")
            if (found := sha256(file.read_bytes()).hexdigest()) != url.sha256:
                raise RefusedError(f"{url.url}: expected {url.sha256}, found {found}")


def _fetch(storage: str, place: str, folder: Path) -> Path:
    bucket, _, name = place.partition("/")
    url = f"{storage}/storage/v1/b/{bucket}/o/{urllib.parse.quote(name, safe='')}?alt=media"
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / name.rpartition("/")[2]
    try:
        with urllib.request.urlopen(url, timeout=30) as found:
            target.write_bytes(found.read())
    except urllib.error.HTTPError as error:
        raise RefusedError(f"gs://{place}: expected a staged file, found {error}") from error
    return target


def _key(info: Any) -> tuple[str, str]:
    return info.urn, json.dumps(dict(info.labels), sort_keys=True)


def _metric(info: Any, context: dict[str, str]) -> Iterator[dict[str, Any]]:
    labels = info.labels
    if "NAMESPACE" not in labels or "NAME" not in labels:
        return
    named = {**context, "namespace": labels["NAMESPACE"], "step": labels.get("PTRANSFORM", "")}
    told: dict[str, Any] = {"name": {"origin": "user", "name": labels["NAME"], "context": named}}
    if monitoring_infos.is_counter(info):
        yield {**told, "scalar": monitoring_infos.extract_counter_value(info)}
    elif monitoring_infos.is_distribution(info):
        count, total, least, most = monitoring_infos.extract_distribution(info)
        yield {**told, "distribution": {"count": count, "sum": total, "min": least, "max": most}}
