"""Patterns of dataset metadata. A publication replaces only matching files; others are foreign."""

from __future__ import annotations

import re

WIDS = re.compile(rb'\s*\{(?s:.*)"(?:__kind__|wids_version|shardlist)"')
CONFIG_OF_LIT = re.compile(rb"\s*\{(?s:.*)\.tar")
INDEX_OF_LIT = re.compile(rb'\s*\{\s*(?:\}|"(?s:.*)\.tar"\s*:\s*\{)')
FIELDS_OF_SHAR = re.compile(rb'\s*\{(?s:.*)"cuts"\s*:\s*\[')
PACK = re.compile(rb"IDXPACK")
"""Patterns of the start of metadata files."""

META_OF_ENERGON = {
    "dataset.yaml": re.compile(rb"(?s:.*)__(?:class|module)__"),
    "split.yaml": re.compile(rb"(?s:.*)split_parts"),
    ".info.json": re.compile(rb'\s*\{(?s:.*)"(?:shard_counts|energon_version)"'),
    "index.sqlite": re.compile(rb"SQLite format 3\0"),
    "index.uuid": re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\s*\Z"),
}
"""Patterns of the start of the files in `.nv-meta`."""
