"""torch's side of the conformance tests: its loaders on our datasets; runs in the peers' environment."""

from __future__ import annotations

import sys
from typing import Any

import torch.utils.data  # type: ignore[import-not-found]

from benchmarks.serve import serve


def load(root: str, packages: str, workers: int, start: str | None) -> list[list[Any]]:
    """Read a LIT dataset of `scene.cls` and `instance.seg8` with a loader. Return labels and pixel sums of each batch.

    `packages` is a folder with our dependencies that the peers' environment lacks.
    """
    sys.path.append(packages)
    from ledgerbeam.io.datasets.lit import LitDataset

    dataset = LitDataset(root, modalities=["scene.cls", "instance.seg8"])
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=4, num_workers=workers, multiprocessing_context=start if workers else None
    )
    return [[labels.tolist(), pixels.sum(dim=(1, 2)).tolist()] for labels, pixels in loader]


if __name__ == "__main__":
    serve({"load": load})
