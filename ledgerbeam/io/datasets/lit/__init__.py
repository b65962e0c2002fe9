"""LIT datasets: tar shards of samples in several modalities, in folds such as `train`, and an index of each fold.

docs/lit.md lists the differences from the published package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledgerbeam._base.lazy import lazy_names

if TYPE_CHECKING:
    from ledgerbeam.io.datasets.lit.codecs import CODECS, Codec, decode_rle, register_codec
    from ledgerbeam.io.datasets.lit.dataset import LitDataset
    from ledgerbeam.io.datasets.lit.index import LitConfig, read_config, write_lit_index, write_lit_metadata
    from ledgerbeam.io.datasets.lit.writer import LitWriter

__all__ = [
    "CODECS",
    "Codec",
    "LitConfig",
    "LitDataset",
    "LitWriter",
    "decode_rle",
    "read_config",
    "register_codec",
    "write_lit_index",
    "write_lit_metadata",
]

if not TYPE_CHECKING:  # a type checker would take any name for one that is there
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "codecs": "CODECS Codec decode_rle register_codec",
            "dataset": "LitDataset",
            "index": "LitConfig read_config write_lit_index write_lit_metadata",
            "writer": "LitWriter",
        },
    )
