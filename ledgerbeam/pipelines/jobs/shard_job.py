"""Jobs that write a shard for each task."""

from __future__ import annotations

import dataclasses
import re
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from ledgerbeam._base.names import ASIDE
from ledgerbeam.errors import NotIndexableError, UsageError
from ledgerbeam.io import Format, SeekableZstd, ShardEncoder
from ledgerbeam.io.formats.compressed import FRAME, LIBRARY, ZSTD_ENDING, check_frames, parse_level
from ledgerbeam.io.formats.registry import format_named, formats, recognize
from ledgerbeam.ledger import Job, Task
from ledgerbeam.ledger.model.job import Json
from ledgerbeam.pipelines.jobs.sources import OutputPlace
from ledgerbeam.pipelines.jobs.spec import NO_SHARDS, JobSpec
from ledgerbeam.pipelines.outputs.columns import ColumnLayout, decide_layout, recorded_schema

if TYPE_CHECKING:
    from ledgerbeam.transforms import MapRecords
    from ledgerbeam.transforms.chain.base import ChainStep
    from ledgerbeam.transforms.mapping.audit import AuditedWork


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

    def output_places(self) -> list[OutputPlace]:
        return [(self.output, "", True)]

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
        return dataclasses.replace(self, layout=decide_layout(self, say))

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
