"""Runs of a job on any Beam runner, chosen by Beam's options. This module imports Beam only when needed.

Options for Dataflow are checked before anything is staged and paid for.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any

from ledgerbeam._base.extensions import install_command
from ledgerbeam._base.process import logging_kept
from ledgerbeam.errors import LedgerbeamError, UsageError
from ledgerbeam.io.storage.urls import is_local
from ledgerbeam.ledger import LedgerStore, Totals
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.ledger.model.rows import MEASURED, SetUps, WorkTime
from ledgerbeam.pipelines.jobs.listing import JobListing, gone_sources
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.user_code.loading import SAFE_PATH

_log = logging.getLogger(__name__)

RUNNER = "DataflowRunner"  # name of Beam's runner for Dataflow
_LOCAL_RUNNERS = ("FnApiRunner", "DirectRunner", "BundleBasedDirectRunner", "PrismRunner")
_BEAM_RUNNERS = (*_LOCAL_RUNNERS, RUNNER)  # accept only Beam's own options; a job server may accept others
_JOB_SECONDS = 10 * 365 * 86_400
# The end of a line of a Java trace that gives the place of a call.
_FRAME = re.compile(r"\((\w+\.\w+:\d+|Native Method|Unknown Source)\)$")
_CLIENT = "google.cloud.dataflow"
# Options that install code on the workers. Without one of them, the workers have only Beam.
_CODE = ("sdk_container_image", "setup_file", "requirements_file", "extra_packages", "prebuild_sdk_container_engine")


@dataclass(eq=False)
class BeamRunner:
    """A run of a job on the runner that Beam's options name."""

    deaths = 0  # always 0: these runners handle deaths of their workers
    stopped, spent = False, ""  # these runners support no limits

    spec: JobSpec
    store: LedgerStore
    beam_args: Sequence[str]
    submitted: bool = False  # whether the pipeline was only staged as a template, and will be run by the service
    records: RecordCounts = field(default_factory=RecordCounts)
    _set_ups: SetUps = field(default_factory=SetUps)
    _time: WorkTime = field(default_factory=WorkTime)

    def run(self, listed: JobListing) -> None:
        """Run the job's pipeline, and repeat it while work is left, such as an index to assemble from scanned ranges.

        The pipeline lists the sources itself. If earlier runs have recorded sources, this method lists sources again at
        the end, to find the missing ones.

        Raises:
            LedgerbeamError: The pipeline failed. Everything that it had recorded stays recorded.
        """
        had_sources = self.store.source_count()
        while True:
            if self.spec.reject_limit is not None:
                self.spec.reject_limit.check(self.store, ended=False)
            before, records_before = self.store.totals(), self.store.records()
            with logging_kept():
                self._run_pipeline(listed.run)
            if self.submitted:
                return
            self.store.refresh()
            # A changed source subtracts its former totals when it is registered, inside of the pipeline.
            fresh = Totals(*(max(0, part) for part in self.store.totals().minus(before)))
            self.records = self.records.plus(self.store.records().since(records_before))
            sources = self.store.status()["sources"]
            # What follows the chain needs all results of a run at once.
            if sources["open"] == 0 or not any(fresh) or self.spec.has_downstream:
                break
        gone = [*gone_sources(self.spec, self.store)] if had_sources else []
        found = sum(sources.values()) - sum(self.store.completed_mask(gone))
        self.store.note_listing(listed.run, listed=found, finished=True, gone=gone)

    def _run_pipeline(self, run: str) -> None:
        # Beam takes a second to import, and must be imported after logging is set up.
        from apache_beam.options.pipeline_options import PipelineOptions  # noqa: PLC0415

        from ledgerbeam.pipelines.runners.pipeline import job_pipeline  # noqa: PLC0415
        from ledgerbeam.user_code.objects import close_objects  # noqa: PLC0415

        safe = os.environ.get("PYTHONSAFEPATH")
        # Beam starts other Python processes, such as `python -m pip`. Keep the working folder off their path too.
        os.environ.setdefault("PYTHONSAFEPATH", SAFE_PATH)
        try:
            # By default workers log from `info`.
            level = ["--default_sdk_harness_log_level=DEBUG"] if self.spec.log_level == "debug" else []
            options = PipelineOptions([*level, *_with_long_timeout(self.beam_args)])
            result = job_pipeline(replace(self.spec, run=run), options).run()
            values = options.get_all_options()
            self.submitted = _runner(values) == RUNNER and bool(values.get("template_location"))
            if self.submitted:
                return
            result.wait_until_finish()
            self._set_ups = self._set_ups.plus(_counted_set_ups(result))
            if self._set_ups.times:
                self.store.note(run, self._set_ups)
            self._time = WorkTime.summed([self._time, _counted_time(result)])
            if self._time.total:
                self.store.note(run, self._time)
        except LedgerbeamError:
            raise
        except Exception as error:
            failed = LedgerbeamError(f"the pipeline failed: {_last_line(error)}{_remedy(error)}")
            failed.add_note("the error of the runner, which caused this one, has the details")
            raise failed from error
        finally:
            close_objects()  # of workers that are threads of this process
            if safe is None:
                os.environ.pop("PYTHONSAFEPATH", None)


def check_options(beam_args: Sequence[str], places: Mapping[str, Sequence[str]]) -> None:
    """Raise UsageError for unknown options, or for a local path that workers may not reach. This imports Beam.

    Beam would ignore unknown options with a warning. `places` are the URLs that workers must reach, by their names.
    """
    from apache_beam.options.pipeline_options import PipelineOptions, _BeamArgumentParser  # noqa: PLC0415

    options = PipelineOptions(list(beam_args)).get_all_options()
    runner = _runner(options)
    if runner in _BEAM_RUNNERS:
        parser = _BeamArgumentParser(allow_abbrev=False)
        for kind in PipelineOptions.__subclasses__():
            kind._add_argparse_args(parser)  # noqa: SLF001 - Beam collects its options in the same way
        _, unknown = parser.parse_known_args(list(beam_args))
        if unknown:
            raise UsageError(f"unknown Beam options: {' '.join(unknown)}; correct them, or leave them out")
    if runner == RUNNER:
        check_dataflow(options)
    if runner in _LOCAL_RUNNERS or options.get("environment_type") == "LOOPBACK":  # workers run on this machine
        return
    for name, url in ((name, url) for name, urls in places.items() for url in urls):
        if is_local(url):
            raise UsageError(
                f"{url}: {name} must be on an object store: workers of {runner} may run on other machines; "
                "give a URL such as s3://bucket/folder, or run the workers here with --environment_type=LOOPBACK"
            )


def stop_servers() -> None:
    """Stop the Prism server that Beam has started for this process, and would stop only when Python exits."""
    module = sys.modules.get("apache_beam.runners.portability.prism_runner")
    server = None if module is None else module.PrismRunner.shared_handle.acquire(lambda: None)
    if server is not None:
        server.stop()


def _with_long_timeout(beam_args: Sequence[str]) -> list[str]:
    """Return Beam's options, with Beam's own timeout set to longer than any job unless the user has set it.

    After the timeout, 300 s by default, Beam would stop waiting for a job of Prism with an error, although the job
    continues. The same timeout limits the wait for a job server, so this function waits for it before.
    """
    from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions  # noqa: PLC0415

    given = PipelineOptions(list(beam_args))
    values, usual = given.get_all_options(), PipelineOptions([]).view_as(PortableOptions).job_server_timeout
    endpoint = values.get("job_endpoint")
    if values["job_server_timeout"] != usual or _runner(values) not in ("PrismRunner", "PortableRunner"):
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
                f"--job_endpoint={endpoint}: no job server has answered for {seconds} s; start a job server, or give "
                "the address of a running one"
            ) from None


def _runner(options: Mapping[str, Any]) -> str:
    """Return the name of the runner. Beam ignores its case and module, and "Runner" at its end may be missing."""
    named = str(options.get("runner") or _LOCAL_RUNNERS[0]).rpartition(".")[2]
    short = {name.lower().removesuffix("runner"): name for name in _BEAM_RUNNERS}
    return short.get(named.lower().removesuffix("runner"), named)


def check_dataflow(options: Mapping[str, Any]) -> None:
    """Raise an error for options with which Dataflow would reject or fail the job."""
    if not _has_client():
        raise UsageError(f"--runner={RUNNER} needs Google's client: {install_command('dataflow')}")
    if not any(options.get(name) for name in _CODE):
        raise UsageError(
            f"--runner={RUNNER}: its workers would not have ledgerbeam; give an image that contains it with "
            "--sdk_container_image=IMAGE (docker/README.md builds one), or install the code with --requirements_file "
            "or --setup_file"
        )
    if options.get("environment_type"):
        found = options["environment_type"]
        raise UsageError(f"--environment_type={found}: the service starts its own workers; leave the option out")
    if options.get("update"):
        raise UsageError(
            "--update: the service updates streaming jobs only; cancel the job, then run the same command again: it "
            "continues from the ledger"
        )


def _counted_set_ups(result: Any) -> SetUps:
    """Return the set-ups in a runner's counters; zero for runners without counters."""
    made = SetUps()
    for metric in _counters(result, "distributions"):
        if metric.key.metric.name == "set_up_ms" and (counted := metric.result) is not None and counted.count:
            made = made.plus(SetUps(counted.count, counted.sum / 1000, counted.max / 1000))
    return made


def _counted_time(result: Any) -> WorkTime:
    """Return the work time in a runner's counters. The number of workers is 0, because no counter has it."""
    spent = Counter[str]()
    for metric in _counters(result, "counters"):
        part = metric.key.metric.name.removesuffix("_us")
        if part in MEASURED and metric.result:
            spent[part] += metric.result
    return WorkTime(0, {part: spent[part] / 1e6 for part in MEASURED if part in spent})


def _counters(result: Any, kind: str) -> list[Any]:
    """Return ledgerbeam's counters of a kind; empty for runners without counters."""
    from apache_beam.metrics.metric import MetricsFilter  # noqa: PLC0415

    try:
        found = result.metrics().query(MetricsFilter().with_namespace("ledgerbeam"))
    except NotImplementedError:
        return []
    except Exception as error:  # noqa: BLE001 - the job is done, so a failure to read counters must not fail it
        _log.warning("the runner's counters could not be read: %s", _last_line(error))
        return []
    return list(found[kind])


def _remedy(error: Any) -> str:
    text = "; a job server of Spark runs one job at a time: wait for its job, or cancel it, and run the command again"
    return text if "Only one SparkContext" in str(error) else ""


def _last_line(error: Any) -> str:
    """Return the last line of an error's text. For the trace of a Java program, return the root cause."""
    lines = [line.strip() for line in str(error).splitlines() if any(map(str.isalnum, line))]
    lines = [line.removesuffix(", Error:") for line in lines if line != "None"]  # from a service without details
    causes = [line for line in lines if line.startswith("Caused by: ")]
    texts = [line for line in lines if not _FRAME.search(line)]
    return f"{type(error).__name__}: {(causes or texts or lines or [''])[-1].removeprefix('Caused by: ')}"


def _has_client() -> bool:
    try:
        return find_spec(_CLIENT) is not None
    except ModuleNotFoundError:  # the parent package is missing too
        return False
