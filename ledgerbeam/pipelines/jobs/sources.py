"""Sources of jobs: `ListedFiles`, files of a listing, and `GraphPasses`, the passes of an iterator graph.

Both implement `JobSources`, so that other modules need not check the kind of the sources.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from glob import escape
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeAlias

from ledgerbeam._base.extensions import load_extension
from ledgerbeam.errors import UsageError
from ledgerbeam.io import Options, TarFormat, recognize
from ledgerbeam.io.formats.registry import recognize_indexable
from ledgerbeam.io.index.file import IndexLocation
from ledgerbeam.io.lines.formats import JsonlFormat
from ledgerbeam.io.listing.left_out import OwnFiles, RequireSource
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.io.listing.patterns import alternatives, expand_braces, fixed_part, parse
from ledgerbeam.io.storage.urls import canonical_url
from ledgerbeam.io.tar.grouping import Grouping
from ledgerbeam.ledger import Source
from ledgerbeam.ledger.model.job import Json
from ledgerbeam.ledger.model.task import pack_sources
from ledgerbeam.sources import FileSources, RecordForm, Sources
from ledgerbeam.sources.listing import RecordedListing, RecordedOutputs, SourceListing
from ledgerbeam.sources.where import NeededColumns, Where
from ledgerbeam.user_code.loading import Reference

if TYPE_CHECKING:  # for few jobs
    from ledgerbeam.iterators.job_source import GraphSource
    from ledgerbeam.sources.buckets import BucketListing
    from ledgerbeam.sources.listed import WithEarlierFiles

CONTENT = "sources by content"  # parameter of jobs whose sources are the outputs of other jobs
_GRAPH_TASK_RECORDS = 1_000  # positions in a task of a graph, for an estimate if only a size in bytes is given
_RECORD_BYTES = 100  # size of a record, to estimate tasks from a number of records; low, so as not to overestimate
Packer = Callable[[Iterable[Source]], Iterable[Source]]
Listing: TypeAlias = "SourceListing | RecordedListing | GraphSource | BucketListing | WithEarlierFiles"

OutputPlace = tuple[str, str, bool]  # folder, prefix of output names there, and whether outputs may be in subfolders


class JobSources(Protocol):
    """The sources of a job."""

    @property
    def task_bytes(self) -> int:
        """Size of a task in bytes."""

    @property
    def base(self) -> str | None:
        """Base of output names: a URL that ends in ``/``; None for whole paths."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sources: patterns, the URL of a list, or a graph."""

    @property
    def as_files(self) -> ListedFiles | None:
        """The sources as files; None if they are not files."""

    def listing(self, own: OwnFiles, options: Options) -> Listing:
        """Return the listing, without the job's own files."""

    def expected_tasks(self, source: Source) -> int:
        """Return the estimated number of tasks of a source, from its size alone."""

    def opened(self, options: Options) -> Sources:
        """Return the object with which workers open the sources."""

    def limits(self) -> tuple[int | None, int | None]:
        """Return the size of a task in bytes, and in records. One of them is None."""

    def parameters(self) -> dict[str, Json]:
        """Return the parameters of the sources that affect the outputs of a job."""

    def places(self) -> dict[str, list[str]]:
        """Return the URLs that workers must reach, by their names in messages."""

    def forget_patterns(self) -> list[str]:
        """Return patterns for `LedgerStore.forget` that match every source."""


@dataclass(frozen=True, kw_only=True)
class ListedFiles:
    """Files named by patterns or a list, or written by other jobs."""

    patterns: tuple[str, ...] = ()  # canonical URLs with wildcards
    sources_from: str | None = None  # URL of a list of sources, instead of patterns
    recorded: tuple[RecordedOutputs, ...] = ()  # outputs of other jobs, instead of both
    base: str | None = None  # fixed part of the patterns, a folder URL ending in ``/``; output names are relative to it
    index_root: str | None = None  # root of a mirrored tree of indexes; None puts them beside their sources
    index_rule: Literal["scheme", "lhotse"] = "scheme"  # rule of file names in that tree
    build_index: bool = True  # whether sources without an index are indexed
    group: Grouping = "auto"  # rule that groups tar members into samples
    task_bytes: int = 16 * 2**20  # size of a task; for an index job, of a byte range
    task_records: int | None = None  # number of records of a task, instead of a size
    pack_bytes: int | None = None  # size of a pack of small sources; None for no packs
    pack_by_folder: bool = False  # whether a pack has only sources of one folder
    # ``shar`` if the listed files belong to Shar datasets; None takes each file as a source.
    read_as: Literal["shar"] | None = None
    columns: tuple[str, ...] = ()  # columns to read of columnar files; empty for all
    form: RecordForm = "records"  # form in which records are read; see `FileSources`
    batch_schema: str | None = None  # schema of batches of JSON lines, as JSON; None without one
    # Keys that the job looks up in records. They limit the columns if none are named; see `FileSources`.
    keys: tuple[str, ...] = ()
    beside: tuple[NeededColumns, ...] = ()  # columns that `where` and `notes` need
    where: Where | None = None  # condition over these columns; None reads all records
    notes: str = ""  # name of the column with a note of each record, see `PlacedPart`; empty for none

    @property
    def names(self) -> tuple[str, ...]:
        return self.patterns or tuple(one.folder for one in self.recorded) or tuple(filter(None, [self.sources_from]))

    @property
    def as_files(self) -> Self:
        return self

    def listing(self, own: OwnFiles, options: Options) -> SourceListing | RecordedListing:
        if self.recorded:
            return RecordedListing(self.recorded, options or {})
        return SourceListing(self.patterns, self.sources_from, options or {}, own=own, require=self._require)

    @property
    def _require(self) -> RequireSource:
        return _require_shard if self.read_as else recognize

    def check(self, page: Page) -> None:
        """Raise an error for a page of the listing with a source that cannot be read."""
        self.opened({}).check_names(page.urls)

    def check_columns(self, page: Page, options: Options) -> None:
        """Raise an error for a page of the listing if none of its files has the columns to read."""
        if self.columns or self.keys:
            self.opened_files(options).check_columns(listed_files([page]))

    def packer(self, options: Options) -> Packer | None:
        """Return the packer that makes sources of several listed files each; None if each file is a source."""
        if self.where is not None:
            return self._with_columns(dict(options or {}))
        if self.read_as:
            return shar_sources
        if self.pack_bytes is None:
            return None
        return functools.partial(pack_sources, target_bytes=self.pack_bytes, by_folder=self.pack_by_folder)

    def _with_columns(self, options: dict[str, Any]) -> Packer:
        from ledgerbeam.sources.columns import with_columns  # noqa: PLC0415 - brings pyarrow

        def packed(files: Iterable[Source]) -> Iterable[Source]:
            return with_columns(shar_sources(files) if self.read_as else files, self.beside, options)

        return packed

    def expected_tasks(self, source: Source) -> int:
        size = self.task_bytes if self.task_records is None else self.task_records * _RECORD_BYTES
        return 1 if self._is_pack(source) else max(1, -(-source.size // size))

    def indexed_bytes(self, source: Source) -> int:
        """Return the number of bytes of a source without an index that are read before its first task starts."""
        return 0 if self._is_pack(source) else source.size

    def _is_pack(self, source: Source) -> bool:
        """Return whether a source is several small files that are read together."""
        return bool(source.members) and not self.read_as and self.where is None

    def opened(self, options: Options) -> Sources:
        opened = self._opened(options)
        if self.where is None:
            return opened
        from ledgerbeam.sources.columns import SelectedSources  # noqa: PLC0415 - brings pyarrow

        return SelectedSources(opened, self.beside, self.where, self.notes, dict(options or {}))

    def _opened(self, options: Options) -> Sources:
        if self.read_as == "shar":
            sources: Sources = load_extension("ledgerbeam.sources", self.read_as)(
                self._index_location, self.build_index, options or {}
            )
            return sources
        return self.opened_files(options)

    def opened_files(self, options: Options) -> FileSources:
        """Return a reader that opens each file alone, with the options of its format."""
        lines = () if self.batch_schema is None else (JsonlFormat(schema=self.batch_schema),)
        return FileSources(
            (TarFormat(self.group), *lines),
            self._index_location,
            self.build_index,
            options or {},
            self.columns,
            self.form,
            self.keys,
        )

    @property
    def _index_location(self) -> IndexLocation:
        return IndexLocation(root=self.index_root, rule=self.index_rule)

    def limits(self) -> tuple[int | None, int | None]:
        return (None, self.task_records) if self.task_records else (self.task_bytes, None)

    def parameters(self) -> dict[str, Json]:
        shaping: dict[str, Json] = {"group": self.group, "task_bytes": self.task_bytes, "base": self.base}
        choices: dict[str, Json] = {
            "task_records": self.task_records,
            "from": self.read_as,
            "pack_bytes": self.pack_bytes,
            "pack_by": "folder" if self.pack_by_folder else None,
            "columns": list(self.columns) or None,
            "batch schema": self.batch_schema,
            "notes": self.notes or None,
            CONTENT: True if self.recorded else None,
        }
        condition = {} if self.where is None else self.where.parameters()
        return shaping | {name: value for name, value in choices.items() if value is not None} | condition

    def places(self) -> dict[str, list[str]]:
        ledgers = [one.ledger for one in self.recorded]
        indexes = [self.index_root] if self.index_root else []
        return {
            "the sources": [*self.names, *ledgers],
            "--index-root": indexes,
            "--with": [one.folder for one in self.beside],
        }

    def index_folders(self) -> set[str]:
        """Return the folders to which the indexes of the files are written."""
        if self.index_root is not None:
            return {canonical_url(self.index_root)}
        fixed = {canonical_url(fixed_part(plain)) for pattern in self.patterns for plain in expand_braces(pattern)}
        return fixed | {one.folder for one in self.recorded}

    def index_places(self) -> list[OutputPlace]:
        """Return the places of indexes."""
        if self.index_root is not None:
            return [(self.index_root, "", True)]
        places = set()
        for pattern in (one for text in self.patterns for one in alternatives(text)):
            if pattern.is_plain:
                places.add((pattern.base, pattern.text[len(pattern.base) + 1 :], False))
            else:
                first = pattern.parts[0]
                recursive = len(pattern.parts) > 1 or first.any_depth
                places.add((pattern.base, re.split(r"[*?[]", first.text, maxsplit=1)[0], recursive))
        return sorted(places)

    def forget_patterns(self) -> list[str]:
        """Return patterns for the ledger that match the sources. In them, ``*`` also matches ``/``."""
        listed = (one for pattern in self.patterns for one in alternatives(pattern))
        found = [
            escape(one.text) if one.is_plain else one.text.replace("**/", "*").replace("**", "*") for one in listed
        ]
        return found + [f"{escape(one.folder)}/*" for one in self.recorded] or ["*"]


@dataclass(frozen=True, kw_only=True)
class FilesToIndex(ListedFiles):
    """Files to index, each a source, also the files that together are one shard of a Shar dataset."""

    @property
    def _require(self) -> RequireSource:
        return _require_shard if self.read_as else recognize_indexable

    def check(self, page: Page) -> None:
        self.opened({}).check_names(page.urls, by_position=True)

    def packer(self, options: Options) -> Packer | None:  # noqa: ARG002
        return None

    def indexed_bytes(self, source: Source) -> int:  # noqa: ARG002 - the tasks index the source
        return 0

    def opened(self, options: Options) -> FileSources:
        return self.opened_files(options)


def listed_files(pages: Iterable[Page]) -> Iterator[Source]:
    """Yield the files of a listing."""
    return (Source(*row) for page in pages for row in zip(page.urls, page.sizes, page.versions, strict=True))


def read_as_shar(patterns: Sequence[str], options: Options) -> Literal["shar"] | None:
    """Return the default of `read_as`, for calls without ``--from``: Shar if patterns name folders of Shar datasets.

    Patterns with wildcards, or with the suffix of a format, are not checked.
    """
    folders = [*filter(_may_be_folder, patterns)]
    if folders:
        shar = load_extension("ledgerbeam.folders", "shar")()  # imports NumPy
        folders = [folder for folder in folders if shar.holds(folder, options)]
    if folders and len(folders) < len(patterns):
        other = next(pattern for pattern in patterns if pattern not in folders)
        raise UsageError(
            f"{folders[0]} is a folder of a Shar dataset, and {other} is not; index each with its own command, or name "
            "the files of both"
        )
    return "shar" if folders else None


def _require_shard(url: str) -> None:
    load_extension("ledgerbeam.sources", "shar").require_name(url)


def _may_be_folder(pattern: str) -> bool:
    if expand_braces(pattern) != [pattern] or not parse(pattern).is_plain:
        return False
    try:
        recognize(pattern.rstrip("/"))
    except UsageError:
        return True
    return os.path.isdir(pattern)


@dataclass(frozen=True, kw_only=True)
class GraphPasses:
    """The passes of an iterator graph, each of them a source."""

    # ``module:function`` that returns the graph, ``module:object`` for a graph, or the function itself.
    reference: Reference
    made_of: dict[str, dict[str, str]]  # hashes of the code of the graph, in groups by name; see `UserFunction`
    epochs: int = 1  # number of passes
    task_bytes: int = 16 * 2**20  # size of a task in bytes, by the mean size of the records that the graph reads
    task_records: int | None = None  # number of positions of a task, instead of a size

    @property
    def graph(self) -> GraphSource:
        """The graph for transforms."""
        from ledgerbeam.iterators.job_source import GraphSource  # noqa: PLC0415 - for few jobs

        return GraphSource(self.reference, self.epochs)

    @property
    def base(self) -> str | None:
        return self.graph.base

    @property
    def names(self) -> tuple[str, ...]:
        return (str(self.reference),)

    @property
    def as_files(self) -> None:
        """None: passes are not files."""

    def listing(self, own: OwnFiles, options: Options) -> GraphSource:  # noqa: ARG002 - passes are not files
        return self.graph

    def expected_tasks(self, source: Source) -> int:
        """Return the estimated number of tasks of a pass, whose size is its number of positions."""
        return max(1, -(-source.size // (self.task_records or _GRAPH_TASK_RECORDS)))

    def opened(self, options: Options) -> GraphSource:  # noqa: ARG002 - the code of the graph has its own options
        return self.graph

    def limits(self) -> tuple[int | None, int | None]:
        return (None, self.task_records) if self.task_records else (self.task_bytes, None)

    def parameters(self) -> dict[str, Json]:
        """Return the parameters of the graph that affect the outputs of a job. Passes are sources, not parameters."""
        sizes: dict[str, Json] = {"task_bytes": self.task_bytes, "task_records": self.task_records}
        return {**sizes, "base": self.base, "graph": str(self.reference), **self.made_of}

    def places(self) -> dict[str, list[str]]:
        """Return the URLs of the data that the graph reads, which workers must reach."""
        return {"the sources": self.graph.urls()}

    def forget_patterns(self) -> list[str]:
        return ["*"]


def shar_sources(files: Iterable[Source]) -> list[Source]:
    """Group all files of folders of Shar datasets into one source for each shard. Other files are left out.

    If any file of a shard changes, the source changes.
    """
    found: list[Source] = load_extension("ledgerbeam.sources", "shar").group(files)
    return found
