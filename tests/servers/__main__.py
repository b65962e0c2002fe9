"""Brings the servers and runs them: `python -m tests.servers make`, `python -m tests.servers flink`."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from tests.servers import pins
from tests.servers.make import MakeError, make
from tests.servers.pins import PIECES


def _exports(server: Any) -> str:
    return "\n".join(f"export {name}={value}" for name, value in server.env.items())


def _storage_options(server: Any) -> str:
    return f"--storage-options '{json.dumps(server.options)}'"


def _beam_options(server: Any) -> str:
    return " ".join(server.options)


def _cluster(cluster: Any) -> str:
    return f"# {cluster.endpoint}\n{_beam_options(cluster)}"


def _dataflow(service: Any) -> str:
    return f"# with {pins.DATAFLOW.python} as the launcher\n{_exports(service)}\n{_beam_options(service)}"


# By name: the module, imported when it is run, its context manager, and what to print of the server.
_SERVERS: dict[str, tuple[str, str, Callable[[Any], str]]] = {
    "s3": ("s3", "s3_server", _exports),
    "gcs": ("gcs", "gcs_server", _storage_options),
    "azure": ("azure", "azure_server", _storage_options),
    "prism": ("prism", "prism", _beam_options),
    "flink": ("flink", "flink_cluster", _cluster),
    "spark": ("spark", "spark_cluster", _cluster),
    "dataflow": ("dataflow", "dataflow", _dataflow),
    "workers": ("engine", "worker_pool", _beam_options),
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
    module, start, show = _SERVERS[arguments.command]
    try:
        with getattr(importlib.import_module(f"tests.servers.{module}"), start)() as server:
            print(show(server), flush=True)
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
