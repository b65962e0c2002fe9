"""The programs that the table of whole jobs compares: `python -m benchmarks.job_programs NAME SOURCES OUT`.

Each program applies `functions.describe` to the records of the JSONL files of a folder, in two processes, and writes
JSONL to another folder. Peers run in their own environment, as their documentation shows. No program uses ledgerbeam.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.functions import describe

PROCESSES = 2

PIECE = 64 << 20
"""Number of bytes that the bare loop reads from a store, and writes to it, at once. Whole objects of the job of 10 GB,
as Python objects, do not fit into memory."""


def bare(sources: str, out: str) -> None:
    """Read lines, decode, call, encode and write, and do nothing else: the least cost of the work."""
    _in_processes(_bare_file, sources, out)


def _bare_file(source: str, out: str) -> None:
    orjson: Any = importlib.import_module("orjson")
    loads, dumps, end = orjson.loads, orjson.dumps, orjson.OPT_APPEND_NEWLINE
    with open(source, "rb") as lines, open(out, "wb") as file:
        file.writelines(dumps(describe(loads(line)), None, end) for line in lines)


def bare_s3(sources: str, out: str) -> None:
    """Do the same with objects of a store, in large pieces. The environment names the store and its credentials."""
    _in_processes(_bare_object, sources, out)


def _bare_object(source: str, out: str) -> None:
    orjson: Any = importlib.import_module("orjson")
    store = _s3()
    loads, dumps, end = orjson.loads, orjson.dumps, orjson.OPT_APPEND_NEWLINE
    size, left = store.size(source), b""
    with store.open(out, "wb", block_size=PIECE) as file:
        for start in range(0, size, PIECE):
            piece = store.cat_file(source, start=start, end=min(start + PIECE, size))
            *lines, left = (left + piece).split(b"\n")
            file.write(b"".join([dumps(describe(loads(line)), None, end) for line in lines]))
    if left:
        raise RuntimeError(f"{source}: the last line has no end")


def polars(sources: str, out: str) -> None:
    _in_processes(_polars_file, sources, out)


def _polars_file(source: str, out: str) -> None:
    library: Any = importlib.import_module("polars")
    rows = library.read_ndjson(source).iter_rows(named=True)
    library.DataFrame([describe(row) for row in rows]).write_ndjson(out)


def beam(sources: str, out: str) -> None:
    library: Any = importlib.import_module("apache_beam")
    options: Any = importlib.import_module("apache_beam.options.pipeline_options")
    orjson: Any = importlib.import_module("orjson")
    words = ["--runner=FnApiRunner", "--direct_running_mode=multi_processing", f"--direct_num_workers={PROCESSES}"]
    with library.Pipeline(options=options.PipelineOptions(words)) as pipeline:
        (
            pipeline
            | library.io.ReadFromText(f"{sources}/*.jsonl", coder=library.coders.BytesCoder())
            | library.Map(orjson.loads)
            | "Describe" >> library.Map(describe)
            | "Encode" >> library.Map(orjson.dumps)
            | library.io.WriteToText(f"{out}/part", ".jsonl", coder=library.coders.BytesCoder())
        )


def datatrove(sources: str, out: str) -> None:
    executor: Any = importlib.import_module("datatrove.executor").LocalPipelineExecutor
    readers: Any = importlib.import_module("datatrove.pipeline.readers")
    writers: Any = importlib.import_module("datatrove.pipeline.writers")
    executor(
        pipeline=[
            readers.JsonlReader(sources, glob_pattern="*.jsonl", adapter=_document),
            _describe_documents,
            writers.JsonlWriter(out, compression=None, adapter=_record),
        ],
        tasks=len(list(Path(sources).glob("*.jsonl"))),
        workers=PROCESSES,
        logging_dir=f"{out}.logs",
    ).run()


def _document(reader: Any, data: dict[str, Any], path: str, id_in_file: int | str) -> dict[str, Any]:
    del reader, path, id_in_file
    return {"text": data.pop("text"), "id": data.pop("id"), "metadata": data}


def _describe_documents(data: Iterator[Any], rank: int = 0, world_size: int = 1) -> Iterator[Any]:
    del rank, world_size
    for document in data:
        document.metadata = describe({"id": document.id, **document.metadata, "text": document.text})
        yield document


def _record(writer: Any, document: Any) -> dict[str, Any]:
    del writer
    return {name: value for name, value in document.metadata.items() if name != "file_path"}


def ray(sources: str, out: str) -> None:
    library: Any = importlib.import_module("ray")
    data: Any = importlib.import_module("ray.data")
    library.init(num_cpus=PROCESSES, include_dashboard=False, log_to_driver=False)
    try:
        data.read_json(sources, lines=True).map(describe).write_json(out)
    finally:
        library.shutdown()


def _in_processes(work: Callable[[str, str], None], sources: str, out: str) -> None:
    is_remote = "://" in sources
    names = _s3().glob(f"{sources}/*.jsonl") if is_remote else [str(path) for path in Path(sources).glob("*.jsonl")]
    if not is_remote:
        os.makedirs(out)
    pairs = [(name, f"{out}/{name.rpartition('/')[2]}") for name in sorted(names)]
    # Spawned: Polars does not bear a fork.
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        pool.starmap(work, pairs, chunksize=1)


def _s3() -> Any:
    fsspec: Any = importlib.import_module("fsspec")
    return fsspec.filesystem("s3")


PROGRAMS = {program.__name__: program for program in (bare, bare_s3, polars, beam, datatrove, ray)}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](*sys.argv[2:])
