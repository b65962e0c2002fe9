"""Publication of complete jobs as datasets: index files and metadata.

The formats of datasets are in `pipelines/datasets/publications.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ledgerbeam._base.extensions import load_extension
from ledgerbeam.errors import SourceNotFoundError, StorageError, UsageError
from ledgerbeam.io import Options
from ledgerbeam.io.compression.streams import split_compression
from ledgerbeam.io.idxpack.reader import collection_key
from ledgerbeam.io.idxpack.writer import PackSources, write_index_pack
from ledgerbeam.io.storage.files import refuse_foreign
from ledgerbeam.io.storage.stat import stat_many
from ledgerbeam.ledger import OutputShard
from ledgerbeam.pipelines.outputs.dataset_card import write_card
from ledgerbeam.pipelines.outputs.foreign_files import PACK

_CUTS = "cuts"

_ON_HUB = (".parquet", ".arrow", ".jsonl", ".jsonl.zst", ".tar", ".txt", ".txt.zst")
"""Suffixes of files that `datasets` reads. It reads no compressed tars."""


@dataclass(frozen=True)
class Publication:
    """A published dataset.

    Attributes:
        format: Name of the format.
        shards: Number of shards.
        records: Number of records.
        urls: URLs of the written files; the entry file of the dataset is last.
        keys: For a pack, the key of each collection by role.
    """

    format: str
    shards: int
    records: int
    urls: list[str]
    keys: dict[str, str]


@dataclass(frozen=True)
class PublishedShards:
    """The shards of a job, and the options of their publication.

    Attributes:
        ledger: URL of the job's ledger, for messages.
        root: The folder of the shards.
        shards: All shards.
        parts: The shards of each part.
        output: URL of the written file, if it need not be beside the shards; None for the default.
        name: Name of the dataset.
        suffixes: Suffixes of the Megatron datasets whose parts the shards are.
        options: Storage options.
    """

    ledger: str
    root: str
    shards: Sequence[OutputShard]
    parts: Mapping[str, Sequence[OutputShard]]
    output: str | None
    name: str
    suffixes: Sequence[str]
    options: Options

    def url(self, name: str) -> str:
        """Return the URL of a file in the folder of the shards."""
        return f"{self.root}/{name}"

    def place(self, default: str) -> str:
        """Return the URL of a file that need not be beside the shards."""
        return self.url(default) if self.output is None else self.output

    def require_root(self) -> None:
        """Raise UsageError if `output` names another place than the folder of the shards."""
        if self.output is not None:
            raise UsageError(f"--output {self.output}: this metadata must be beside the shards, below {self.root}")

    def require_whole(self) -> None:
        """Raise UsageError if the dataset is divided into parts."""
        if list(self.parts) != ["train"]:
            raise UsageError("--part is for --as energon, hf and lit; other formats have no parts")

    def require_plain(self) -> None:
        """Raise UsageError if a shard is compressed."""
        for shard in self.shards:
            if split_compression(shard.name).compression is not None:
                raise UsageError(
                    f"ledger {self.ledger}: expected plain shards, because readers of this format do not decompress "
                    f"them, found {shard.name}; run the job without --compress"
                )

    def refuse_foreign(self, files: Mapping[str, re.Pattern[bytes]]) -> None:
        """Raise UsageError if another program's file has one of these URLs."""
        refuse_foreign(files, self.options, kind="one of this metadata", remedy="and publish again")

    def require_suffix(self, suffix: str, remedy: str) -> None:
        """Raise UsageError if the name of a shard has another suffix."""
        if split_compression(suffix).compression is None:
            self.require_plain()
        for shard in self.shards:
            if not shard.name.endswith(suffix):
                raise UsageError(
                    f"ledger {self.ledger}: expected a job whose shards end with {suffix}, found {shard.name}; {remedy}"
                )


def publish_shards(
    shards: Sequence[OutputShard],
    root: str,
    form: str,
    options: Options,
    *,
    ledger: str,
    parts: Sequence[tuple[str, str]] | None = None,
    output: str | None = None,
    name: str | None = None,
    suffixes: Sequence[str] = ("",),
) -> Publication:
    """Write the index files and metadata of a format for the shards of a complete job.

    Each file appears whole, the entry file of the dataset last. A second call writes the same bytes.

    Args:
        shards: All shards of the job, in the order of its dataset manifest.
        root: The folder below which they lie.
        form: Name of the format.
        options: Storage options.
        ledger: URL of the job's ledger, for messages.
        parts: Names and shell patterns of the parts; the first matching pattern counts. By default all shards are in
            `train`.
        output: URL of a file that need not be beside the shards.
        name: Name of the dataset; by default the last part of `root`.
        suffixes: For Megatron, suffixes of the names of the datasets that the shards are parts of.

    Raises:
        RecordError: Two samples have the same key, and the format needs unique keys; also ArchiveError, SourceError.
        StorageError: A shard is missing or has another size than recorded, or the store does not answer.
        UsageError: There are no shards, or they cannot be a dataset of this format.
    """
    require_shards(shards, root, options, ledger=ledger)
    called = name or root.rpartition("/")[2]
    dataset = PublishedShards(ledger, root, shards, _parts(parts, shards), output, called, suffixes, options)
    publish = FORMATS.get(form) or load_extension("ledgerbeam.publications", form)
    urls, keys = publish(dataset)
    cuts = [shard for shard in shards if shard.name.endswith(f".{_CUTS}.jsonl")]
    return Publication(form, len(shards), sum(shard.records for shard in cuts or shards), urls, keys)


def _parts(given: Sequence[tuple[str, str]] | None, shards: Sequence[OutputShard]) -> dict[str, list[OutputShard]]:
    """Assign each shard to the first part whose pattern matches its name."""
    patterns = given or [("train", "*")]
    parts: dict[str, list[OutputShard]] = {part: [] for part, _ in patterns}
    for shard in shards:
        part = next((part for part, pattern in patterns if fnmatchcase(shard.name, pattern)), None)
        if part is None:
            raise UsageError(f"--part: no pattern matches the shard {shard.name}; add one, such as train=*")
        parts[part].append(shard)
    empty = next((part for part, found in parts.items() if not found), None)
    if empty is not None:
        raise UsageError(f"--part {empty}: earlier patterns match all shards of this part; change the patterns")
    return parts


def require_shards(shards: Sequence[OutputShard], root: str, options: Options, *, ledger: str) -> None:
    """Check that there are shards, and that each has its recorded size.

    Raises:
        StorageError: A shard is missing or has another size than recorded, or the store does not answer.
        UsageError: There are no shards.
    """
    if not shards:
        raise UsageError(f"ledger {ledger}: its job has written no shards; there is nothing to publish")
    remedy = f"to check all shards: ledgerbeam ledger verify --sizes-only {ledger}"
    try:
        found = stat_many([f"{root}/{shard.name}" for shard in shards], options)
    except SourceNotFoundError as error:
        raise SourceNotFoundError(f"{error}; nothing was published; {remedy}") from error
    for shard, info in zip(shards, found, strict=True):
        if info.size != shard.size:
            raise StorageError(
                f"{info.url}: expected {shard.size:,} bytes, as recorded, found {info.size:,}; nothing was published; "
                f"{remedy}"
            )


Published = tuple[list[str], dict[str, str]]
"""`urls` and `keys` of a `Publication`."""


def _publish_hf(dataset: PublishedShards) -> Published:
    dataset.require_root()
    suffix = next((suffix for suffix in _ON_HUB if dataset.shards[0].name.endswith(suffix)), _ON_HUB[0])
    dataset.require_suffix(suffix, "use --to parquet")
    splits = {part: [shard.name for shard in shards] for part, shards in dataset.parts.items()}
    return write_card(dataset.root, splits, dataset.options, name=dataset.name, suffix=suffix), {}


def _publish_pack(dataset: PublishedShards) -> Published:
    dataset.require_whole()
    dataset.require_plain()
    fields = {"manifest": [dataset.url(shard.name) for shard in dataset.shards]}
    if any(shard.name.endswith(f".{_CUTS}.jsonl") for shard in dataset.shards):
        fields = shar_fields(dataset)
    collections = []
    keys = {}
    for role, urls in fields.items():
        kind = "tar-members" if urls[0].endswith(".tar") else "json-lines"
        collections.append(PackSources(role, kind, dataset.name, urls))
        keys[role] = collection_key(role, kind, dataset.name).hex()
    url = dataset.place("index.idxpack")
    dataset.refuse_foreign({url: PACK})
    write_index_pack(url, collections, dataset.options)
    return [url], keys


def shar_fields(dataset: PublishedShards) -> dict[str, list[str]]:
    """Return the URLs of each field of a Shar dataset. Shards of one task have the same position in all lists."""
    tasks: dict[str, dict[str, str]] = {}
    for shard in dataset.shards:
        task, _, field = shard.name.rpartition(".")[0].rpartition(".")
        tasks.setdefault(task, {})[field] = dataset.url(shard.name)
    names = set().union(*tasks.values())
    if _CUTS not in names or any(fields.keys() != names for fields in tasks.values()):
        raise UsageError(
            f"ledger {dataset.ledger}: expected a job whose shards are cuts and their fields, found other shards, such "
            f"as {dataset.shards[0].name}; use ledgerbeam convert --to shar"
        )
    return {name: [fields[name] for fields in tasks.values()] for name in sorted(names)}


FORMATS: dict[str, Callable[[PublishedShards], Published]] = {"hf": _publish_hf, "idxpack": _publish_pack}
"""Functions that publish, by format. Formats of datasets are in the entry-point group `ledgerbeam.publications`."""
