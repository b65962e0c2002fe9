"""Runs a job on any Beam runner, by Beam's own options."""

from __future__ import annotations

from collections.abc import Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, _BeamArgumentParser

from ledgerbeam.errors import LedgerbeamError, UsageError
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.pipelines.graph import expand_job, match_open_sources
from ledgerbeam.pipelines.spec import JobSpec

__all__ = ["check_options", "run_on_beam"]

_LOCAL_RUNNERS = ("FnApiRunner", "DirectRunner", "BundleBasedDirectRunner", "PrismRunner")
"""Runners whose options are all Beam's own; a job server may know more."""


def run_on_beam(spec: JobSpec, store: LedgerStore, beam_args: Sequence[str]) -> None:
    """Runs the job's pipeline, and again while it leaves open what another pass does, as index ranges do.

    Raises:
        LedgerbeamError: If the pipeline failed; what it had recorded stays recorded.
    """
    options = PipelineOptions(list(beam_args))
    while True:
        before = store.totals()
        try:
            pipeline = beam.Pipeline(options=options)
            expand_job(match_open_sources(pipeline, spec), spec)
            pipeline.run().wait_until_finish()
        except LedgerbeamError:
            raise
        except Exception as error:
            raise LedgerbeamError(f"the pipeline failed: {_last_line(error)}; --debug shows all of it") from error
        if store.status()["sources"]["open"] == 0 or store.totals() == before:
            return


def check_options(beam_args: Sequence[str]) -> None:
    """Refuses options that Beam does not know: it would only warn of them, and run without.

    Raises:
        UsageError: If there are such options, and no job server that may know them.
    """
    runner = PipelineOptions(list(beam_args)).get_all_options().get("runner")
    if runner is not None and str(runner).rpartition(".")[2] not in _LOCAL_RUNNERS:
        return
    parser = _BeamArgumentParser(allow_abbrev=False)
    for kind in PipelineOptions.__subclasses__():
        kind._add_argparse_args(parser)  # noqa: SLF001 - how Beam collects them itself
    _, unknown = parser.parse_known_args(list(beam_args))
    if unknown:
        raise UsageError(f"Beam does not know the options {' '.join(unknown)}")


def _last_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"
