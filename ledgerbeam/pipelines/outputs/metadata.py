"""Publication of complete jobs as datasets: index files, metadata, and dataset cards.

The formats of datasets are in `pipelines/datasets/publications.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ledgerbeam._base.extensions import load_extension
from ledgerbeam.errors import SourceNotFoundError, StorageError, UsageError
from ledgerbeam.io import Options, ParquetFormat
from ledgerbeam.io.compression.streams import split_compression
from ledgerbeam.io.idxpack.reader import collection_key
from ledgerbeam.io.idxpack.writer import PackSources, write_index_pack
from ledgerbeam.io.storage.files import read_bytes, refuse_foreign
from ledgerbeam.io.storage.publish import publish_bytes
from ledgerbeam.io.storage.stat import stat_many
from ledgerbeam.ledger import OutputShard

_CUTS = "cuts"
# Suffixes of files that `datasets` reads. It reads no compressed tars.
_ON_HUB = (".parquet", ".arrow", ".jsonl", ".jsonl.zst", ".tar", ".txt", ".txt.zst")
# Patterns of the start of metadata files. A publication replaces only matching files; others are foreign.
WIDS = re.compile(rb'\s*\{(?s:.*)"(?:__kind__|wids_version|shardlist)"')

CONFIG_OF_LIT = re.compile(rb"\s*\{(?s:.*)\.tar")

INDEX_OF_LIT = re.compile(rb'\s*\{\s*(?:\}|"(?s:.*)\.tar"\s*:\s*\{)')

FIELDS_OF_SHAR = re.compile(rb'\s*\{(?s:.*)"cuts"\s*:\s*\[')

PACK = re.compile(rb"IDXPACK")
META_OF_ENERGON = {  # files in `.nv-meta`
    "dataset.yaml": re.compile(rb"(?s:.*)__(?:class|module)__"),
    "split.yaml": re.compile(rb"(?s:.*)split_parts"),
    ".info.json": re.compile(rb'\s*\{(?s:.*)"(?:shard_counts|energon_version)"'),
    "index.sqlite": re.compile(rb"SQLite format 3\0"),
    "index.uuid": re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\s*\Z"),
}

_CONFIG = "default"
_SPLIT = re.compile(r"\w+(?:\.\w+)*")
_HEAD = re.compile(r"---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_CONFIGS = re.compile(r"^configs:[^\n]*\n(?:(?:[ \t-][^\n]*)?\n)*", re.MULTILINE)
_NAMED = re.compile(r"""config_name:\s*["']?([^"'\n#]*?)["']?\s*(?:#.*)?$""", re.MULTILINE)
Published = tuple[list[str], dict[str, str]]  # `urls` and `keys` of a `Publication`


@dataclass(frozen=True)
class Publication:
    """A published dataset."""

    format: str
    shards: int
    records: int
    urls: list[str]  # URLs of the written files; the entry file of the dataset is last
    keys: dict[str, str]  # for a pack, the key of each collection by role


@dataclass(frozen=True)
class PublishedShards:
    """The shards of a job, and the options of their publication."""

    ledger: str  # URL of the job's ledger, for messages
    root: str
    shards: Sequence[OutputShard]
    parts: Mapping[str, Sequence[OutputShard]]
    output: str | None  # URL of the written file, if it need not be beside the shards; None for the default
    name: str
    suffixes: Sequence[str]  # suffixes of the Megatron datasets whose parts the shards are
    options: Options

    def url(self, name: str) -> str:
        """Return the URL of a file in the folder of the shards."""
        return f"{self.root}/{name}"

    def place(self, default: str) -> str:
        """Return the URL of a metadata file: `output` if it is given, else `default` beside the shards."""
        return self.url(default) if self.output is None else self.output

    def require_root(self) -> None:
        """Raise UsageError if `output` names another place than the folder of the shards."""
        if self.output is not None:
            raise UsageError(f"--output {self.output}: this metadata must be beside the shards; leave --output out")

    def require_whole(self) -> None:
        """Raise UsageError if the dataset is divided into parts."""
        if list(self.parts) != ["train"]:
            raise UsageError("--part is for --as energon, hf and lit; other formats have no parts: leave --part out")

    def require_plain(self) -> None:
        """Raise UsageError if a shard is compressed."""
        for shard in self.shards:
            if split_compression(shard.name).compression is not None:
                raise UsageError(
                    f"ledger {self.ledger}: expected uncompressed shards, because readers of this format do not "
                    f"decompress them, found {shard.name}; run the job without --compress"
                )

    def refuse_foreign(self, files: Mapping[str, re.Pattern[bytes]]) -> None:
        """Raise UsageError if another program's file has one of these URLs."""
        looks = {url: pattern.match for url, pattern in files.items()}
        refuse_foreign(looks, self.options, kind="earlier metadata of this format", remedy="and publish again")

    def require_suffix(self, suffix: str, remedy: str) -> None:
        """Raise UsageError, with a remedy, if the name of a shard has another suffix than `suffix`."""
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
        parts: Names and shell patterns of the parts; the first match counts. Default: all shards in `train`.
        output: URL of a file that need not be beside the shards.
        name: Name of the dataset; by default the last part of `root`.
        suffixes: For Megatron, suffixes of the names of the datasets that the shards are parts of.
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
        raise UsageError(f"--part {empty}: no shard is left after the earlier patterns; change the patterns")
    return parts


def require_shards(shards: Sequence[OutputShard], root: str, options: Options, *, ledger: str) -> None:
    """Check that there are shards, and that each has its recorded size."""
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


def _publish_columns(dataset: PublishedShards) -> Published:
    dataset.require_root()
    dataset.require_whole()
    dataset.require_suffix(".parquet", "run the job with --on-job-change restart, or with another ledger and output")
    with closing(ParquetFormat().open_columns(dataset.url(dataset.shards[0].name), dataset.options)) as reader:
        names = reader.schema.names
    return publish_catalog(dataset.root, dataset.shards, names, dataset.options).urls, {}


def publish_catalog(root: str, shards: Sequence[OutputShard], names: Sequence[str], options: Options) -> Publication:
    """Write the catalog of columns with these names; there may be no shards."""
    from ledgerbeam.sources.columns import CatalogRow, write_catalog  # noqa: PLC0415 - brings pyarrow

    stored = [info.version for info in stat_many([f"{root}/{shard.name}" for shard in shards], options)]
    rows = (
        CatalogRow(
            shard.source_id, shard.source, shard.source_version, shard.name, shard.size, shard.checksum, shard.records
        )
        for shard in shards
    )
    urls = write_catalog(root, rows, stored, names, options or {})
    return Publication("columns", len(shards), sum(shard.records for shard in shards), urls, {})


# Functions that publish, by format. Formats of datasets are in the entry-point group `ledgerbeam.publications`.
FORMATS: dict[str, Callable[[PublishedShards], Published]] = {
    "columns": _publish_columns,
    "hf": _publish_hf,
    "idxpack": _publish_pack,
}


def write_card(
    root: str, splits: Mapping[str, Sequence[str]], options: Options, *, name: str, suffix: str
) -> list[str]:
    """Write the README.md of a dataset for the Hugging Face Hub, or update the config in an existing README.md.

    The front matter names a config with the files of each split, as globs where a folder has files of only one split.
    The rest of an existing README.md stays unchanged: its text, other keys of the front matter, and other configs.
    """
    for split in splits:
        if not _SPLIT.fullmatch(split):
            raise UsageError(
                f"--part {split}: expected letters, digits, _ and . as the name of a split on the Hub; name the splits "
                "yourself: --part NAME=PATTERN, such as --part 'part_0=part-0/*'"
            )
    url = f"{root}/README.md"
    try:
        before = read_bytes(url, options).decode()
    except SourceNotFoundError:
        before = f"# {name}\n"
    except UnicodeDecodeError as error:
        raise UsageError(f"{url}: this file is not UTF-8 ({error}); move it away and publish again") from error
    publish_bytes(url, card_text(before, split_patterns(splits, suffix)).encode(), options)
    return [url]


def split_patterns(splits: Mapping[str, Sequence[str]], suffix: str) -> dict[str, list[str]]:
    """Return patterns that match the files of each split, and no other file of the dataset."""
    folders: dict[str, set[str]] = {}
    for split, names in splits.items():
        for name in names:
            folders.setdefault(_folder(name), set()).add(split)
    found: dict[str, list[str]] = {}
    for split, names in splits.items():
        patterns = (
            f"{_escaped(_folder(name))}*{suffix}" if folders[_folder(name)] == {split} else _escaped(name)
            for name in names
        )
        found[split] = list(dict.fromkeys(patterns))
    return found


def card_text(before: str, patterns: Mapping[str, Sequence[str]]) -> str:
    """Return the text of a README.md with the config of the splits."""
    config = [f"- config_name: {_CONFIG}", "  data_files:"]
    for split, paths in patterns.items():
        config += [f"  - split: {split}", "    path:", *(f"    - {json.dumps(path)}" for path in paths)]
    before = before.replace("\r\n", "\n")
    head = _HEAD.match(before)
    kept = "" if head is None else head[1]
    text = before if head is None else before[head.end() :]
    block = _CONFIGS.search(kept)
    others = [] if block is None else list(_other_configs(block[0]))
    configs = "\n".join(["configs:", *config, *others]) + "\n"
    kept = f"{kept}{configs}" if block is None else f"{kept[: block.start()]}{configs}{kept[block.end() :]}"
    return f"---\n{kept}---\n{text}" if head is not None else f"---\n{kept}---\n\n{text}"


def _other_configs(block: str) -> Iterable[str]:
    """Yield the lines of the configs of other programs: all but the config of this library."""
    lines = [line for line in block.splitlines()[1:] if line.strip()]
    indent = next((len(line) - len(line.lstrip()) for line in lines), 0)
    items: list[list[str]] = []
    for line in lines:
        if line[indent : indent + 1] == "-":
            items.append([])
        if items:
            items[-1].append(line[indent:])
    for item in items:
        named = _NAMED.search("\n".join(item))
        if named is not None and named[1] != _CONFIG:
            yield from item


def _folder(name: str) -> str:
    return name[: name.rfind("/") + 1]


def _escaped(name: str) -> str:
    """Return a pattern that matches only this name."""
    return re.sub(r"([*?\[])", r"[\1]", name)
