"""Jobs that write a shard for each task."""

from __future__ import annotations

import dataclasses
import re
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Self

from ledgerbeam._base.names import ASIDE
from ledgerbeam.errors import NotIndexableError, RecordError, UsageError
from ledgerbeam.io import Format, SeekableZstd, ShardEncoder
from ledgerbeam.io.formats.compressed import FRAME, LIBRARY, ZSTD_ENDING, check_frames, parse_level
from ledgerbeam.io.formats.registry import format_named, formats, recognize
from ledgerbeam.ledger import Job, Source, Task
from ledgerbeam.ledger.answers import answers_of_sample
from ledgerbeam.ledger.model.job import Json
from ledgerbeam.pipelines.console.run_progress import count
from ledgerbeam.pipelines.jobs.sources import listed_files
from ledgerbeam.pipelines.jobs.spec import NO_SHARDS, JobSpec
from ledgerbeam.pipelines.outputs.columns import ColumnLayout, recorded_schema, schema_text
from ledgerbeam.sources import FileSources
from ledgerbeam.user_code.objects import close_objects

if TYPE_CHECKING:
    import pyarrow as pa

    from ledgerbeam.io.columns.schema import JobSchema
    from ledgerbeam.transforms import MapRecords
    from ledgerbeam.transforms.chain.base import ChainStep
    from ledgerbeam.transforms.mapping.audit import AuditedWork


# Maximum number of records, sources and bytes that schemas are inferred from, spread over each source.
SAMPLE_RECORDS, SAMPLE_SOURCES, SAMPLE_BYTES = 1_000, 32, 64 * 2**20
ASKED_RECORDS = 16  # sampled for an async function, which is called with one after the other
LISTED_PAGES = 4  # these sources are of the first pages of the listing
_AT_ONCE = 16


@dataclass(frozen=True, kw_only=True)
class ShardJob(JobSpec):
    """A job that reads records, applies a function to each task, and writes each task as one shard."""

    output: str  # URL of the folder of the shards
    to: str  # name of their format
    layout: ColumnLayout | None = None  # layout of columnar files; None for other formats
    compression: OutputCompression | None = None  # compression of the files; None for none

    keeps_columns: ClassVar[bool] = False  # whether rows of columnar sources are written unchanged

    @abstractmethod
    def work(self) -> Callable[[Task], Any]:
        """Return the function that processes the records of each task."""

    def encoder(self) -> str | ShardEncoder:
        """Return the encoder of shards, or the name of a format. By default it is the output format."""
        return self.output_format

    @abstractmethod
    def parameters(self) -> dict[str, Json]:
        """Return the parameters of the outputs besides sources, folder and format."""

    @property
    def shard_form(self) -> str:
        return shard_form(self.to)

    def identity(self) -> Job:
        columns = {} if self.layout is None else self.layout.parameters(self.to)
        compressed = {} if self.compression is None else self.compression.parameters()
        shaping = {**self.sources().parameters(), "output": self.output, "to": self.to, **columns, **compressed}
        return Job(self.command, {**shaping, **self.parameters()})

    def schemas_json(self) -> dict[str, Any] | None:
        schemas = None if self.layout is None else self.layout.schemas()
        return None if schemas is None else schemas.as_json()

    def column_names(self) -> list[str]:
        schemas = None if self.layout is None else self.layout.schemas()
        return [] if schemas is None or "" not in schemas.by_route else schemas.by_route[""].names

    def audited(self) -> AuditedWork:
        if not self.can_be_audited:
            return super().audited()
        work, encoder = self.work(), self._shard_encoder()
        return self._audited_work(work, format_named(encoder) if isinstance(encoder, str) else encoder)

    def _shard_encoder(self) -> str | ShardEncoder:
        return self.encoder() if self.compression is None else self.compression.encoder(self.encoder())

    @property
    def output_format(self) -> str | Format:
        """The format of the shards: its name, or for columnar formats an object with their schemas."""
        return self.to if self.layout is None else self.layout.format(self.to)

    def trial_work(self) -> MapRecords:
        """Return the function that maps sampled records. UsageError if the command has none."""
        raise UsageError(f"{self.command}: this command cannot process a sample of the records; leave --sample out")

    decisions: ClassVar[tuple[str, ...]] = ("schema",)

    def with_recorded(self, stored: Job) -> Self:
        if self.layout is None or self.layout.schema is not None:
            return self
        recorded = recorded_schema(stored)
        return self if recorded is None else dataclasses.replace(self, layout=self.layout.decided(recorded))

    def with_decisions(self, say: Callable[[str], None]) -> Self:
        """Return the job with schemas: given schemas, else the common schema of the sources, else inferred ones.

        Raises:
            RecordError: Records have no schema in common, or a sampled record cannot be read.
            UsageError: The sources have different schemas, or the sampled records have no results.
        """
        if self.layout is None or self.layout.schema is not None:
            return self
        schemas = self._schema_of_sources(say) or self._inferred_schema(say)
        return dataclasses.replace(self, layout=self.layout.decided(schemas))

    def _schema_of_sources(self, say: Callable[[str], None]) -> JobSchema | None:
        """Return the schema of all sources, if they are columnar and their records are written unchanged; else None."""
        from ledgerbeam.io.columns.schema import JobSchema, common_schema  # noqa: PLC0415

        opened = self.sources().opened(self.storage_options)
        opened = getattr(opened, "inner", opened)  # of `SelectedSources`
        if not self.keeps_columns or not isinstance(opened, FileSources):
            return None
        files = opened

        def schema_of(source: Source) -> tuple[str, pa.Schema] | None:
            kind = files.type_of(source.url).columns()
            if kind is None:
                return None
            with closing(files.open_columns(source, kind)) as reader:
                return source.url, reader.schema

        found: list[tuple[str, pa.Schema]] = []
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            sources = listed_files(self.pages())
            while some := list(islice(sources, 64 * _AT_ONCE)):
                for one in pool.map(schema_of, some):
                    if one is None:
                        return None
                    found = [found[0] if found else one, one]
                    common_schema(found)
        if not found:
            return None
        say(f"schema: as in the sources, {schema_text(found[0][1])}")
        return JobSchema({"": found[0][1]}, is_exact=True)

    def answers_of_sample(self) -> AbstractContextManager[None]:
        """Keep answers that functions ask for in the body, where records are sampled. A run of the job uses them."""
        if not self.calls_are_async:
            return nullcontext()
        return answers_of_sample(self.ledger, self.answers, self.storage_options, self.limits)

    def _inferred_schema(self, say: Callable[[str], None]) -> JobSchema:
        from ledgerbeam.io.columns.schema import JobSchema  # noqa: PLC0415
        from ledgerbeam.pipelines.preview.sample import sampled_records, try_function  # noqa: PLC0415 - uses jobs

        opened, pages = self.sources().opened(self.storage_options), islice(self.pages(), LISTED_PAGES)
        most = ASKED_RECORDS if self.calls_are_async else SAMPLE_RECORDS
        sampled = list(sampled_records(opened, pages, most, sources=SAMPLE_SOURCES, most_bytes=SAMPLE_BYTES))
        datasets: dict[str, list[Any]] = defaultdict(list)
        errors: list[str] = []
        try:
            for run in try_function(self.trial_work(), sampled, lambda _: None, self.answers_of_sample()):
                for route, records in run.results.items():
                    datasets[route] += records
                if run.outcome in ("failed", "unreadable"):
                    errors.append(run.error)
        finally:
            close_objects()
        if not datasets and errors:
            tried = count(len(sampled), "sampled record")
            raise RecordError(
                f"no schema can be inferred from {tried}: {errors[0]}; correct this error or give --schema"
            )
        if not datasets and sampled:
            tried = count(len(sampled), "sampled record")
            raise UsageError(f"no schema can be inferred: the function keeps none of {tried}; give --schema FILE")
        found = JobSchema.inferred(datasets)
        of_sources = count(len({one.source.url for one in sampled}), "source")
        for route, schema in found.by_route.items():
            of = f" of route {route}" if route else ""
            say(f"schema{of}: inferred from {count(len(sampled), 'record')} of {of_sources}, {schema_text(schema)}")
        return found

    def chain_steps(self) -> list[ChainStep]:
        from ledgerbeam.transforms.chain.plan import PlanStep  # noqa: PLC0415 - workers need them
        from ledgerbeam.transforms.chain.process import ProcessStep  # noqa: PLC0415
        from ledgerbeam.transforms.chain.read import ReadStep  # noqa: PLC0415
        from ledgerbeam.transforms.chain.write import WriteStep  # noqa: PLC0415

        return [
            PlanStep(*self.sources().limits()),
            ReadStep("fail" if self.reject_limit is None else "reject"),
            ProcessStep(self.work()),
            WriteStep(self.output, self._shard_encoder()),
        ]


def columns_format(parquet: Any) -> ShardEncoder:
    """Return the encoder of columns beside records, for a Parquet format with a schema."""
    from ledgerbeam.sources.columns import ColumnsFormat  # noqa: PLC0415 - brings pyarrow

    return ColumnsFormat(**vars(parquet))


def shard_form(to: Any) -> str:
    """Return a regular expression for the end of the names of shards of a format, and of their indexes.

    It matches the last part of `transforms.chain.write.output_name`, from the number of the first record on, and the
    names of files of rejected and of dropped records. If `to` is not a format, it matches no name.
    """
    ending = _ENDINGS.get(to)
    if ending is None and to is not None and to in formats():  # of another package: a file and its index
        ending = rf"{re.escape(formats()[to].suffixes[0])}(?:\.zst)?(?:\.idx)?"
    task = r"-\d{10}(?:-\d{6})*"
    return NO_SHARDS if ending is None else rf"(?:{task}{ending}|(?:^|/)(?:{'|'.join(ASIDE)})/(?s:.*){task}\.jsonl)"


# Regular expressions for the end of the names of a shard's files, by output format; see `transforms.chain.write`.
_ENDINGS = {
    "jsonl": r"\.jsonl(?:\.zst)?(?:\.idx)?",
    "tar": r"\.tar(?:\.zst)?(?:\.idx)?",
    "shar": r"\.[^./]+\.(?:jsonl|tar)(?:\.idx)?",
    "megatron": r"[^/]*\.(?:bin|idx)",
    "run": r"\.run",
}


@dataclass(frozen=True)
class OutputCompression:
    """Zstandard compression of outputs in frames, so that readers can still read records by position."""

    level: int  # Zstandard level
    frame: int  # size of a frame before compression, in bytes

    def encoder(self, encoder: str | ShardEncoder) -> ShardEncoder:
        """Return an encoder that compresses the output of `encoder`, which is an encoder or the name of a format."""
        return SeekableZstd(format_named(encoder) if isinstance(encoder, str) else encoder, self.level, self.frame)

    def parameters(self) -> dict[str, Json]:
        """Return the parameters that determine the bytes of outputs, with the version of the Zstandard library."""
        return {"compress": f"zstd:{self.level}", "frame": self.frame, "version of zstd": LIBRARY}


def parse_compression(compress: str | None, frame: int | None, to: str) -> OutputCompression | None:
    """Return the compression of the options; None without ``--compress``. UsageError: they do not fit the format."""
    if compress is None:
        if frame is not None:
            raise UsageError(f"--frame {frame}: only for compressed outputs; add --compress zstd")
        return None
    try:
        by_position = to in formats() and recognize(f"a{formats()[to].suffixes[0]}{ZSTD_ENDING}").by_position()
    except NotIndexableError:
        by_position = None
    if not by_position:
        raise UsageError(
            f"--compress {compress}: expected --to jsonl, tar or text, found --to {to}, {_WHY_NOT.get(to, _OTHER)}; "
            "leave --compress out"
        )
    found = OutputCompression(parse_level(compress), FRAME if frame is None else frame)
    check_frames(found.level, found.frame)
    return found


_WHY_NOT = {
    "parquet": "which compresses its columns",
    "arrow": "which is read by its footer",
    "shar": "whose shards lhotse reads by position in plain files",
    "megatron": "which Megatron reads by position in plain files",
    "webdataset": "which wids reads by position in plain tars; for tars alone: --to tar",
    "energon": "which Energon reads by position in plain tars; for tars alone: --to tar",
    "lit": "which LIT reads by position in plain tars; for tars alone: --to tar",
}

_OTHER = "which cannot be read compressed"
