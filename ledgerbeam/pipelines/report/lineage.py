"""OpenLineage events: the inputs and outputs of a run, for systems that collect data lineage.

The OpenLineage client sends the events; its own configuration names the server. A server that does not answer delays
the end of a run by at most `WAIT_SECONDS`, and never makes the run fail.
"""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from queue import SimpleQueue
from typing import Any, NamedTuple

from ledgerbeam._base.extensions import install_command
from ledgerbeam._base.redaction import without_secrets
from ledgerbeam._base.version import __version__
from ledgerbeam.io import Options
from ledgerbeam.io.storage.urls import is_local
from ledgerbeam.ledger import LedgerStore, Totals
from ledgerbeam.pipelines.console.run_progress import count
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.pipelines.report.run_info import DONE, TASKS_FAILED

WAIT_SECONDS = 5.0  # maximum time that a finished run waits until its events are sent, in seconds

_PRODUCER = f"https://github.com/ledgerbeam/ledgerbeam/tree/v{__version__}"
_FILE = "openlineage.yml"
_THREAD = "ledgerbeam-lineage"
_NOISY = ("urllib3.connectionpool", "urllib3.util.retry")

_SCHEMES = {"gcs": "gs", "s3a": "s3"}  # schemes of OpenLineage by others for the same store
# Type of the event that ends a run, by outcome. Any other outcome is ``FAIL``.
_ENDS = {DONE: "COMPLETE", TASKS_FAILED: "FAIL", "interrupted": "ABORT"}


def is_configured() -> bool:
    """Return whether OpenLineage is configured, by the rules of its client."""
    if os.environ.get("OPENLINEAGE_DISABLED", "").strip().lower() == "true":
        return False
    if os.environ.get("OPENLINEAGE_URL") or os.environ.get("OPENLINEAGE_CONFIG"):
        return True
    folders = (os.getcwd(), os.path.expanduser("~/.openlineage"))
    return any(name.startswith("OPENLINEAGE__TRANSPORT") for name in os.environ) or any(
        os.path.isfile(os.path.join(folder, _FILE)) for folder in folders
    )


def run_id_of(ledger_id: str, run: str) -> str:
    """Return the UUID of a run of a ledger, or of the parent of all its runs if `run` is empty."""
    return str(uuid.uuid5(uuid.UUID(hex=ledger_id), run or "ledger"))


class Dataset(NamedTuple):
    """A dataset as OpenLineage names it: a namespace, and the name of the dataset in the namespace."""

    namespace: str
    name: str


def dataset(url: str, options: Options | None = None) -> Dataset:
    """Return the dataset at a canonical URL. The storage options of Azure may have the account."""
    shown = without_secrets(url)
    if is_local(shown):
        return Dataset("file", shown.removeprefix("file://").rstrip("/") or "/")
    scheme, _, rest = shown.partition("://")
    place, _, path = rest.partition("/")
    name = path.strip("/") or "/"
    if scheme in ("az", "abfs", "abfss", "adl"):
        account = (options or {}).get("account_name") or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
        has_account = account is None or "@" in place
        return Dataset(f"abfss://{place}" if has_account else f"abfss://{place}@{account}.dfs.core.windows.net", name)
    return Dataset(f"{_SCHEMES.get(scheme, scheme)}://{place}", name)


class _Sender:
    """Sends events in order, from its own thread."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._events: SimpleQueue[Any] = SimpleQueue()
        self.error: str | None = None
        self._thread = threading.Thread(target=self._send_all, name=_THREAD, daemon=True)
        self._thread.start()

    def send(self, event: Any) -> None:
        self._events.put(event)

    def close(self) -> None:
        """Wait up to `WAIT_SECONDS` until all events are sent."""
        self._events.put(None)
        self._thread.join(WAIT_SECONDS)
        if self._thread.is_alive():
            self.error = self.error or f"no answer within {WAIT_SECONDS:g} seconds"

    def _send_all(self) -> None:
        while (event := self._events.get()) is not None:
            try:
                self._client.emit(event)
            except Exception as error:  # noqa: BLE001 - a run must not fail: it warns at its end
                self.error = self.error or f"{type(error).__name__}: {error}"
        try:
            self._client.close(WAIT_SECONDS)
        except Exception as error:  # noqa: BLE001 - the same
            self.error = self.error or f"{type(error).__name__}: {error}"


@dataclass(frozen=True)
class RunLineage:
    """Events of one run. `run_lineage` creates it."""

    spec: JobSpec
    ledger_id: str
    ledger: str
    run: str
    runner: str

    def _job(self) -> dict[str, str]:
        """Return the namespace and the name of the job. The name is the command and the output folder."""
        spec = self.spec
        where = spec.output or (spec.sources().names or (self.ledger,))[0]
        return {"namespace": _namespace(), "name": without_secrets(f"{spec.command} {where}")}

    def _inputs(self) -> list[Dataset]:
        from ledgerbeam.iterators.job_source import GRAPH_SCHEME  # noqa: PLC0415 - few runs send events

        sources = self.spec.sources()
        parameters = sources.parameters()
        if "graph" in parameters:
            urls = [url for group in sources.places().values() for url in group]
        else:
            base = parameters.get("base")
            files, index_root = sources.as_files, sources.places().get("--index-root")
            folders = [] if files is None or index_root else sorted(files.index_folders())
            urls = [base] if isinstance(base, str) and base else folders or list(sources.names)
        found = (dataset(url, self.spec.storage_options) for url in urls if not url.startswith(GRAPH_SCHEME))
        return list(dict.fromkeys(found))

    def _datasets(self, routes: Sequence[str] = ()) -> list[Dataset]:
        """Return the output folder and the folders of routes. Without an output, return the folders of the indexes."""
        output, options = self.spec.output, self.spec.storage_options
        if output is None:
            return [dataset(url, options) for url in sorted(self.spec.folders())]
        return [dataset(f"{output.rstrip('/')}/{route}".rstrip("/"), options) for route in ("", *routes)]

    def event(
        self, kind: str, *, done: Totals | None = None, routes: Sequence[str] = (), error: str | None = None
    ) -> Any:
        """Return an event of a kind. `done` are the totals of the run, `routes` the routes that are datasets, too."""
        from openlineage.client.event_v2 import InputDataset, Job, Run, RunEvent, RunState  # noqa: PLC0415 - an extra
        from openlineage.client.facet_v2 import job_type_job  # noqa: PLC0415

        job_type = job_type_job.JobTypeJobFacet("BATCH", "LEDGERBEAM", jobType="JOB", producer=_PRODUCER)
        run_id = run_id_of(self.ledger_id, self.run)
        return RunEvent(
            eventType=RunState[kind],
            eventTime=datetime.now(UTC).isoformat(),
            run=Run(run_id, facets=self._run_facets(error)),
            job=Job(**self._job(), facets={"jobType": job_type}),
            inputs=[InputDataset(*found) for found in self._inputs()],
            outputs=self._outputs(done, routes),
            producer=_PRODUCER,
        )

    def _run_facets(self, error: str | None) -> dict[str, Any]:
        from importlib.metadata import version  # noqa: PLC0415 - only runs with lineage need them

        from openlineage.client.facet_v2 import error_message_run, parent_run, processing_engine_run  # noqa: PLC0415

        namespace, name = _namespace(), without_secrets(f"ledger {self.ledger}")
        parent = run_id_of(self.ledger_id, "")
        parts = os.environ.get("OPENLINEAGE_PARENT_ID", "").rsplit("/", 2)
        if len(parts) == 3 and all(parts):
            with suppress(ValueError):  # not the ID of a run: ignore the variable
                namespace, name, parent = parts[0], parts[1], str(uuid.UUID(parts[2]))
        facets: dict[str, Any] = {
            "processing_engine": processing_engine_run.ProcessingEngineRunFacet(
                version("apache-beam"),
                name=f"Apache Beam ({self.runner})",
                openlineageAdapterVersion=__version__,
                producer=_PRODUCER,
            ),
            "parent": parent_run.ParentRunFacet(
                parent_run.Run(parent), parent_run.Job(namespace, name), producer=_PRODUCER
            ),
        }
        if error is not None:
            message = without_secrets(error)
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(message, "PYTHON", producer=_PRODUCER)
        return facets

    def _outputs(self, done: Totals | None, routes: Sequence[str]) -> list[Any]:
        from openlineage.client.event_v2 import OutputDataset  # noqa: PLC0415
        from openlineage.client.facet_v2 import output_statistics_output_dataset as statistics  # noqa: PLC0415

        made: list[Any] = []
        for number, found in enumerate(self._datasets(routes)):
            facets: dict[str, Any] = {}
            if done is not None and not number and not routes:  # totals of a run are not known by route
                facets["outputStatistics"] = statistics.OutputStatisticsOutputDatasetFacet(
                    rowCount=done.records, size=done.bytes, producer=_PRODUCER
                )
            made.append(OutputDataset(*found, facets=self._schema() if not number else {}, outputFacets=facets))
        return made

    def _schema(self) -> dict[str, Any]:
        from openlineage.client.facet_v2 import schema_dataset  # noqa: PLC0415

        columns: Mapping[str, Any] = (self.spec.schemas_json() or {}).get("columns", {})
        types = {name: kind if isinstance(kind, str) else str(kind.get("type")) for name, kind in columns.items()}
        fields = [
            schema_dataset.SchemaDatasetFacetFields(name, kind, ordinal_position=place)
            for place, (name, kind) in enumerate(types.items(), 1)
        ]
        return {"schema": schema_dataset.SchemaDatasetFacet(fields, producer=_PRODUCER)} if fields else {}


def _namespace() -> str:
    return os.environ.get("OPENLINEAGE_NAMESPACE") or "default"


@dataclass
class RunEnd:
    """The end of a run; its launcher sets it with `note`."""

    outcome: str | None = "failed"  # outcome that the ledger records; None for a run that was only submitted
    done: Totals = field(default_factory=Totals)  # totals recorded by the run
    routes: Sequence[str] = ()  # names of all datasets but the main one
    failures: int = 0

    def note(self, store: LedgerStore, outcome: str | None, done: Totals) -> None:
        """Set the outcome and the totals of the run."""
        status = store.status()
        self.outcome, self.done, self.failures = outcome, done, status["tasks"]["failed"]
        self.routes = sorted(filter(None, status["records"]["written"]))


@contextmanager
def run_lineage(
    spec: JobSpec, store: LedgerStore, run: str, runner: str, warn: Callable[[str], None]
) -> Iterator[RunEnd]:
    """Send OpenLineage events when the `with` block of a run starts and ends, if OpenLineage is configured.

    `warn` is called with a warning if events cannot be sent.
    """
    end = RunEnd()
    lineage = RunLineage(spec, store.ledger_id(), store.url, run, runner) if is_configured() else None
    sender = None if lineage is None else _begun(lineage, warn)
    if lineage is None or sender is None:
        yield end
        return
    error: str | None = None
    try:
        yield end
    except Exception as raised:
        error = str(raised)
        raise
    finally:
        if end.failures and end.outcome == TASKS_FAILED:
            error = f"{count(end.failures, 'task')} failed; to list them, run: ledgerbeam ledger failures LEDGER"
        kind = "RUNNING" if end.outcome is None else _ENDS.get(end.outcome, "FAIL")
        with _said(warn):
            sender.send(lineage.event(kind, done=end.done, routes=end.routes, error=error))
        sender.close()
        if sender.error is not None:
            warn(f"OpenLineage did not receive all events; the run is not affected: {without_secrets(sender.error)}")


def _begun(lineage: RunLineage, warn: Callable[[str], None]) -> _Sender | None:
    try:
        from openlineage.client import OpenLineageClient  # noqa: PLC0415 - an extra
    except ImportError:
        warn(f"OpenLineage is configured, but its client is not installed: {install_command('lineage')}")
        return None
    with _said(warn):
        _silence()
        sender = _Sender(OpenLineageClient())
        sender.send(lineage.event("START"))
        return sender
    return None


@contextmanager
def _said(warn: Callable[[str], None]) -> Iterator[None]:
    """Turn errors of the client, such as a wrong configuration, into a warning."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - a run must not fail
        warn(f"OpenLineage events cannot be sent; the run is not affected: {without_secrets(str(error))}")


def _silence() -> None:
    """Keep the client's log of its attempts off the console; the warning at the end replaces it."""
    client = logging.getLogger("openlineage")
    if client.level == logging.NOTSET and "OPENLINEAGE_CLIENT_LOGGING" not in os.environ:
        client.setLevel(logging.CRITICAL)
    for name in _NOISY:
        logger = logging.getLogger(name)
        if _is_of_others not in logger.filters:
            logger.addFilter(_is_of_others)


def _is_of_others(record: logging.LogRecord) -> bool:
    return record.threadName != _THREAD
