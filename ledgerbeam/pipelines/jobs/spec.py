"""Jobs: `JobSpec`, the base of all kinds of jobs, used by the command line, the launcher and worker processes.

Each kind is a frozen dataclass in its own module. Its methods return its sources (`sources`), its steps
(`chain_steps`), the parameters of its outputs (`identity`), and the product made at the end (`product`). Runners call
these methods, and never check the kind of a job.
"""

from __future__ import annotations

import dataclasses
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self, TypeAlias, final

from ledgerbeam.errors import UsageError
from ledgerbeam.io.listing.left_out import LeftOut, OwnFiles
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.io.storage.urls import canonical_url, split_scheme
from ledgerbeam.ledger import Job, LedgerStore, OutputShard
from ledgerbeam.ledger.model.job import OnJobChange
from ledgerbeam.ledger.worker.limits import Limit, parse_limits
from ledgerbeam.ledger.worker.writer import MAX_ENTRIES
from ledgerbeam.pipelines.jobs.checks import AuditShare, RejectLimit, parse_audit
from ledgerbeam.pipelines.jobs.sources import JobSources, Listing, OutputPlace, Packer

if TYPE_CHECKING:  # Beam takes a second to import, and exchanges are for other jobs
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.runners.runner import PipelineRunner

    from ledgerbeam.io.exchange.slices import Partition
    from ledgerbeam.transforms.chain.base import ChainStep
    from ledgerbeam.transforms.mapping.audit import AuditedWork


Part: TypeAlias = Literal["whole", "chain", "rest"]  # all of a pipeline, up to `CommitTasks`, or after it
DEFAULT_LEDGERS = ".ledgerbeam"  # folder, below the working folder, of the ledgers of jobs without a given ledger
NO_SHARDS = r"(?!)"  # a regular expression that matches no name


def work_folder_of(ledger: str) -> str:
    """Return the work folder of a job by its ledger, see `JobSpec.work_folder`."""
    return f"{ledger}/work"


class Product(ABC):
    """A product of all shards of a complete job, such as a merged dataset. By default it is in the output folder."""

    name: ClassVar[str]  # name of the list of its files in the summary of a run
    replaces_shards: ClassVar[bool]  # whether the shards are not needed after the product is made

    def place(self, job: JobSpec) -> str:
        """Return the location of the product, for messages."""
        return str(job.output)

    def files(self) -> list[str]:
        """Return the URLs of the files of the product that are outside of the output folder."""
        return []

    def check(self, page: Page, job: JobSpec) -> None:  # noqa: B027 - most products permit all sources
        """Raise an error if sources on a page, the first of the listing, do not permit the product."""

    @abstractmethod
    def is_made(self, job: JobSpec, store: LedgerStore) -> bool:
        """Return whether the product was made of the current shards of a complete job."""

    @abstractmethod
    def make(
        self, job: JobSpec, store: LedgerStore, *, rewrite: Callable[[int], bool], say: Callable[[str], None]
    ) -> list[Any]:
        """Make the product, unless it is up to date.

        Args:
            store: Ledger of the job, with all sources complete.
            rewrite: Function that writes a number of missing shards again, and returns whether the job is complete.

        Returns:
            Descriptions of the product, as values for JSON; empty if the job is no longer complete.
        """

    @abstractmethod
    def not_made(self, job: JobSpec) -> str:
        """Return a warning that the product was not made because tasks have failed."""


@dataclass(frozen=True, kw_only=True)
class JobSpec(ABC):
    """One job. It can be converted to JSON and back, see `runners.job_files`, to send it to other processes."""

    command: ClassVar[str]  # the command that runs such jobs
    reads_sources: ClassVar[bool] = True  # whether the job itself reads the sources that the user names
    # Whether each run removes the outputs of missing sources; otherwise only on request.
    removes_gone: ClassVar[bool] = False
    is_pipeline: ClassVar[bool] = False  # whether the steps are transforms of a user's pipeline, which need Beam
    last_stage: ClassVar[str] = ""  # name of its last stage; empty for a job of one stage
    # Reason and remedy for sources that are open without a failure, for the message.
    why_open: ClassVar[str] = "another run may have taken over the ledger; run the same command again"

    # URL of the folder of its shards; None if its outputs are elsewhere and named by their URLs.
    output: str | None = None
    storage_options: dict[str, Any] = field(default_factory=dict)  # options that are passed to fsspec unchanged
    ledger: str = ""  # ledger URL; empty until `resolve_ledger`
    workers: int = 1  # number of local worker processes
    # IDs of CUDA devices. Each local worker sees one of them. Empty leaves the environment unchanged.
    devices: tuple[str, ...] = ()
    flush_interval: float = 1.0  # longest time between the end of a task and its commit, in seconds
    flush_entries: int = MAX_ENTRIES  # maximum number of finished tasks in a commit
    log_level: str = "warning"  # lowest log level of workers that is shown
    # Maximum number of tasks of a run; None for no limit. Only on the local runner.
    task_limit: int | None = None
    audit: str = ""  # share of the finished tasks to audit, see `parse_audit`; not part of the job's identity
    # URL of the file for the profiles of the workers; None for no profiles. Only on the local runner.
    profile: str | None = None
    # URL of the folder that keeps answers of calls for other jobs; None to delete them with their source.
    answers: str | None = None
    # Limits of the calls of `ledgerbeam.remember`, see `parse_limits`. Only on the local runner.
    rate: tuple[str, ...] = ()
    budget: tuple[str, ...] = ()
    run: str = ""  # ID of the run, once it has started
    run_dir: str | None = None  # folder of the running local job; None on other runners
    import_path: tuple[str, ...] = ()  # module folders of the program that called the job; empty for a command

    @classmethod
    def read_fields(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the stored fields of a job with their present names."""
        return fields

    @property
    def user_command(self) -> str:
        """The user's command that needs the job; `command` unless the job is one of several stages."""
        return self.command

    def stage(self, name: str) -> Stage:
        """Return the job as a stage."""
        return Stage(name, self)

    @final
    def plan(self) -> list[Stage]:
        """Return the stages in the order in which they run, with the job itself last. The job must have a ledger.

        Stages that depend on decisions or on results of earlier stages are missing until these are known.
        """
        return _ordered(self.stage(self.last_stage))

    @abstractmethod
    def sources(self) -> JobSources:
        """Return the sources of the job."""

    @abstractmethod
    def identity(self) -> Job:
        """Return the parameters of the outputs. A ledger holds the progress of one identity."""

    @final
    def decided(self, stored: Job | None, on_change: OnJobChange, say: Callable[[str], None]) -> Self:
        """Return the job with all values that are set before it starts and become part of its identity.

        Values that the ledger of the job has stored take precedence.
        """
        if stored is None:
            return self.with_decisions(say)
        is_another = any(not line.startswith(self.decisions) for line in self.identity().differences(stored))
        if is_another and on_change == "restart":
            return self.with_decisions(say)
        if is_another and on_change == "accept":
            now = self._common(self.identity())
            for name, was in self._common(stored).items():
                if was != now[name]:
                    raise UsageError(
                        f"ledger {self.ledger}: its outputs have {name} {was}, and this job writes {name} {now[name]}; "
                        "give another --ledger and --output, or --on-job-change restart"
                    )
        job = self.with_recorded(stored)
        return job if is_another and on_change == "refuse" else job.with_decisions(say)  # the ledger refuses it

    common: ClassVar[tuple[str, ...]] = ()  # parameters that are equal for all outputs of a folder

    def _common(self, job: Job) -> dict[str, Any]:
        return {"the form": _form_of(job), **{name: job.parameters.get(name) for name in self.common}}

    decisions: ClassVar[tuple[str, ...]] = ()  # prefixes of the parameters that are set before the job starts

    def with_recorded(self, stored: Job) -> Self:  # noqa: ARG002
        """Return the job with a value from its ledger for each unset parameter of `decisions`."""
        return self

    def with_decisions(self, say: Callable[[str], None]) -> Self:  # noqa: ARG002
        """Return the job with a value for each unset parameter of `decisions`; `say` prints messages for users."""
        return self

    def schemas_json(self) -> dict[str, Any] | None:
        """Return the schemas of the outputs as JSON; None for outputs without schemas, or before schemas are set."""
        return None

    @abstractmethod
    def chain_steps(self) -> list[ChainStep]:
        """Return the steps from open sources to the input of `CommitTasks`. The first one plans the tasks."""

    def pipeline(
        self,
        part: Part,  # noqa: ARG002 - nothing follows the chain
        runner: PipelineRunner | None,
        options: PipelineOptions,
    ) -> beam.Pipeline:
        """Return the job as a Beam pipeline. Its transforms do not have the values of the run yet, such as its ID.

        Without a runner, the pipeline has the runner that the options name.
        """
        import apache_beam as beam  # noqa: PLC0415 - takes a second

        from ledgerbeam.transforms.chain.commit import CommitStep  # noqa: PLC0415 - workers need it
        from ledgerbeam.transforms.chain.plan import MatchStep, SkipStep  # noqa: PLC0415
        from ledgerbeam.transforms.on_beam import apply_steps  # noqa: PLC0415 - brings Beam

        pipeline = beam.Pipeline(runner, options)
        apply_steps(pipeline, [MatchStep(), SkipStep(), *self.chain_steps(), CommitStep()])
        return pipeline

    @property
    def run_partition(self) -> Partition | None:
        """The partition of a pipeline's `Scatter` into buckets; None without a `Scatter`."""
        return None

    def require_sources(self, store: LedgerStore) -> None:  # noqa: B027 - most need nothing
        """Raise an error for unusable sources before the full listing. The ledger is open by then."""

    def labels(self) -> tuple[str, ...]:
        """Return the names of the user's steps, for messages."""
        return ()

    @property
    def has_downstream(self) -> bool:
        """Whether transforms follow `CommitTasks`, which run once after all tasks of a run are recorded."""
        return False

    @property
    def shard_form(self) -> str:
        """A regular expression for the end of the names of the job's shards."""
        return NO_SHARDS

    def product(self) -> Product | None:
        """Return the product that is made of the outputs once the job is complete."""
        return None

    @property
    def writes_columns(self) -> bool:
        """Whether the outputs are columns beside records, with a catalog."""
        return getattr(self.product(), "form", None) == "columns"

    def column_names(self) -> list[str]:
        """Return the names of the columns of its main dataset; empty without columns, or while they are unknown."""
        return []

    def files_of(self, shards: Sequence[OutputShard]) -> Sequence[OutputShard]:
        """Return shards with files as sources, without the lists that the job also read."""
        return shards

    def doubts(self, store: LedgerStore) -> Iterator[str]:  # noqa: ARG002
        """Yield warnings of possible mistakes of the user, found in the complete ledger."""
        yield from ()

    @property
    def reject_limit(self) -> RejectLimit | None:
        """Limit of rejected records; None if a faulty record fails its task."""
        return None

    @property
    def audit_share(self) -> AuditShare | None:
        """Share of the finished tasks to audit; None for no audit."""
        return parse_audit(self.audit) if self.can_be_audited else None

    @property
    def calls_are_async(self) -> bool:
        """Whether the job calls async functions, whose answers may be kept until their source is complete."""
        return False

    @property
    def limits(self) -> tuple[Limit, ...]:
        """Limits of the calls that functions make with `ledgerbeam.remember`."""
        return parse_limits(self.rate, self.budget)

    @property
    def can_be_audited(self) -> bool:
        """Whether the job calls a user's function with records."""
        return False

    def audited(self) -> AuditedWork:
        """Return the function, the encoder and the sources that an audit needs."""
        raise UsageError(f"{self.command}: it calls no function of yours with records; there is nothing to audit")

    def _audited_work(self, function: Any, encoder: Any) -> AuditedWork:
        from ledgerbeam.ledger.answer_files import AnswersPlace  # noqa: PLC0415 - few processes audit
        from ledgerbeam.sources.kind import TaskLimits  # noqa: PLC0415
        from ledgerbeam.transforms.mapping.audit import AuditedWork  # noqa: PLC0415

        sources = self.sources()
        opened, limits = sources.opened(self.storage_options), TaskLimits(*sources.limits())
        answers = AnswersPlace.of(self.ledger, self.answers, self.storage_options) if self.calls_are_async else None
        return AuditedWork(function, encoder, opened, limits, str(self.output), self.storage_options, answers)

    def changed_code(self) -> list[str]:
        """Return the names of the parts of user code that have changed since this job was made."""
        return []

    @property
    def keeps_shards(self) -> bool:
        """Whether the shards are kept after the job is complete."""
        product = self.product()
        return product is None or not product.replaces_shards

    def check(self, page: Page) -> None:
        """Raise an error for a page of the listing with a source that the job cannot process."""
        files = self.sources().as_files
        if files is not None:
            files.check(page)

    def packer(self) -> Packer | None:
        """Return the packer that makes sources of several listed files each; None if each listed file is a source."""
        files = self.sources().as_files
        return None if files is None else files.packer(self.storage_options)

    def listing(self) -> Listing:
        """Return the listing of the sources inside of a pipeline, without the job's own outputs."""
        return self.sources().listing(self._own_files(), self.storage_options)

    def pages(self, left_out: LeftOut | None = None) -> Iterator[Page]:
        """List the sources, and count ignored files."""
        return self.listing().pages(left_out)

    def _own_files(self) -> OwnFiles:
        return OwnFiles(self.output, self.shard_form, self.ledger or None, self.answers)

    def places(self) -> dict[str, list[str]]:
        """Return the URLs that workers must reach, by their names in messages."""
        return {
            "--ledger": [self.ledger],
            **self.sources().places(),
            "--output": [] if self.output is None else [self.output],
            "--answers": [] if self.answers is None else [self.answers],
        }

    def schemes(self) -> list[str]:
        """Return the schemes of the URLs that workers must reach."""
        return sorted({split_scheme(url)[0] for urls in self.places().values() for url in urls})

    def output_places(self) -> list[OutputPlace]:
        """Return the places of the outputs."""
        return [(str(self.output), "", True)]

    def folders(self) -> set[str]:
        """Return the folders to which the job writes."""
        files = self.sources().as_files
        indexes = set() if files is None else files.index_folders()
        return indexes | ({canonical_url(self.output)} if self.output is not None else set())

    def resolve_ledger(self, url: str | None) -> Self:
        """Return the job with its ledger: `url`, or a folder below the working folder.

        The name of the folder depends on command, sources and output. If only other values of a job change, the new job
        opens the same ledger, and is refused there.
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
        """The folder beside the ledger for the job's own files, such as parts of indexes and notes of products."""
        return work_folder_of(self.ledger)


def _form_of(job: Job) -> str:
    has_columns = job.pipeline == "annotate" or any(map(job.parameters.get, ("mark", "schema of columns")))
    return "columns" if has_columns else "records"


class StageSources:
    """Sources of a stage whose earlier stages are complete."""

    def __init__(self, job: JobSpec, pages: Iterator[Page]) -> None:
        self.job = job  # as it runs, with the outputs of earlier stages
        self.is_settled = True  # whether the stage needs no preparation before it runs
        self._pages = pages

    def settle(self, say: Callable[[str], None]) -> None:
        """Prepare the outputs of earlier stages for the workers."""

    def pages(self) -> Iterator[Page]:
        """Return the listing."""
        return self._pages

    def check(self, store: LedgerStore, *, is_complete: bool, has_run: bool) -> None:
        """Raise ChangedSourceError if a run of this stage has read other sources than the stages before it."""

    def remove_inputs(self, writers: Collection[str]) -> None:
        """Remove outputs of earlier stages that are no longer needed.

        `writers` has the IDs of the ledgers of all stages that share no output folder with another job.
        """

    def lost_text(self, number: int) -> str:  # noqa: ARG002
        """Return a warning about `number` lost outputs of earlier stages; empty for no warning."""
        return ""


class FinishedStage(NamedTuple):
    """A complete stage."""

    job: JobSpec
    store: LedgerStore
    sources: StageSources


@dataclass(frozen=True)
class Stage:
    """One of the jobs of a plan. This base reads sources, and no outputs of other stages."""

    name: str  # name in messages and in results
    job: JobSpec
    target: str = ""  # output folder of the exchange that reads its outputs; empty for a job of one stage

    def with_job(self, job: JobSpec) -> Self:
        """Return a copy of the stage with another job."""
        return dataclasses.replace(self, job=job)

    def inputs(self) -> list[Stage]:
        """Return the stages whose outputs this stage reads, in the order in which they run."""
        return []

    def require_others(self) -> None:
        """Raise an error for unusable outputs of other jobs that the stage reads, before any of its inputs runs."""

    def longer(self, inputs: Sequence[FinishedStage]) -> Self | None:  # noqa: ARG002
        """Return the stage with more inputs, if the results of its inputs require that; else None."""
        return None

    def unused(self) -> Iterator[str]:
        """Yield the ledgers of input stages that this stage does not need. An earlier run may have created some."""
        yield from ()

    def sources(
        self,
        store: LedgerStore,  # noqa: ARG002
        done: Mapping[str, FinishedStage],  # noqa: ARG002
        list_pages: Callable[[JobSpec], Iterator[Page]],
    ) -> StageSources:
        """Return the sources of the stage; `done` has all complete stages by the URLs of their ledgers."""
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
