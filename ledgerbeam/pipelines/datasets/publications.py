"""Index files and metadata of Megatron, Shar, LIT and WebDataset for the shards of a complete job."""

from __future__ import annotations

import os

from ledgerbeam.errors import UsageError
from ledgerbeam.io.datasets import lit, megatron, webdataset
from ledgerbeam.io.datasets.lit.index import CONFIG, index_name
from ledgerbeam.io.datasets.megatron.packs import write_pack_catalog
from ledgerbeam.io.datasets.megatron.writer import require_replaceable
from ledgerbeam.io.datasets.shar.reader import write_shar_fields
from ledgerbeam.pipelines.datasets.megatron import parts_by_dataset
from ledgerbeam.pipelines.outputs import metadata


def publish_wids(dataset: metadata.PublishedShards) -> metadata.Published:
    """Write `wids.json`, the index for webdataset's wids, beside the shards."""
    dataset.require_suffix(".tar", "use --to tar")
    dataset.require_root()
    dataset.require_whole()
    url = dataset.url("wids.json")
    dataset.refuse_foreign({url: metadata.WIDS})
    webdataset.write_wids_index(url, dataset.shards, dataset.options, name=dataset.name)
    return [url], {}


def publish_energon(dataset: metadata.PublishedShards) -> metadata.Published:
    """Write the folder `.nv-meta` with the metadata for Energon, beside the shards."""
    dataset.require_suffix(".tar", "use --to tar")
    dataset.require_root()
    dataset.refuse_foreign({dataset.url(f".nv-meta/{name}"): look for name, look in metadata.META_OF_ENERGON.items()})
    parts = {part: [shard.name for shard in shards if shard.records] for part, shards in dataset.parts.items()}
    return webdataset.write_energon(dataset.root, dataset.shards, dataset.options, splits=parts), {}


def publish_lit(dataset: metadata.PublishedShards) -> metadata.Published:
    """Write the indexes of all parts and the configuration for LIT, beside the shards."""
    dataset.require_suffix(".tar", "use --to tar")
    dataset.require_root()
    indexes = {dataset.url(index_name(part)): metadata.INDEX_OF_LIT for part in dataset.parts}
    dataset.refuse_foreign({dataset.url(CONFIG): metadata.CONFIG_OF_LIT, **indexes})
    return lit.write_lit_metadata(dataset.root, dataset.parts, dataset.options), {}


def publish_shar(dataset: metadata.PublishedShards) -> metadata.Published:
    """Write `fields.json`, the list of the fields of a Shar dataset, beside its shards."""
    dataset.require_whole()
    url = dataset.place("fields.json")
    dataset.refuse_foreign({url: metadata.FIELDS_OF_SHAR})
    write_shar_fields(url, metadata.shar_fields(dataset), dataset.options)
    return [url], {}


def publish_megatron(dataset: metadata.PublishedShards) -> metadata.Published:
    """Merge the parts into Megatron datasets."""
    dataset.require_suffix(".bin", "use ledgerbeam tokenize, or --to megatron")
    dataset.require_whole()
    if dataset.output is None:
        raise UsageError("--as megatron: the job has merged its parts; to merge them again, add --output PREFIX")
    parts = parts_by_dataset(dataset.shards, dataset.suffixes, ledger=dataset.ledger)
    for suffix, shards in parts.items():  # check all datasets before the first merge
        require_replaceable(dataset.output + suffix, sum(shard.size for shard in shards), dataset.options)
    for suffix, shards in parts.items():
        files = [dataset.url(shard.name) for shard in shards]
        megatron.merge_megatron(files, dataset.output + suffix, dataset.options)
    return [f"{dataset.output}{suffix}{ending}" for suffix in parts for ending in (".bin", ".idx")], {}


def publish_packs(dataset: metadata.PublishedShards) -> metadata.Published:
    """Write the catalog of a folder of packs."""
    dataset.require_root()
    dataset.require_whole()
    dataset.require_suffix(".arrow", "run the job with --on-job-change restart, or with another ledger and output")
    rows = (
        (
            os.fsencode(shard.name),
            shard.records,
            shard.checksum,
            os.fsencode(shard.source),
            shard.source_version,
            shard.source_size,
            shard.first,
        )
        for shard in dataset.shards
    )
    return write_pack_catalog(dataset.root, rows, dataset.options), {}
