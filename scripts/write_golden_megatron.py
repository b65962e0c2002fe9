"""Writes tests/golden/megatron: small datasets that Megatron makes, not ledgerbeam.

Run from the root of the repository with a Python that has megatron-core 0.16.1 (`scripts/peers.sh` makes one):

    PYTHONPATH=. .cache/peers/bin/python scripts/write_golden_megatron.py tests/golden/megatron
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from tests.io.datasets.megatron.content import documents, golden


def main(folder: Path) -> None:
    import torch  # type: ignore[import-not-found]
    from megatron.core.datasets.indexed_dataset import (  # type: ignore[import-not-found]
        IndexedDatasetBuilder,
    )

    folder.mkdir(parents=True, exist_ok=True)
    for name, dtype, shape, multimodal in golden():
        builder = IndexedDatasetBuilder(str(folder / f"{name}.bin"), getattr(np, dtype), multimodal)
        for document in documents(dtype, shape):
            for tokens, mode in document:
                builder.add_item(torch.from_numpy(tokens), mode)
            builder.end_document()
        builder.finalize(str(folder / f"{name}.idx"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
