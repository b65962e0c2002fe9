"""What a job is: `JobSpec`, the base of every kind of job, from the command line to the processes that work on it.

Each kind is a frozen dataclass in a module of its own. It answers what it reads (`sources`), what it does with a task
and how it writes what comes of it (`work` and `encoder`, joined in `stages`), what shapes its outputs (`identity`), and
what is made of them at the end (`product`). The runners ask the job, never which kind it is.
"""

from __future__ import annotations

import dataclasses
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, Self, TypeAlias, final

from ledgerbeam._base.beam_import import LEAN, WHOLE, BeamParts
from ledgerbeam.errors import UsageError
from ledgerbeam.io.listing.left_out import LeftOut, OwnFiles
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.io.storage.urls import canonical_url, split_scheme
from ledgerbeam.ledger import Job, LedgerStore
from ledgerbeam.ledger.model.job import OnJobChange
from ledgerbeam.ledger.worker.writer import MAX_ENTRIES
from ledgerbeam.pipelines.jobs.audit_share import AuditShare, parse_audit
from ledgerbeam.pipelines.jobs.reject_limit import RejectLimit
from ledgerbeam.pipelines.jobs.sources import JobSources, OutputPlace, Packer
from ledgerbeam.sources.source_listing import SourceListing
from ledgerbeam.user_code.modules import name_in_sources

if TYPE_CHECKING:  # Beam takes a second to import, and exchanges are for other jobs
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.runners.runner import PipelineRunner

    from ledgerbeam.io.exchange.partition import Partition
    from ledgerbeam.iterators.job_source import GraphSource
    from ledgerbeam.sources.buckets import BucketListing
    from ledgerbeam.sources.listed import WithEarlierFiles
    from ledgerbeam.sources.recorded import RecordedListing
    from ledgerbeam.transforms.mapping.audit import AuditedWork


Part: TypeAlias = Literal["whole", "chain", "rest"]
"""Of a job's pipeline: all of it, what ends with `CommitTasks`, or what goes on behind that."""

DEFAULT_LEDGERS = ".ledgerbeam"
"""Folder, below the working folder, of the ledgers of jobs that name none."""

NO_SHARDS = r"(?!)"
"""The regular expression that matches no name."""


def work_folder_of(ledger: str) -> str:
    """Return the work folder of the job of a ledger, see `JobSpec.work_folder`."""
    return f"{ledger}/work"


class Product(Protocol):
    """What is made of all shards of a complete job.

    Attributes:
        name: Of the list of what was made, in the summary of a run.
    """

    name: ClassVar[str]

    @property
    def replaces_shards(self) -> bool:
        """Whether the shards are only parts of it, which need not stay once it is made."""

    def place(self, job: JobSpec) -> str:
        """Return where it lies, for people."""

    def files(self) -> list[str]:
        """Return the URLs of the files that it is, where they lie outside of the output folder."""

    def check(self, page: Page, job: JobSpec) -> None:
        """Refuse sources of whose shards it could not be made, as far as the first page of the listing shows it."""

    def is_made(self, job: JobSpec, store: LedgerStore) -> bool:
        """Return whether it was made of the very shards that a complete job has."""

    def make(
        self, job: JobSpec, store: LedgerStore, *, rewrite: Callable[[int], bool], say: Callable[[str], None]
    ) -> list[Any]:
        """Make it, unless that is done.

        Args:
            job: The job.
            store: Its ledger, of which every source is complete.
            rewrite: Runs the job again after so many of its shards were found to be gone; returns whether it is
                complete again.
            say: Prints a line of the result.

        Returns:
            What was made, as values for JSON; nothing if the job is not complete any more.
        """

    def not_made(self, job: JobSpec) -> str:
        """Return a warning that it was not made since tasks have failed."""


@dataclass(frozen=True, kw_only=True)
class JobSpec(ABC):
    """One job. It survives JSON, see `transport`, on its way to the processes that work on it.

    Attributes:
        command: The command that runs such jobs.
        reads_sources: Whether the job itself reads the sources that the user names.
        removes_gone: Whether each run removes the outputs of missing sources; else only a run that is asked to.
        last_stage: Name of its last stage; empty for a job of one stage.
        why_open: Why sources may be left open though nothing failed, and what to do, for the message.
        output: URL of the folder of its shards; None if its outputs lie elsewhere, and are named by their URLs.
        storage_options: Passed to fsspec unchanged.
        ledger: Ledger URL; empty until `resolve_ledger`.
        workers: Local worker processes.
        devices: Ids of the CUDA devices of which each local worker process sees one; empty leaves that as it is.
        flush_interval: Longest time that a completion waits for its commit, in seconds.
        flush_entries: Most completions of one commit.
        log_level: The lowest level of what workers log that is shown.
        task_limit: Most tasks of a run, or of the rest of it; None for all that are open. On the local runner only.
        audit: Share of the finished tasks that are audited, as `parse_audit` reads it. No part of the job's identity.
        profile: URL of the file that is written of the profiles of the workers; None profiles nothing. On the local
            runner only.
        run: Id of the run, once it has begun.
        run_dir: Folder of the running local job; None on other runners.
        import_path: Folders in which the program that called for the job finds modules; none for a command.
    """

    command: ClassVar[str]
    reads_sources: ClassVar[bool] = True
    removes_gone: ClassVar[bool] = False
    last_stage: ClassVar[str] = ""
    why_open: ClassVar[str] = "another run may have taken the ledger over; run the same command again"

    output: str | None = None
    storage_options: dict[str, Any] = field(default_factory=dict)
    ledger: str = ""
    workers: int = 1
    devices: tuple[str, ...] = ()
    flush_interval: float = 1.0
    flush_entries: int = MAX_ENTRIES
    log_level: str = "warning"
    task_limit: int | None = None
    audit: str = ""
    profile: str | None = None
    run: str = ""
    run_dir: str | None = None
    import_path: tuple[str, ...] = ()

    @property
    def user_command(self) -> str:
        """The command of the user that needs the job; `command` unless that is one of several stages."""
        return self.command

    def stage(self, name: str) -> Stage:
        """Return the job as a stage.

        Args:
            name: Of the stage.
        """
        return Stage(name, self)

    @final
    def plan(self) -> list[Stage]:
        """Return the stages in the order in which they run, the job itself last; its ledger is resolved.

        Stages that depend on decisions or on results of earlier stages are missing until these are known.
        """
        return _ordered(self.stage(self.last_stage))

    @abstractmethod
    def sources(self) -> JobSources:
        """Return what the job reads."""

    @abstractmethod
    def identity(self) -> Job:
        """Return what shapes the job's output: the ledger holds the progress of exactly this."""

    @final
    def decided(self, stored: Job | None, on_change: OnJobChange, say: Callable[[str], None]) -> Self:
        """Return the job with all that is decided before it begins, and is then a part of what it is.

        Args:
            stored: The job that its ledger holds, whose decisions count; None if there is none.
            on_change: What is to be done with the ledger of another job.
            say: Called with lines for people.
        """
        if stored is None:
            return self.with_decisions(say)
        is_another = any(not line.startswith(self.decisions) for line in self.identity().differences(stored))
        if is_another and on_change == "restart":
            return self.with_decisions(say)
        job = self.with_recorded(stored)
        return job if is_another and on_change == "refuse" else job.with_decisions(say)  # the ledger refuses it

    decisions: ClassVar[tuple[str, ...]] = ()
    """What the names of the parameters begin with that are decided before the job begins."""

    def with_recorded(self, stored: Job) -> Self:  # noqa: ARG002
        """Return the job with what was decided for the one that its ledger holds."""
        return self

    def with_decisions(self, say: Callable[[str], None]) -> Self:  # noqa: ARG002
        """Return the job with what is still to be decided; lines for people are said."""
        return self

    def schemas_json(self) -> dict[str, Any] | None:
        """Return the schemas of the outputs as JSON; None if they have none, or it is not decided."""
        return None

    @abstractmethod
    def stages(self) -> list[beam.PTransform[Any, Any]]:
        """Return the transforms from open sources to what `CommitTasks` records; the first plans the tasks."""

    def pipeline(
        self,
        part: Part,  # noqa: ARG002 - nothing comes behind the chain
        runner: PipelineRunner | None,
        options: PipelineOptions,
    ) -> beam.Pipeline:
        """Return the job as a Beam pipeline, whose transforms have not been given their values.

        Args:
            part: Which part of it.
            runner: What runs it; None for the one that the options name.
            options: Of the pipeline.
        """
        import apache_beam as beam  # noqa: PLC0415 - takes a second

        from ledgerbeam.transforms import CommitTasks, MatchSources, SkipCompleted  # noqa: PLC0415

        pipeline = beam.Pipeline(runner, options)
        elements: Any = pipeline
        for stage in (MatchSources(), SkipCompleted(), *self.stages(), CommitTasks()):
            elements |= stage
        return pipeline

    @property
    def run_partition(self) -> Partition | None:
        """How the `Scatter` of a pipeline cuts the order of the records into buckets; None if it has none."""
        return None

    def require_sources(self, store: LedgerStore) -> None:  # noqa: B027 - most need nothing
        """Refuse sources that are not as they must be, before any is listed in full; the ledger is taken by then."""

    def labels(self) -> tuple[str, ...]:
        """Return how the user calls the steps of the job, for people."""
        return ()

    @property
    def has_downstream(self) -> bool:
        """Whether something comes behind `CommitTasks`, which is done once all of a run is recorded."""
        return False

    def parts_of_beam(self) -> BeamParts:
        """Return how much of Beam its local processes import: all of it if code of the user may call it."""
        parameters = self.identity().parameters
        modules: Any = parameters.get("module", {})
        return WHOLE if "code" in parameters or name_in_sources("apache_beam", modules) else LEAN

    @property
    def shard_form(self) -> str:
        """A regular expression of what the names of the job's shards end with."""
        return NO_SHARDS

    def product(self) -> Product | None:
        """Return what is made of the outputs once the job is complete."""
        return None

    def doubts(self, store: LedgerStore) -> Iterator[str]:  # noqa: ARG002
        """Yield what looks like a mistake in what was asked for, by what its complete ledger holds."""
        yield from ()

    @property
    def reject_limit(self) -> RejectLimit | None:
        """How many records may be rejected; None where one fails its task."""
        return None

    @property
    def audit_share(self) -> AuditShare | None:
        """Share of the finished tasks that are audited; None for none."""
        return parse_audit(self.audit) if self.can_be_audited else None

    @property
    def can_be_audited(self) -> bool:
        """Whether the job calls a function of the user with records."""
        return False

    def audited(self) -> AuditedWork:
        """Return what the audit of a task needs.

        Raises:
            UsageError: The job cannot be audited.
        """
        raise UsageError(f"{self.command}: only jobs that call a function of yours with records are audited")

    def changed_code(self) -> list[str]:
        """Return the names of the parts of user code that have changed since this job was made."""
        return []

    @property
    def keeps_shards(self) -> bool:
        """Whether the outputs are there to stay."""
        product = self.product()
        return product is None or not product.replaces_shards

    def check(self, page: Page) -> None:
        """Refuse a page of the listing with a source that the job cannot do."""
        files = self.sources().as_files
        if files is not None:
            files.check(page)

    def packer(self) -> Packer | None:
        """Return what makes sources of several listed files each; None if each listed source is one."""
        files = self.sources().as_files
        return None if files is None else files.packer()

    def listing(self) -> SourceListing | RecordedListing | GraphSource | BucketListing | WithEarlierFiles:
        """Return what lists the sources inside of a pipeline, without what the job writes itself."""
        return self.sources().listing(self._own_files(), self.storage_options)

    def pages(self, left_out: LeftOut | None = None) -> Iterator[Page]:
        """List the sources, and count what is left out of them."""
        return self.listing().pages(left_out)

    def _own_files(self) -> OwnFiles:
        return OwnFiles(self.output, self.shard_form, self.ledger or None)

    def places(self) -> dict[str, list[str]]:
        """Return the URLs that workers must reach, by how a message names them."""
        return {
            "--ledger": [self.ledger],
            **self.sources().places(),
            "--output": [] if self.output is None else [self.output],
        }

    def schemes(self) -> list[str]:
        """Return the schemes of the URLs that workers must reach."""
        return sorted({split_scheme(url)[0] for urls in self.places().values() for url in urls})

    @abstractmethod
    def output_places(self) -> list[OutputPlace]:
        """Return where the outputs lie."""

    def folders(self) -> set[str]:
        """Return the folders below which the job writes."""
        files = self.sources().as_files
        indexes = set() if files is None else files.index_folders()
        return indexes | ({canonical_url(self.output)} if self.output is not None else set())

    def resolve_ledger(self, url: str | None) -> Self:
        """Return the job with its ledger: `url`, or a folder below the working folder.

        The folder is named by command, sources and output. So a job that does with them something else than before
        meets the ledger of what it did before, and is refused there.
        """
        if url is None:
            named = "\0".join([*self.sources().names, self._named_output()])
            name = blake2b(os.fsencode(named), digest_size=6, person=b"lb.default").hexdigest()
            url = os.path.join(DEFAULT_LEDGERS, f"{self.command}-{name}")
        return dataclasses.replace(self, ledger=canonical_url(url).rstrip("/"))

    def _named_output(self) -> str:
        return self.output or ""

    @property
    def work_folder(self) -> str:
        """The folder beside the ledger for what a job notes for itself: parts of indexes, what was merged."""
        return work_folder_of(self.ledger)


class StageSources:
    """Sources of a stage whose earlier stages are complete.

    Args:
        job: The job of the stage.
        pages: Its listing.

    Attributes:
        job: The job as it runs: it knows the outputs of earlier stages.
    """

    def __init__(self, job: JobSpec, pages: Iterator[Page]) -> None:
        self.job = job
        self._pages = pages

    @property
    def is_settled(self) -> bool:
        """Whether nothing is to be prepared before the stage runs."""
        return True

    def settle(self, say: Callable[[str], None]) -> None:
        """Prepare the outputs of earlier stages for the workers.

        Args:
            say: Prints a line of the result.
        """

    def pages(self) -> Iterator[Page]:
        """Return the listing."""
        return self._pages

    def check(self, store: LedgerStore, *, is_complete: bool, has_run: bool) -> None:
        """Check after a run that it has read what the earlier stages have read.

        Args:
            store: The ledger of the stage.
            is_complete: Whether all sources are complete.
            has_run: Whether the run has done tasks.

        Raises:
            ChangedSourceError: It has read something else.
        """

    def remove_inputs(self, writers: Collection[str]) -> None:
        """Remove the outputs of earlier stages that are not needed any more.

        Args:
            writers: Ids of the ledgers of all stages that no other job shares an output folder with.
        """

    def lost_text(self, number: int) -> str:  # noqa: ARG002
        """Return a warning that so many outputs of earlier stages are lost; empty for none."""
        return ""


class FinishedStage(NamedTuple):
    """A complete stage.

    Attributes:
        job: The job.
        store: Its ledger.
        sources: What it has read.
    """

    job: JobSpec
    store: LedgerStore
    sources: StageSources


@dataclass(frozen=True)
class Stage:
    """One of the jobs that a plan consists of. This one reads sources, and no outputs of other stages.

    Attributes:
        name: Name in messages and in results.
        job: The job.
        target: Output folder of the exchange that reads its outputs; empty for a job of one stage.
    """

    name: str
    job: JobSpec
    target: str = ""

    def with_job(self, job: JobSpec) -> Self:
        """Return the stage with another version of its job."""
        return dataclasses.replace(self, job=job)

    def inputs(self) -> list[Stage]:
        """Return the stages whose outputs it reads, in the order in which they run."""
        return []

    def require_others(self) -> None:
        """Refuse unusable outputs of other jobs that it reads, before any of its inputs runs."""

    def longer(self, inputs: Sequence[FinishedStage]) -> Self | None:  # noqa: ARG002
        """Return the stage with more inputs, if the results of its inputs require that; else None.

        Args:
            inputs: Its inputs, complete.
        """
        return None

    def unused(self) -> Iterator[str]:
        """Yield the ledgers of inputs that the stage does not need, and that an earlier run may have left."""
        yield from ()

    def sources(
        self,
        store: LedgerStore,  # noqa: ARG002
        done: Mapping[str, FinishedStage],  # noqa: ARG002
        list_pages: Callable[[JobSpec], Iterator[Page]],
    ) -> StageSources:
        """Return what it reads.

        Args:
            store: Its ledger.
            done: All complete stages, by the URLs of their ledgers; its inputs among them.
            list_pages: Lists the sources of a job.
        """
        return StageSources(self.job, list_pages(self.job))


def _ordered(last: Stage) -> list[Stage]:
    """Return a stage after all stages that it depends on, each once."""
    found: dict[str, Stage] = {}
    path = [last]
    while path:
        waiting = next((one for one in path[-1].inputs() if one.job.ledger not in found), None)
        if waiting is None:
            stage = path.pop()
            found[stage.job.ledger] = stage
        else:
            path.append(waiting)
    return [*found.values()]
