"""What users write, for type checkers: it is never run. An ignored error must be one, or the checker says so."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import ledgerbeam as lb

Record = dict[str, Any]


def clean(record: Record) -> Record | None:
    return record if record["text"] else None


class Model:
    def __init__(self, scale: int = 1) -> None:
        self.scale = scale

    def __call__(self, record: Record) -> Record | lb.Reject:
        return {"scaled": record["id"] * self.scale}


def jobs() -> lb.Result:
    lb.map(clean, "texts/*.jsonl", output="clean", to="jsonl", task_bytes="20K", workers=2)
    lb.map("cleaning:clean", ["a.jsonl", "b.jsonl"], Path("c.jsonl"), output=Path("clean"), to="tar", task_bytes=20_000)
    lb.map(Model, "*.jsonl", output="out", to="jsonl", set={"scale": 3}, on_error="reject:1%", only_rejected=True)
    lb.map(functools.partial(Model(2)), "*.jsonl", output="out", to="jsonl", options=["--runner=PrismRunner"])
    lb.map(lambda record: record, "*.parquet", output="out", to="parquet", as_="arrow", columns=["a"], progress=False)
    lb.index("*.jsonl", index_root="indexes", force=True)
    lb.convert("*.tar", output="out", to="shar", fields={"recording": "wav"}, on_job_change="restart")
    lb.tokenize("*.jsonl", output="tokens", tokenizer="bytes", key=["a", "b"], split_sentences=str.splitlines)
    lb.materialize(list, output="out", to="jsonl", epochs=2, task_records=100)
    lb.merge("tokens/*", output="all")
    lb.publish("progress", as_="webdataset", part={"val": "b*", "train": "*"})
    return lb.verify("*.jsonl", deep=True).raise_for_failures()


def wrong_jobs() -> None:
    lb.map(clean, "*.jsonl", to="jsonl")  # type: ignore[call-arg]
    lb.map(clean, "*.jsonl", output="out", to="jsonl", outputs="out")  # type: ignore[call-arg]
    lb.map(clean, "*.jsonl", output="out", to="jsonl", group="some")  # type: ignore[arg-type]
    lb.map(3, "*.jsonl", output="out", to="jsonl")  # type: ignore[arg-type]
    lb.index("*.jsonl", workers="many")  # type: ignore[arg-type]


def results(result: lb.Result) -> tuple[int, int, dict[str, Any]]:
    failed: list[str] = [row["error"] for row in result.failures]
    names: list[str] = [row["name"] for row in lb.open_ledger("progress").outputs()]
    return len(failed) + len(result.rejects), result.records.read + len(names), result.stats


def records(url: str) -> Any:
    found = lb.open(url)
    if isinstance(found, lb.RecordStream):
        return found.why, list(found)
    first = lb.open(lb.index_source(url), indexed=True)
    stream: lb.RecordStream = lb.open(url, indexed=False)
    return len(first), first[0], found[3], found.read_many([1, 2]), next(iter(stream))
