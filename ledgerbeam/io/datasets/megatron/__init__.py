"""Megatron datasets: token sequences grouped into documents, in `<prefix>.bin` and `<prefix>.idx`.

In multimodal datasets each sequence also has a mode, a number whose meaning the writer chooses. The module `layout`
describes the files. docs/megatron.md lists the differences from Megatron.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledgerbeam._base.lazy import lazy_names

if TYPE_CHECKING:
    from ledgerbeam.io.datasets.megatron.format import Document, MegatronDocuments, MegatronFormat, encode_documents
    from ledgerbeam.io.datasets.megatron.layout import Layout, optimal_dtype
    from ledgerbeam.io.datasets.megatron.reader import MegatronReader
    from ledgerbeam.io.datasets.megatron.writer import MegatronBuilder, encode_part, merge_megatron, write_megatron

__all__ = [
    "Document",
    "Layout",
    "MegatronBuilder",
    "MegatronDocuments",
    "MegatronFormat",
    "MegatronReader",
    "encode_documents",
    "encode_part",
    "merge_megatron",
    "optimal_dtype",
    "write_megatron",
]

if not TYPE_CHECKING:  # a type checker would take any name for one that is there
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "format": "Document MegatronDocuments MegatronFormat encode_documents",
            "layout": "Layout optimal_dtype",
            "reader": "MegatronReader",
            "writer": "MegatronBuilder encode_part merge_megatron write_megatron",
        },
    )
