"""Megatron's side of the conformance tests; runs in the peers' environment."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch  # type: ignore[import-not-found]
from megatron.core.datasets.indexed_dataset import (  # type: ignore[import-not-found]
    IndexedDataset,
    IndexedDatasetBuilder,
)

from benchmarks.serve import serve
from tests.io.datasets.megatron.content import documents


def build(prefix: str, dtype: str, shape: str, multimodal: bool, way: str) -> None:
    """Write the documents of a shape, item by item or a document at a time."""
    builder = IndexedDatasetBuilder(f"{prefix}.bin", getattr(np, dtype), multimodal)
    for document in documents(dtype, shape):
        if way == "items":
            for tokens, mode in document:
                builder.add_item(torch.from_numpy(tokens), mode)
            builder.end_document()
        else:
            flat = np.concatenate([np.empty(0, dtype), *(tokens for tokens, _ in document)])
            builder.add_document(flat, [len(tokens) for tokens, _ in document], [mode for _, mode in document])
    builder.finalize(f"{prefix}.idx")


def tokenize(texts: list[list[str]], prefix: str, dtype: str, eod: int | None) -> None:
    """Build a dataset of UTF-8 bytes as `tools/preprocess_data.py` does: `eod` after the last sentence.

    A sentence without tokens is left out, and a document without sentences becomes an empty one.
    """
    builder = IndexedDatasetBuilder(f"{prefix}.bin", getattr(np, dtype))
    for sentences in texts:
        tokens = [list(sentence.encode()) for sentence in sentences]
        tokens = [sentence for sentence in tokens if sentence]
        if tokens and eod is not None:
            tokens[-1].append(eod)
        builder.add_document([token for sentence in tokens for token in sentence], [len(part) for part in tokens])
    builder.finalize(f"{prefix}.idx")


def merge(prefixes: list[str], output: str, dtype: str, multimodal: bool) -> None:
    builder = IndexedDatasetBuilder(f"{output}.bin", getattr(np, dtype), multimodal)
    for prefix in prefixes:
        builder.add_index(prefix)
    builder.finalize(f"{output}.idx")


def read(prefix: str, mmap: bool, multimodal: bool, asked: list[Any]) -> list[Any]:
    """Answers requests as `answers` of test_megatron.py does."""
    dataset = IndexedDataset(prefix, multimodal, mmap)
    found = []
    for name, *arguments in asked:
        try:
            match name:
                case "item":
                    answer = dataset[arguments[0]]
                case "slice":
                    answer = dataset[slice(*arguments)]
                case _:
                    answer = dataset.get(*arguments)
            found.append(described(answer))
        except Exception as error:  # noqa: BLE001 - the test says which are expected
            found.append(type(error).__name__)
    return [str(np.dtype(dataset.index.dtype)), len(dataset), dataset.document_indices.tolist(), found]


def described(answer: Any) -> Any:
    """Tokens as hexadecimal bytes, so that all dtypes compare exactly."""
    if isinstance(answer, np.ndarray) and answer.dtype == np.int8 and answer.ndim == 1:
        return answer.tobytes().hex()
    if isinstance(answer, (list, tuple)):
        return [described(part) for part in answer]
    return answer.tobytes().hex() if isinstance(answer, np.ndarray) else int(answer)


if __name__ == "__main__":
    serve({"build": build, "merge": merge, "read": read, "tokenize": tokenize})
