"""The engines of the matrix, each started once, and the table at the end."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.matrix.runs import EXCHANGES, SOURCES, Contents, Jobs, Row, Store, write_sources
from tests.servers import dataflow, flink, hosts, image, pins, prism, spark
from tests.servers.dataflow import Dataflow
from tests.servers.engine import Engine
from tests.servers.flink import Place, flink_cluster
from tests.servers.s3 import S3Server

COLUMNS = (
    *("clean", "converted", "exchanges", "killed worker", "killed executor", "killed launcher", "rerun", "identical"),
)
TWO_HOSTS = "Flink, 2 hosts"
IMAGE = "Flink, worker image"
DATAFLOW = "Dataflow, run on Prism"
LOCAL = ("This machine, 1 process", "This machine, 2 processes", "FnApiRunner, 1 process", "FnApiRunner, 2 processes")
ENGINES = (*LOCAL, "Prism", DATAFLOW, "Flink", TWO_HOSTS, "Spark", IMAGE)

EXCHANGING = ("Prism", "Flink")  # exchanges, of many jobs each, are run on others with `--exchanges`

rows: list[Row] = []
_references: dict[str, Contents] = {}
_converted: Contents = {}
_exchanged: dict[str, Contents] = {}
notes: list[str] = []  # lines that tests want told below the table


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--exchanges", action="store_true", help="run exchanges on every engine")


@pytest.fixture(scope="session")
def bucket(s3: S3Server) -> str:
    return write_sources(s3)


@pytest.fixture(scope="session")
def reference(jobs: Jobs, tmp_path_factory: pytest.TempPathFactory) -> Contents:
    """What the job leaves on the local runner, undisturbed, with one worker, where the engine's sources are."""
    if jobs.root not in _references:  # rejected records name the URL of their source
        local = _local(jobs, tmp_path_factory)
        local.finish("out")
        _references[jobs.root] = local.left("out")
        assert len(_references[jobs.root]) > 30
    return _references[jobs.root]


@pytest.fixture(scope="session")
def converted(jobs: Jobs, tmp_path_factory: pytest.TempPathFactory) -> Contents:
    """The sources as tar shards, as the local runner writes them with one worker."""
    if not _converted:
        _converted.update(_local(jobs, tmp_path_factory).convert())
        assert len(_converted) == 2 * SOURCES
    return _converted


@pytest.fixture(scope="session")
def exchanged(jobs: Jobs, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Contents]:
    """What the exchanges write on the local runner, undisturbed, with one worker."""
    if not _exchanged:
        local = _local(jobs, tmp_path_factory)
        _exchanged.update({name: local.exchange(name) for name in EXCHANGES})
        assert all(_exchanged.values())
    return _exchanged


def _local(jobs: Jobs, folders: pytest.TempPathFactory) -> Jobs:
    folder = folders.mktemp("reference") / "jobs"
    return Jobs(folder, jobs.server, jobs.root, name="reference", options=["--workers", "1"], engine=None)


@pytest.fixture(scope="session", params=ENGINES)
def jobs(
    request: pytest.FixtureRequest, s3: S3Server, bucket: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Jobs]:
    name: str = request.param
    folder = tmp_path_factory.mktemp("engine")
    with ExitStack() as stack:
        engine: Engine | None = None
        server: Store = s3
        python, env = sys.executable, None
        if name == TWO_HOSTS:
            server, engine = _start_on_two_hosts(folder, stack)
            bucket = write_sources(server)
        elif name == DATAFLOW:
            engine = _start_dataflow(folder, stack)
            server, python, env = engine.storage, pins.DATAFLOW.python, engine.env
            bucket = write_sources(server)
        elif name == IMAGE:
            engine = _start_with_image(folder, s3, stack)
        elif name in STARTS:
            engine = _start(name, folder, s3, stack)
        if engine is not None:
            options = ["--", *engine.options]
        else:
            on_beam = ["--", "--runner=FnApiRunner"] if name.startswith("FnApiRunner") else []
            options = ["--workers", name.partition(", ")[2].split()[0], *on_beam]
        place = "".join(letter for letter in name.lower() if letter.isalnum())
        jobs = Jobs(folder / "jobs", server, bucket, name=place, options=options, engine=engine, python=python, env=env)
        jobs.row.engine = name
        rows.append(jobs.row)
        yield jobs


STARTS: dict[str, tuple[Any, Any]] = {
    "Prism": (prism.missing, prism.prism),
    "Flink": (flink.missing, flink.flink_cluster),
    "Spark": (spark.missing, spark.spark_cluster),
}


def _start(name: str, folder: Path, s3: S3Server, stack: ExitStack) -> Engine:
    missing, start = STARTS[name]
    if missing() is not None:
        pytest.skip(missing())
    engine: Engine = stack.enter_context(start(folder, env={**s3.env, "LEDGERBEAM_CACHE": str(folder / "workers")}))
    return engine


def _start_on_two_hosts(folder: Path, stack: ExitStack) -> tuple[S3Server, Engine]:
    """Start Flink with a task manager and a worker pool on each of two hosts; only the S3 server is common to both."""
    for missing in (flink.missing(), hosts.missing()):
        if missing is not None:
            pytest.skip(missing)
    pair = stack.enter_context(hosts.two_hosts(folder / "hosts"))
    places = [Place(pair.address(host), tuple(pair.prefix(host))) for host in (1, 2)]
    own = str(pair.folder)
    env = {**pair.s3.env, "LEDGERBEAM_CACHE": f"{own}/cache", "TMPDIR": own, "HOME": own}
    engine = stack.enter_context(flink_cluster(folder, env=env, address=pair.address(0), places=places))
    (folder / "jobs").mkdir()
    for name in ("jobs", "job-server", "job-manager", "hosts/store"):
        pair.hide(folder / name)
    return pair.s3, engine


def _start_dataflow(folder: Path, stack: ExitStack) -> Dataflow:
    """Start the service to which Beam's DataflowRunner submits, with everything on an emulator of Cloud Storage."""
    if (missing := dataflow.missing()) is not None:
        pytest.skip(missing)
    return stack.enter_context(dataflow.dataflow(folder, env={"LEDGERBEAM_CACHE": str(folder / "workers")}))


def _start_with_image(folder: Path, s3: S3Server, stack: ExitStack) -> Engine:
    """Start Flink with a container of the worker image as its worker pool; they have only the S3 server in common."""
    for missing in (flink.missing(), image.missing()):
        if missing is not None:
            pytest.skip(missing)
    image.build()
    own = image.build_upon(Path(__file__).parent / "Dockerfile", "localhost/ledgerbeam-matrix:0.1.0")
    pool = stack.enter_context(image.image_pool(folder, image=own, env=s3.env))
    # The stock pool cannot tell the workers of two task managers from each other, so there is one.
    return stack.enter_context(flink_cluster(folder, places=[Place()], pool=pool))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if rows or notes:
        terminalreporter.section("runner matrix")
    if rows:
        _write_table(terminalreporter)
    for note in notes:
        terminalreporter.write_line(note)


def _write_table(terminalreporter: Any) -> None:
    head = f"{'engine':<26}" + "".join(f"{column:>17}" for column in COLUMNS) + f"{'kills':>7}{'seconds':>9}{'MiB':>7}"
    terminalreporter.write_line(head)
    for row in rows:
        cells = "".join(f"{_told(row, column):>17}" for column in COLUMNS)
        terminalreporter.write_line(f"{row.engine:<26}{cells}{row.killed:>7}{row.seconds:>9.1f}{row.mebibytes:>7.0f}")


def _told(row: Row, column: str) -> str:
    return "-" if column not in row.passed else "ok" if row.passed[column] else "FAILED"
