"""The places of the matrix of changes. The cluster is started once for all tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.changes.places import ClusterPlace, LocalPlace, Place, S3Place
from tests.pipelines.conftest import make_workspace
from tests.servers import flink, pins
from tests.servers.flink import FlinkCluster, flink_cluster
from tests.servers.s3 import S3Server

PLACES = (
    "local",
    pytest.param("S3", marks=[pytest.mark.s3, pytest.mark.engines]),
    pytest.param("Flink", marks=[pytest.mark.s3, pytest.mark.engines]),
)


@dataclass(frozen=True)
class _Cluster:
    flink: FlinkCluster
    code: Path


@pytest.fixture(scope="session", name="cluster")
def _cluster(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Cluster]:
    missing = flink.missing()
    if missing is not None:
        pytest.skip(missing)
    folder = tmp_path_factory.mktemp("cluster")
    code = folder / "code"
    env = {**s3.env, "PYTHONPATH": f"{code}:{pins.ROOT}", "LEDGERBEAM_CACHE": str(folder / "cache")}
    with flink_cluster(folder / "flink", env=env) as started:
        yield _Cluster(started, code)


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Each place in turn."""
    workspace = make_workspace(tmp_path)
    if request.param == "local":
        return LocalPlace(workspace)
    server: S3Server = request.getfixturevalue("s3")
    if request.param == "S3":
        return S3Place(workspace, server)
    cluster: _Cluster = request.getfixturevalue("cluster")
    return ClusterPlace(workspace, server, ["--", *cluster.flink.options], cluster.code)


@pytest.fixture
def partly(place: Place) -> Place:
    """A job of which a part is done: one source is complete, of the other some tasks."""
    place.write_sources(do="fail")
    ran = place.job()
    assert ran.status == 3, ran.err
    place.disarm()
    return place
