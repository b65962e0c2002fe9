"""Megatron datasets: token sequences grouped into documents, in `<prefix>.bin` and `<prefix>.idx`.

The layout stands in `layout`; what is read and written, and where we differ from Megatron, in docs/megatron.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledgerbeam.lazy_names import lazy_names

if TYPE_CHECKING:
    from ledgerbeam.io.megatron.documents import Document as Document
    from ledgerbeam.io.megatron.documents import MegatronDocuments as MegatronDocuments
    from ledgerbeam.io.megatron.documents import encode_documents as encode_documents
    from ledgerbeam.io.megatron.layout import Layout as Layout
    from ledgerbeam.io.megatron.layout import optimal_dtype as optimal_dtype
    from ledgerbeam.io.megatron.merge import merge_megatron as merge_megatron
    from ledgerbeam.io.megatron.reader import MegatronReader as MegatronReader
    from ledgerbeam.io.megatron.writer import MegatronBuilder as MegatronBuilder
    from ledgerbeam.io.megatron.writer import encode_part as encode_part
    from ledgerbeam.io.megatron.writer import write_megatron as write_megatron

__all__ = [
    "Document",
    "Layout",
    "MegatronBuilder",
    "MegatronDocuments",
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
            "Document": "documents",
            "Layout": "layout",
            "MegatronBuilder": "writer",
            "MegatronDocuments": "documents",
            "MegatronReader": "reader",
            "encode_documents": "documents",
            "encode_part": "writer",
            "merge_megatron": "merge",
            "optimal_dtype": "layout",
            "write_megatron": "writer",
        },
    )
