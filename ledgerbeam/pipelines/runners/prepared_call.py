"""Checked calls of jobs that have not started."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from ledgerbeam.io.listing.left_out import LeftOut
from ledgerbeam.io.storage.urls import is_local
from ledgerbeam.ledger.opening import open_store
from ledgerbeam.pipelines.calls.result import Result
from ledgerbeam.pipelines.console.run_console import RunConsole
from ledgerbeam.pipelines.jobs.listing import listed_pages
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.pipelines.runners.run import is_local_runner
from ledgerbeam.pipelines.runners.run_options import RunOptions, checked_options
from ledgerbeam.pipelines.runners.stage_loop import StageLoop
from ledgerbeam.pipelines.runners.waves import Waves, require_descriptors


@dataclass(frozen=True)
class PreparedCall:
    """A checked call that has not started.

    Attributes:
        job: Its job, with the ledger that the user asks about.
        how: Options of the run.
    """

    job: JobSpec
    how: RunOptions

    @property
    def command(self) -> str:
        """The user's command."""
        return self.job.user_command

    @property
    def has_stages(self) -> bool:
        """Whether the job has several stages."""
        return len(self.job.plan()) > 1

    def stages(self) -> list[JobSpec]:
        """Return the jobs of all stages that are known before the run, the last stage first."""
        return [stage.job for stage in reversed(self.job.plan())]

    def readers(self) -> list[JobSpec]:
        """Return the jobs of the first stages, which read the sources."""
        return [stage.job for stage in self.job.plan() if not stage.inputs()]

    def checked_options(self) -> list[str]:
        """Return the Beam options.

        Raises:
            UsageError: Options of the run cannot be combined, or do not fit the job.
        """
        checked = [self.job] if self.job.reads_sources else self.readers()
        *_, found = (checked_options(job, self.how) for job in checked)
        return found

    def run(self, console: RunConsole, beam_args: Sequence[str], waves: Waves) -> Result:
        """Run the stages that are not complete."""
        return StageLoop(self.job, self.how, console, beam_args, waves).run()

    def previewed(self, console: RunConsole) -> Result:
        """Return a preview of a run."""
        from ledgerbeam.pipelines.preview.dry_run import as_json, preview_plan  # noqa: PLC0415 - brings NumPy

        left_out, job, how = LeftOut(), self.job, self.how
        preview = preview_plan(
            job.plan(),
            lambda one: listed_pages(one, console.say, left_out),
            how.on_job_change,
            how.existing,
            force=how.force,
            say=console.say,
        )
        left = sum(number for state, number in preview.sources.items() if state not in ("complete", "gone"))
        summary = {**as_json(preview), "ledger": job.ledger, "passed_over": left_out.passed_over}
        return Result(self.command, complete=not left, ledger=job.ledger, output=job.output, summary=summary)

    def result(self, console: RunConsole, waves: Waves | None = None) -> Result:
        """Run or preview the job.

        Args:
            console: Shows the progress of the run.
            waves: Starts the waves, if several calls share them.

        Raises:
            JobInterrupt: Ctrl-C ended the run; its state is saved.
            LedgerbeamError: The error that ended the run early. Everything recorded stays recorded.
            UsageError: The options cannot be combined.
        """
        beam_args = self.checked_options()
        if self.how.dry_run:
            return self.previewed(console)
        if self.how.only_failed is not None or self.how.only_rejected is not None:  # they need a ledger
            open_store(self.job.ledger, self.job.storage_options, read_only=True).close()
        if waves is not None:
            _prepare_waves(waves, self.job, beam_args)
            return self.run(console, beam_args, waves)
        with Waves(self.job.log_level, self.job.schemes()) as own:
            _prepare_waves(own, self.job, beam_args)
            return self.run(console, beam_args, own)


def _prepare_waves(waves: Waves, job: JobSpec, beam_args: Sequence[str]) -> None:
    """Start the import of Beam for the waves of a call, unless its ledger may soon show that no work is left.

    Args:
        waves: Waves of the call, or of several calls.
        job: The job, its ledger resolved.
        beam_args: Beam options of the user.

    Raises:
        StorageError: Processes of waves may not open enough files.
    """
    if not is_local_runner(beam_args):
        return
    require_descriptors(job.workers)
    if not (is_local(job.ledger) and os.path.exists(job.ledger)):
        waves.prepare(job.parts_of_beam())
