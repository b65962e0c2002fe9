"""Brings the servers and runs them: `python -m tests.servers make`, `python -m tests.servers flink`."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator

from tests.servers.make import MakeError, make
from tests.servers.pins import PIECES


@contextlib.contextmanager
def _s3() -> Iterator[str]:
    from tests.servers import s3

    with s3.s3_server() as server:
        yield "\n".join(f"export {name}={value}" for name, value in server.env.items())


@contextlib.contextmanager
def _gcs() -> Iterator[str]:
    from tests.servers import gcs

    with gcs.gcs_server() as server:
        yield f"--storage-options '{json.dumps(server.options)}'"


@contextlib.contextmanager
def _azure() -> Iterator[str]:
    from tests.servers import azure

    with azure.azure_server() as server:
        yield f"--storage-options '{json.dumps(server.options)}'"


@contextlib.contextmanager
def _prism() -> Iterator[str]:
    from tests.servers import prism

    with prism.prism() as server:
        yield " ".join(server.options)


@contextlib.contextmanager
def _flink() -> Iterator[str]:
    from tests.servers import flink

    with flink.flink_cluster() as cluster:
        yield f"# {cluster.endpoint}\n{' '.join(cluster.options)}"


@contextlib.contextmanager
def _spark() -> Iterator[str]:
    from tests.servers import spark

    with spark.spark_cluster() as cluster:
        yield f"# {cluster.endpoint}\n{' '.join(cluster.options)}"


@contextlib.contextmanager
def _dataflow() -> Iterator[str]:
    from tests.servers import dataflow, pins

    with dataflow.dataflow() as service:
        variables = "\n".join(f"export {name}={value}" for name, value in service.env.items())
        yield f"# with {pins.DATAFLOW.python} as the launcher\n{variables}\n{' '.join(service.options)}"


@contextlib.contextmanager
def _workers() -> Iterator[str]:
    from tests.servers import worker_pool

    with worker_pool.worker_pool() as pool:
        yield " ".join(pool.options)


_SERVERS: dict[str, Callable[[], contextlib.AbstractContextManager[str]]] = {
    "s3": _s3,
    "gcs": _gcs,
    "azure": _azure,
    "prism": _prism,
    "flink": _flink,
    "spark": _spark,
    "dataflow": _dataflow,
    "workers": _workers,
}


def main() -> int:
    """Run one command; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.servers", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make", help="bring what is missing into .cache/")
    making.add_argument("names", nargs="*", metavar="NAME", help=f"only these: {', '.join(PIECES)}")
    commands.add_parser("image", help="build the worker image and run a job in it, as the worker pool of Flink")
    for name in _SERVERS:
        commands.add_parser(name, help=f"run {name} until Ctrl-C; prints how to reach it")
    arguments = parser.parse_args()
    if arguments.command == "make":
        return _make(parser, arguments.names)
    if arguments.command == "image":
        return _image()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with _SERVERS[arguments.command]() as how:
            print(how, flush=True)
            while True:
                time.sleep(3600)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _make(parser: argparse.ArgumentParser, names: list[str]) -> int:
    unknown = sorted(set(names) - set(PIECES))
    if unknown:
        parser.error(f"there is no {unknown[0]}; there are {', '.join(PIECES)}")
    try:
        make(names)
    except MakeError as error:
        print(f"servers: {error}", file=sys.stderr)
        return 1
    return os.EX_OK


def _image() -> int:
    from tests.servers.image import missing, try_out

    lacking = missing()
    if lacking:
        print(f"image: {lacking}", file=sys.stderr)
        return 1
    print(try_out())
    return os.EX_OK


if __name__ == "__main__":
    sys.exit(main())
