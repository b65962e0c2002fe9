"""Files that lie where the metadata of a dataset is to be written, and are none of it: they are somebody else's."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ledgerbeam.errors import SourceNotFoundError, UsageError
from ledgerbeam.io import Options, stat
from ledgerbeam.io.storage.ranges import RangeReader

__all__ = [
    "CONFIG_OF_LIT",
    "FIELDS_OF_SHAR",
    "INDEX_OF_LIT",
    "META_OF_ENERGON",
    "PACK",
    "WIDS",
    "refuse_foreign",
]

_HEAD_BYTES = 64 * 1024

WIDS = re.compile(rb'\s*\{(?s:.*)"(?:__kind__|wids_version|shardlist)"')
CONFIG_OF_LIT = re.compile(rb"\s*\{(?s:.*)\.tar")
INDEX_OF_LIT = re.compile(rb'\s*\{\s*(?:\}|"(?s:.*)\.tar"\s*:\s*\{)')
FIELDS_OF_SHAR = re.compile(rb'\s*\{(?s:.*)"cuts"\s*:\s*\[')
PACK = re.compile(rb"IDXPACK")
"""How a file of a kind begins."""

META_OF_ENERGON = {
    "dataset.yaml": re.compile(rb"(?s:.*)__(?:class|module)__"),
    "split.yaml": re.compile(rb"(?s:.*)split_parts"),
    ".info.json": re.compile(rb'\s*\{(?s:.*)"(?:shard_counts|energon_version)"'),
    "index.sqlite": re.compile(rb"SQLite format 3\0"),
    "index.uuid": re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\s*\Z"),
}
"""The same of the files in `.nv-meta`."""


def refuse_foreign(files: Mapping[str, re.Pattern[bytes]], options: Options) -> None:
    """Check that files that are to be written are not there, or that such ones are, which are replaced.

    Args:
        files: How each one begins, by its URL.
        options: Storage options.

    Raises:
        UsageError: One is there that begins otherwise; also StorageError.
    """
    for url, beginning in files.items():
        try:
            found = stat(url, options)
        except SourceNotFoundError:
            continue
        with RangeReader(url, options, listed=found) as reader:
            head = reader.read(0, min(found.size, _HEAD_BYTES))
        if not beginning.match(head):
            raise UsageError(
                f"{url}: expected no file, or one of this metadata, which is replaced; found another file: move it "
                "away, and publish again"
            )
