"""Runs a job on any Beam runner, by Beam's own options. Beam is imported when it is needed, not with this module."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ledgerbeam._base.beam_import import logging_kept
from ledgerbeam.errors import LedgerbeamError, UsageError
from ledgerbeam.io.storage.urls import is_local
from ledgerbeam.ledger import LedgerStore, Totals
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.ledger.model.runs import MEASURED, SetUps, WorkTime
from ledgerbeam.pipelines.jobs.listing import JobListing, gone_sources
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.pipelines.runners import dataflow
from ledgerbeam.pipelines.runners.logs import worker_options
from ledgerbeam.user_code.loading import SAFE_PATH

_log = logging.getLogger(__name__)


_HERE = ("FnApiRunner", "DirectRunner", "BundleBasedDirectRunner", "PrismRunner")
"""Runners that start their workers on this machine."""

_JOB_SECONDS = 10 * 365 * 86_400

_FRAME = re.compile(r"\((\w+\.\w+:\d+|Native Method|Unknown Source)\)$")
"""Ends a line of a Java trace that says where something was called."""

_KNOWN = (*_HERE, dataflow.RUNNER)
"""Runners whose options are all Beam's own; a job server may know more."""


def check_options(beam_args: Sequence[str]) -> None:
    """Refuse options that Beam does not know: it would only warn of them, and run without. It imports Beam.

    Raises:
        UsageError: If there are such options, and no job server that may know them; or if Dataflow could not run the
            job with those that there are.
    """
    from apache_beam.options.pipeline_options import PipelineOptions, _BeamArgumentParser  # noqa: PLC0415

    options = PipelineOptions(list(beam_args)).get_all_options()
    runner = _runner(options)
    if runner not in _KNOWN:
        return
    parser = _BeamArgumentParser(allow_abbrev=False)
    for kind in PipelineOptions.__subclasses__():
        kind._add_argparse_args(parser)  # noqa: SLF001 - how Beam collects them itself
    _, unknown = parser.parse_known_args(list(beam_args))
    if unknown:
        raise UsageError(f"Beam does not know the options {' '.join(unknown)}")
    if runner == dataflow.RUNNER:
        dataflow.check_dataflow(options)


def check_reach(spec: JobSpec, beam_args: Sequence[str]) -> None:
    """Refuse what workers on other machines could not reach.

    Runners that start their workers on this machine, and workers in the launcher (``--environment_type=LOOPBACK``), may
    use local paths.

    Raises:
        UsageError: If the job's ledger, sources, indexes or outputs are local and its workers may not be.
    """
    from apache_beam.options.pipeline_options import PipelineOptions  # noqa: PLC0415

    options = PipelineOptions(list(beam_args)).get_all_options()
    runner = _runner(options)
    if runner in _HERE or options.get("environment_type") == "LOOPBACK":
        return
    for name, urls in spec.places().items():
        for url in urls:
            if is_local(url):
                raise UsageError(
                    f"{url}: {name} must be on an object store: workers of {runner} may run on other machines; "
                    "give a URL such as s3://bucket/folder, or run the workers here with --environment_type=LOOPBACK"
                )


def _runner(options: Mapping[str, Any]) -> str:
    """Return the name of the runner; Beam takes it in any case, with its module, and without its last syllable."""
    named = str(options.get("runner") or _HERE[0]).rpartition(".")[2]
    short = {name.lower().removesuffix("runner"): name for name in _KNOWN}
    return short.get(named.lower().removesuffix("runner"), named)


def _patience(beam_args: Sequence[str]) -> list[str]:
    """Return Beam's options with a deadline of Beam's own set to longer than any job, where the user sets none.

    After so many seconds, 300 by default, Beam would end the wait for a job of Prism with an error, while the job goes
    on. A job server at an address has the same deadline to answer at all: that is waited for here.

    Raises:
        LedgerbeamError: If nobody answers there.
    """
    from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions  # noqa: PLC0415

    given = PipelineOptions(list(beam_args))
    told, usual = given.get_all_options(), PipelineOptions([]).view_as(PortableOptions).job_server_timeout
    endpoint = told.get("job_endpoint")
    if told["job_server_timeout"] != usual or _runner(told) not in ("PrismRunner", "PortableRunner"):
        return list(beam_args)
    if endpoint and endpoint != "embed":
        _wait_for_server(endpoint, usual)
    return [*beam_args, f"--job_server_timeout={_JOB_SECONDS}"]


def _wait_for_server(endpoint: str, seconds: float) -> None:
    import grpc  # noqa: PLC0415

    with grpc.insecure_channel(endpoint) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=seconds)
        except grpc.FutureTimeoutError:
            raise LedgerbeamError(
                f"--job_endpoint={endpoint}: no job server has answered there for {seconds} s; start one, or name the "
                "address of the one that runs"
            ) from None


def stop_servers() -> None:
    """Stop the Prism that Beam has started for this process, and would stop as Python ends."""
    module = sys.modules.get("apache_beam.runners.portability.prism_runner")
    server = None if module is None else module.PrismRunner.shared_handle.acquire(lambda: None)
    if server is not None:
        server.stop()


class BeamRunner:
    """A runner that Beam's options name.

    Args:
        spec: The job.
        store: Its ledger.
        beam_args: Beam options of the user.

    Attributes:
        deaths: Always 0: such a runner watches its workers itself.
        records: What became of the records of the tasks that were recorded while it ran.
        stopped: Always False: such a runner takes no limit of tasks.
        submitted: Whether the pipeline was only staged, as the launcher of a template does, and others run it.
    """

    deaths = 0
    stopped = False
    submitted = False

    def __init__(self, spec: JobSpec, store: LedgerStore, beam_args: Sequence[str]) -> None:
        self._spec = spec
        self._store = store
        self._beam_args = beam_args
        self._set_ups = SetUps()
        self._time = WorkTime()
        self.records = RecordCounts()

    def run(self, listed: JobListing) -> None:
        """Run the job's pipeline, and again while it leaves open what another pass does, as index ranges do.

        The pipeline lists the sources itself. Once it is done they are listed again, to find out which are gone, if the
        ledger knew any before.

        Raises:
            LedgerbeamError: If the pipeline failed; what it had recorded stays recorded.
        """
        knew = self._store.source_count()
        while True:
            if self._spec.reject_limit is not None:
                self._spec.reject_limit.check(self._store, ended=False)
            before, records_before = self._store.totals(), self._store.records()
            self._pass(listed.run)
            if self.submitted:
                return
            self._store.refresh()
            # A source that changed takes its share away when it is registered, inside of the pipeline.
            fresh = Totals(*(max(0, part) for part in self._store.totals().minus(before)))
            self.records = self.records.plus(self._store.records().since(records_before))
            sources = self._store.status()["sources"]
            # What comes behind the chain takes all of a run at once.
            if sources["open"] == 0 or not any(fresh) or self._spec.has_downstream:
                break
        gone = [*gone_sources(self._spec, self._store)] if knew else []
        found = sum(sources.values()) - sum(self._store.completed_mask(gone))
        self._store.note_listing(listed.run, listed=found, finished=True, gone=gone)

    def _pass(self, run: str) -> None:
        with logging_kept():
            self._run_pipeline(run)

    def _run_pipeline(self, run: str) -> None:
        # Beam takes a second, and comes after logging is set up.
        from apache_beam.options.pipeline_options import PipelineOptions  # noqa: PLC0415

        from ledgerbeam.pipelines.runners.pipeline import job_pipeline  # noqa: PLC0415
        from ledgerbeam.user_code.instances import close_objects  # noqa: PLC0415

        safe = os.environ.get("PYTHONSAFEPATH")
        # Beam starts other Pythons, `python -m pip` one of them: the working folder is not on their path either.
        os.environ.setdefault("PYTHONSAFEPATH", SAFE_PATH)
        try:
            options = PipelineOptions([*worker_options(self._spec.log_level), *_patience(self._beam_args)])
            result = job_pipeline(replace(self._spec, run=run), options).run()
            told = options.get_all_options()
            self.submitted = _runner(told) == dataflow.RUNNER and dataflow.is_template(told)
            if self.submitted:
                return
            result.wait_until_finish()
            self._set_ups = self._set_ups.plus(_counted_set_ups(result))
            if self._set_ups.times:
                self._store.note(run, self._set_ups)
            self._time = WorkTime.summed([self._time, _counted_time(result)])
            if self._time.total:
                self._store.note(run, self._time)
        except LedgerbeamError:
            raise
        except Exception as error:
            failed = LedgerbeamError(f"the pipeline failed: {_last_line(error)}{_remedy(error)}")
            failed.add_note("the error of the runner, from which this one follows, has all of it")
            raise failed from error
        finally:
            close_objects()  # of workers that are threads of this process
            if safe is None:
                os.environ.pop("PYTHONSAFEPATH", None)


def _counted_set_ups(result: Any) -> SetUps:
    """Return the set-ups in a runner's counters; some runners have none."""
    made = SetUps()
    for metric in _counters(result, "distributions"):
        if metric.key.metric.name == "set_up_ms" and (counted := metric.result) is not None and counted.count:
            made = made.plus(SetUps(counted.count, counted.sum / 1000, counted.max / 1000))
    return made


def _counted_time(result: Any) -> WorkTime:
    """Return where the time of workers went by a runner's counters, which do not say how many there were."""
    spent = Counter[str]()
    for metric in _counters(result, "counters"):
        part = metric.key.metric.name.removesuffix("_us")
        if part in MEASURED and metric.result:
            spent[part] += metric.result
    return WorkTime(0, {part: spent[part] / 1e6 for part in MEASURED if part in spent})


def _counters(result: Any, kind: str) -> list[Any]:
    """Return our counters of a kind; none of a runner that has no counters."""
    from apache_beam.metrics.metric import MetricsFilter  # noqa: PLC0415

    try:
        found = result.metrics().query(MetricsFilter().with_namespace("ledgerbeam"))
    except NotImplementedError:
        return []
    except Exception as error:  # noqa: BLE001 - all is done by now: what a service cannot tell of it changes nothing
        _log.warning("the runner's counters were not to be had: %s", _last_line(error))
        return []
    return list(found[kind])


def _remedy(error: Any) -> str:
    if "Only one SparkContext" in str(error):
        return (
            "; a job server of Spark runs one job at a time: wait for that job, or cancel it, and run the command again"
        )
    return ""


def _last_line(error: Any) -> str:
    """Return what an error says last: of the trace of a Java program what was the cause of it all."""
    lines = [line.strip() for line in str(error).splitlines() if any(map(str.isalnum, line))]
    lines = [line.removesuffix(", Error:") for line in lines if line != "None"]  # of a service that has no more to say
    causes = [line for line in lines if line.startswith("Caused by: ")]
    said = [line for line in lines if not _FRAME.search(line)]
    return f"{type(error).__name__}: {(causes or said or lines or [''])[-1].removeprefix('Caused by: ')}"
