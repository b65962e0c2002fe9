"""What a job is asked to do: `JobSpec`, from the command line to every process that works on it."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal

from ledgerbeam.io import Grouping, IndexLocation, OwnFiles, SourceListing, canonical_url, group_shards
from ledgerbeam.io.formats.registry import formats
from ledgerbeam.iterators.job_source import GraphSource
from ledgerbeam.ledger import MAX_ENTRIES, Job, Source, pack_sources
from ledgerbeam.ledger.model.json_rows import decode, encode

__all__ = ["DEFAULT_LEDGERS", "JobSpec", "shar_sources", "shard_form", "source_listing"]

DEFAULT_LEDGERS = ".ledgerbeam"
"""Folder, below the working folder, of the ledgers of jobs that name none."""

_ENDINGS = {
    "jsonl": r"\.jsonl(?:\.idx)?",
    "tar": r"\.tar(?:\.idx)?",
    "shar": r"\.[^./]+\.(?:jsonl|tar)(?:\.idx)?",
    "megatron": r"[^/]*\.(?:bin|idx)",
}
"""What the names of the files of a shard end with, by the output format; see `transforms.shards`."""

_PLACES = 1_000
"""Places of a task of a graph, for an estimate where only a size in bytes is given."""


def shard_form(to: Any) -> str:
    """Returns a regular expression of what the names of shards of a format, and of their indexes, end with.

    The first record and the ordinals in them are those of `transforms.output_name`. Of what is no format none is one.
    """
    ending = _ENDINGS.get(to)
    if ending is None and to in formats():  # of another package: a file and its index
        ending = rf"{re.escape(formats()[to].suffixes[0])}(?:\.idx)?"
    return r"(?!)" if ending is None else rf"-\d{{10}}(?:-\d{{6}})*{ending}"


@dataclass(frozen=True)
class JobSpec:
    """One job, as plain values that survive JSON.

    Attributes:
        pipeline: ``index``, ``map``, ``convert``, ``tokenize`` or ``materialize``.
        patterns: Source patterns, canonical URLs.
        sources_from: URL of a list of sources in place of patterns.
        base: Fixed part of the patterns, a folder URL ending in ``/``; output names are relative to it.
        storage_options: Passed to fsspec untouched.
        ledger: Ledger URL; empty until `resolve_ledger`.
        index_root: Root of a mirrored tree of indexes; None lays them beside their sources.
        index_rule: ``scheme`` or ``lhotse``.
        build_index: Whether sources without an index are indexed.
        group: How tar members make samples.
        task_bytes: Size of a task, of ``index`` of a byte range, in bytes.
        pack_bytes: Size of a pack of small sources, in bytes; None packs nothing.
        read_as: ``shar`` if what is listed are files of Shar datasets; None takes each file as a source.
        epochs: Passes of ``materialize``, each a source; `settings` name the graph.
        function: ``module:function`` of one record, of ``map``, ``convert`` and ``materialize``.
        function_source: Hash of the function's module, for a user's function.
        output: URL of the output folder; None for ``index``.
        to: Output format: ``jsonl``, ``tar``, ``shar`` or ``megatron``; None for ``index``.
        merged: Prefix of the Megatron dataset that the outputs are merged into; None merges nothing.
        published: The format whose metadata is published beside the outputs, as of `publish_shards`, once the job is
            complete; None publishes nothing.
        tokenizer: Of ``tokenize``: ``bytes`` or the URL of a file.
        settings: What else shapes the output of ``map``, ``convert``, ``tokenize`` and ``materialize``, by name. Where
            datasets are merged, ``dtype`` is that of their tokens, and ``suffixes`` has for each what follows the
            prefix in its name.
        check_purity: Whether the function is spot-checked.
        workers: Local worker processes.
        flush_interval: Longest time that a completion waits for its commit, in seconds.
        flush_entries: Most completions of one commit.
        run: Id of the run, once it has begun.
        run_dir: Folder of the running local job; None on other runners.
    """

    pipeline: Literal["index", "map", "convert", "tokenize", "materialize"]
    patterns: tuple[str, ...] = ()
    sources_from: str | None = None
    base: str | None = None
    storage_options: dict[str, Any] = field(default_factory=dict)
    ledger: str = ""
    index_root: str | None = None
    index_rule: Literal["scheme", "lhotse"] = "scheme"
    build_index: bool = True
    group: Grouping = "auto"
    task_bytes: int = 16 * 2**20
    pack_bytes: int | None = None
    read_as: Literal["shar"] | None = None
    epochs: int = 1
    function: str | None = None
    function_source: str | None = None
    output: str | None = None
    to: str | None = None
    merged: str | None = None
    published: str | None = None
    tokenizer: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    check_purity: bool = True
    workers: int = 1
    flush_interval: float = 1.0
    flush_entries: int = MAX_ENTRIES
    run: str = ""
    run_dir: str | None = None

    def job(self) -> Job:
        """Returns what shapes the job's output: the ledger holds the progress of exactly this."""
        parameters: dict[str, Any] = {"group": self.group, "task_bytes": self.task_bytes, "base": self.base}
        if self.read_as:
            parameters["from"] = self.read_as
        if self.pipeline == "index":
            parameters.update({"index_root": self.index_root, "index_rule": self.index_rule})
        else:
            shaping = ("function", "function_source", "output", "to", "pack_bytes")
            parameters.update({name: getattr(self, name) for name in shaping})
            parameters.update(self.settings)
        return Job(self.pipeline, parameters)

    def graph(self) -> GraphSource | None:
        """Returns the graph whose passes are the job's sources, if it has one."""
        return GraphSource(self.settings["graph"], self.epochs) if self.pipeline == "materialize" else None

    def listing(self) -> SourceListing | GraphSource:
        """Returns what the job reads."""
        own = OwnFiles(self.output, self.shard_form(), self.ledger or None)
        return self.graph() or SourceListing(self.patterns, self.sources_from, self.storage_options, own=own)

    def source_names(self) -> tuple[str, ...]:
        """Returns what names the job's sources: patterns, the URL of a list, or a graph."""
        graph = self.settings.get("graph")
        return self.patterns or tuple(filter(None, [self.sources_from, graph]))

    def shard_form(self) -> str:
        """Returns a regular expression of what the names of the job's shards end with."""
        return shard_form(self.to)

    def expected_tasks(self, source: Source) -> int:
        """Estimates from its size alone how many tasks a source makes."""
        if source.members and not self.read_as:
            return 1
        if self.pipeline == "materialize":  # of which the size is the number of places
            return max(1, source.size // (self.settings["task_records"] or _PLACES))
        return max(1, source.size // self.task_bytes)

    def packer(self) -> Callable[[Iterable[Source]], Iterable[Source]] | None:
        """Returns what makes sources of several listed files each; None if each is one."""
        if self.read_as:
            return shar_sources
        return functools.partial(pack_sources, target_bytes=self.pack_bytes) if self.pack_bytes else None

    def index_location(self) -> IndexLocation:
        """Returns where the indexes of sources lie."""
        return IndexLocation(root=self.index_root, rule=self.index_rule)

    def resolve_ledger(self, url: str | None) -> JobSpec:
        """Returns the spec with its ledger: `url`, or a folder below the working folder.

        The folder is named by command, sources and output. So a job that does with them something else than before
        meets the ledger of what it did before, and is refused there.
        """
        if url is None:
            named = "\0".join([*self.source_names(), self.output or self.index_root or ""])
            name = blake2b(os.fsencode(named), digest_size=6, person=b"lb.default").hexdigest()
            url = os.path.join(DEFAULT_LEDGERS, f"{self.pipeline}-{name}")
        return dataclasses.replace(self, ledger=canonical_url(url).rstrip("/"))

    @property
    def work(self) -> str:
        """The folder beside the ledger for what a job notes for itself: parts of indexes, what was merged."""
        return f"{self.ledger}/work"

    def to_json(self) -> bytes:
        """Returns the spec as JSON, without the storage options: they may hold credentials, and this goes to a file."""
        return encode({**dataclasses.asdict(self), "storage_options": {}})

    @classmethod
    def from_json(cls, data: bytes, storage_options: dict[str, Any]) -> JobSpec:
        """Reads what `to_json` wrote."""
        values = decode(data)
        return cls(**{**values, "patterns": tuple(values["patterns"]), "storage_options": storage_options})


def source_listing(args: argparse.Namespace) -> SourceListing:
    """Returns what the arguments of a command name.

    Raises:
        UsageError: If neither or both of patterns and a list are given, or one of them is no URL.
    """
    patterns = tuple(canonical_url(pattern) for pattern in args.patterns)
    sources_from = canonical_url(args.sources_from) if args.sources_from else None
    return SourceListing(patterns, sources_from, args.storage_options)


def shar_sources(files: Iterable[Source]) -> list[Source]:
    """Makes one source of the files of each shard of Shar datasets: a change of any of them is a change of the shard.

    Args:
        files: All files of the datasets' folders; those that are no shards are passed over.

    Raises:
        SourceError: A shard lacks a file; see `io.group_shards`.
        SourceNotFoundError: There is no shard.
    """
    by_url = {file.url: file for file in files}
    return [Source.pack([by_url[url] for url in urls]) for urls in group_shards(by_url)]
