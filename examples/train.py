"""Training that resumes exactly after a kill: the same batches and the same losses, bit for bit.

    python examples/train.py FOLDER [--steps N] [--die-at STEP]

The model is a bag of words, which learns whether a line of arithmetic is a sum or a product. The program writes to
FOLDER the data, `checkpoint.json` (the weights and the state of the graph) and `losses.txt`, a line for each step. Run
it again after a kill. Besides ledgerbeam it needs only numpy.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from ledgerbeam.io import encode_jsonl, publish_bytes, write_index
from ledgerbeam.iterators import Buckets, Filter, GlobalShuffle, IndexedManifest, IteratorNode, Map, Mux, Repeat

FILES = 4
LINES = 500
WORDS = 64
EVERY = 10
"""Steps between two checkpoints."""


def write_data(folder: Path) -> list[str]:
    """Write missing sources and their indexes, and return their URLs. Two have sums, the others products."""
    urls = []
    for number in range(FILES):
        url = str(folder / f"part-{number}.jsonl")
        urls.append(url)
        if not os.path.exists(f"{url}.idx"):
            data, offsets = encode_jsonl(list(write_lines(number)))
            publish_bytes(url, data)
            write_index(f"{url}.idx", offsets)
    return urls


def write_lines(number: int) -> Iterator[dict[str, Any]]:
    """Yield the records of a source, the same at each call."""
    chance = random.Random(number)
    sign, label = ("+", 0) if number < FILES // 2 else ("*", 1)
    for _ in range(LINES):
        terms = [str(chance.randrange(100)) for _ in range(chance.randrange(1, 8))]
        yield {"text": f" {sign} ".join(terms), "label": label}


def build_graph(urls: list[str]) -> IteratorNode:
    """Build the graph: shuffle sums and products in each epoch, mix them, drop a word, and batch texts by length."""
    sums, products = (Repeat(GlobalShuffle(*map(IndexedManifest, part), seed=7)) for part in (urls[:2], urls[2:]))
    mixed = Mux(sums, products, weights=[2, 1], seed=1)
    noisy = Map(Filter(mixed, has_a_sign), drop_a_word, seed=3)
    return Buckets(noisy, count_words, [5, 9], max_cost=160, buffer_size=300, seed=5)


def has_a_sign(record: dict[str, Any]) -> bool:
    return " " in record["text"]


def count_words(record: dict[str, Any]) -> int:
    return len(record["text"].split())


def drop_a_word(record: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """Drop a random word. `chance` is another one in each epoch, and the same one when the item is built again."""
    words = record["text"].split()
    del words[chance.randrange(len(words))]
    return {**record, "text": " ".join(words)}


def features(batch: list[dict[str, Any]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the counts of words, by hash, of shape (batch, WORDS), and the labels."""
    counts = np.zeros((len(batch), WORDS))
    for row, record in enumerate(batch):
        for word in record["text"].split():
            counts[row, sum(word.encode()) % WORDS] += 1
    return counts, np.array([float(record["label"]) for record in batch])


def step(weights: NDArray[np.float64], batch: list[dict[str, Any]]) -> float:
    """Do one step of logistic regression: update the weights, and return the loss before the update."""
    counts, labels = features(batch)
    guesses = 1 / (1 + np.exp(-counts @ weights))
    loss = -np.mean(labels * np.log(guesses + 1e-9) + (1 - labels) * np.log(1 - guesses + 1e-9))
    weights -= 0.05 * counts.T @ (guesses - labels) / len(batch)
    return float(loss)


def train(folder: Path, steps: int, die_at: int | None) -> None:
    graph = build_graph(write_data(folder))
    checkpoint, losses = folder / "checkpoint.json", folder / "losses.txt"
    weights, done = np.zeros(WORDS), 0
    if checkpoint.exists():
        saved = orjson.loads(checkpoint.read_bytes())
        graph.load_state_dict(saved["graph"])
        weights, done = np.array(saved["weights"]), saved["step"]
        kept = losses.read_text().splitlines(keepends=True)[:done]
        losses.write_text("".join(kept))  # the steps after the checkpoint are repeated
        print(f"resuming after step {done}")
    with losses.open("a") as file:
        for batch in graph:
            if done == steps:
                break
            done += 1
            print(f"{done} {len(batch)} {step(weights, batch).hex()}", file=file, flush=True)
            if done % EVERY == 0:
                state = {"step": done, "weights": weights.tolist(), "graph": graph.state_dict()}
                publish_bytes(str(checkpoint), orjson.dumps(state))
            if done == die_at:
                os.kill(os.getpid(), signal.SIGKILL)
    print(f"{done} steps, last loss {float.fromhex(losses.read_text().split()[-1]):.4f}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Train, and resume exactly after a kill.")
    parser.add_argument("folder", type=Path, help="folder of the data, the checkpoint and the losses")
    parser.add_argument("--steps", type=int, default=200, help="number of steps in total (default: 200)")
    parser.add_argument("--die-at", type=int, help="kill this process after this step, as if the machine had failed")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    train(args.folder, args.steps, args.die_at)
    return 0


if __name__ == "__main__":
    sys.exit(main())
