"""Training on packs that stops on some ranks and continues on others, with the same losses, bit for bit.

    python examples/train_packs.py FOLDER --ranks 4 --steps 6
    python examples/train_packs.py FOLDER --ranks 3 --steps 12

The model predicts a byte from the byte before it. A step reads 12 packs, divided among the ranks. The losses are those
of one undisturbed run with any number of ranks: the packs of a step are the same, and their gradients are added in the
order of the packs. The program writes to FOLDER the data, `checkpoint.json` (the weights and the merged states of the
graph) and `losses.txt`, a line for each step. It needs torch.
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch  # type: ignore[import-not-found]
from torch import distributed, multiprocessing
from torch.nn import functional  # type: ignore[import-not-found]
from torch.utils.data import DataLoader  # type: ignore[import-not-found]

import ledgerbeam
from ledgerbeam.io import publish_bytes
from ledgerbeam.io.datasets.megatron import write_megatron
from ledgerbeam.iterators import IteratorNode, Mux, Packed, Repeat, merge_states
from ledgerbeam.iterators.torch_data import GraphDataset

LENGTH = 128
BATCH = 12
"""Packs of a step, of all ranks together: divisible by the numbers of ranks."""

SOURCES = {"code": 500, "prose": 300}


def write_packs(folder: Path) -> None:
    """Write two datasets of bytes, and pack them, unless the packs are there."""
    for seed, (name, count) in enumerate(SOURCES.items()):
        prefix, packs = f"{folder}/{name}", f"{folder}/{name}-packs"
        if Path(packs, "_packs.arrow").exists():
            continue
        chance = np.random.default_rng(seed)
        with write_megatron(prefix, np.uint16) as builder:
            for length in chance.integers(5, 90, count):
                builder.add_document(chance.integers(97, 123, length).cumsum() % 251)
        ledgerbeam.pack(prefix, length=LENGTH, output=packs, eod=255, ledger=f"{folder}/{name}-ledger", progress=False)


def build_graph(folder: Path) -> IteratorNode:
    """Mix both sources by tokens, 60:40."""
    code, prose = (Repeat(Packed(f"{folder}/{name}-packs", shuffle=True), 3) for name in SOURCES)
    return Mux(code, prose, weights=[60, 40], weights_in="tokens")


def loss_of(weights: torch.Tensor, pack: dict[str, Any]) -> torch.Tensor:
    """Return the mean loss of a pack. No token is predicted from another document, and no padding."""
    tokens, segments = pack["tokens"], pack["segments"]
    is_predicted = (segments[1:] == segments[:-1]) & (segments[1:] >= 0)
    return functional.cross_entropy(weights[tokens[:-1][is_predicted]], tokens[1:][is_predicted])


def train(rank: int, ranks: int, folder: Path, steps: int) -> None:
    """Train one rank up to a step, and write the checkpoint."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"file://{folder}/rendezvous", rank=rank, world_size=ranks)
    checkpoint, done, weights = folder / "checkpoint.json", 0, torch.zeros(256, 256, requires_grad=True)
    dataset = GraphDataset(build_graph(folder))  # it finds its rank itself
    if checkpoint.exists():
        saved = json.loads(checkpoint.read_text())
        done, weights = saved["step"], torch.tensor(saved["weights"], requires_grad=True)
        dataset.load_merged(saved["graph"])
    packs, losses = iter(DataLoader(dataset, batch_size=None)), []
    for _ in range(done, steps):
        own = []
        for pack in islice(packs, BATCH // ranks):
            loss = loss_of(weights, pack)
            (gradient,) = torch.autograd.grad(loss, weights)
            own.append(torch.cat([loss.detach().reshape(1), gradient.reshape(-1)]))
        gathered = [torch.empty(len(own), own[0].numel()) for _ in range(ranks)]
        distributed.all_gather(gathered, torch.stack(own))
        ordered = torch.stack(gathered, 1).reshape(BATCH, -1)  # pack k of rank r is at place k * ranks + r
        mean = sum(ordered) / BATCH  # one after the other: the order of a sum changes its last bits
        losses.append(float(mean[0]).hex())
        with torch.no_grad():
            weights -= 20 * mean[1:].reshape(256, 256)
    states: list[Any] = [None] * ranks
    distributed.all_gather_object(states, dataset.state_dict())
    if rank == 0:
        merged = merge_states(build_graph(folder), states)
        state = {"step": steps, "weights": weights.tolist(), "graph": merged}
        with (folder / "losses.txt").open("a") as file:
            file.writelines(f"{step} {loss}\n" for step, loss in enumerate(losses, done + 1))
        publish_bytes(str(checkpoint), json.dumps(state).encode())
    distributed.barrier()
    distributed.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(description="Train on packs, and continue with another number of ranks.")
    parser.add_argument("folder", type=Path, help="folder of the data, the checkpoint and the losses")
    parser.add_argument(
        "--ranks",
        type=int,
        choices=[number for number in range(1, BATCH + 1) if not BATCH % number],
        default=4,
        help=f"number of processes, a divisor of {BATCH} (default: 4)",
    )
    parser.add_argument("--steps", type=int, default=12, help="number of steps in total (default: 12)")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    write_packs(args.folder)
    (args.folder / "rendezvous").unlink(missing_ok=True)
    multiprocessing.spawn(train, (args.ranks, args.folder.resolve(), args.steps), args.ranks)
    last = (args.folder / "losses.txt").read_text().split()[-1]
    print(f"{args.steps} steps, last loss {float.fromhex(last):.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
