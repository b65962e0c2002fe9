"""The worker image: built with buildah from docker/Dockerfile, and run as a worker pool."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.servers import pins
from tests.servers.engine import WorkerPool
from tests.servers.flink import Place, flink_cluster
from tests.servers.job import Job
from tests.servers.make import MakeError
from tests.servers.process import Process, ServerError, listens, server_folder

IMAGE = "localhost/ledgerbeam-worker:0.1.0"
JOB_SIZE = 50
POOL_PORT = 50_000  # which boot gives to its worker pool
START_SECONDS = 90.0
STEP_SECONDS = 600  # of one command of the build; a registry that hangs must not hold up what comes after

_PYTHON = (3, 11)  # the image's: functions are pickled by the launcher and unpickled there

_BASE = "localhost/ledgerbeam-base:bookworm"
_BOOT = f"localhost/ledgerbeam-boot:{pins.BOOT.version}"
_PACKAGES = "python3,python3-venv,python3-pip,ca-certificates"
_MIRROR = "http://deb.debian.org/debian"
_CERTIFICATES = "/etc/ssl/certs"
_TIMED_OUT = 124  # exit status of `timeout`
_BUD = ("buildah", "bud", "--isolation=chroot", "--network=host", "--layers", "--force-rm")
# The container ends with the shell, and its disk with it.
_RUN = """
container=$(buildah from "$1") || exit
trap 'buildah rm "$container" >/dev/null' EXIT
trap 'exit 143' TERM
shift
buildah run --isolation=chroot --network=host "$@" "$container" -- /opt/apache/beam/boot --worker_pool &
wait
"""


def missing() -> str | None:
    """Return what is missing to build and run the image; None when nothing is."""
    if os.geteuid() != 0:
        return "images are built in a chroot, which needs root: run as root"
    for program in ("buildah", "debootstrap"):
        if shutil.which(program) is None:
            return f"no {program}: apt-get install buildah debootstrap (scripts/image-tools.sh)"
    if sys.version_info[:2] != _PYTHON:
        here, there = (".".join(map(str, version)) for version in (sys.version_info[:2], _PYTHON))
        return f"this is Python {here} and the image has {there}: run with Python {there}"
    return None if pins.BOOT.ready else f"no boot: {pins.REMEDY}"


def build() -> str:
    """Build the image, on a base image that is made from Debian's packages if there is none; return its name.

    `BASE` in the environment names another base image.
    """
    base = os.environ.get("BASE", _BASE)
    if base == _BASE and not _exists(_BASE):
        _build_base()
    if not _exists(_BOOT):
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "opt" / "apache" / "beam"
            target.mkdir(parents=True)
            shutil.copy(pins.BOOT.versioned, target / "boot")
            _import(Path(folder), _BOOT)
    command = [*_BUD, "--volume", f"{_CERTIFICATES}:{_CERTIFICATES}:ro"]
    command += ["--build-arg", f"BASE={base}", "--build-arg", f"BOOT={_BOOT}"]
    command += ["--ignorefile", "docker/Dockerfile.dockerignore", "--file", "docker/Dockerfile", "--tag", IMAGE, "."]
    _run(command)
    return IMAGE


def build_upon(dockerfile: Path, image: str) -> str:
    """Build an image on top of the one that `build` built: with functions of a user's own; gives its name."""
    _run([*_BUD, "--build-arg", f"IMAGE={IMAGE}", "--file", str(dockerfile), "--tag", image, "."])
    return image


@contextlib.contextmanager
def image_pool(
    folder: Path | None = None, *, image: str = IMAGE, env: Mapping[str, str] | None = None, data: Path | None = None
) -> Iterator[WorkerPool]:
    """Run a container as a worker pool. Of this machine it has the network, and no files.

    Args:
        data: A folder that the container sees under the same path. The container's user must be able to write to it.
    """
    if listens(POOL_PORT):
        raise ServerError(
            f"port {POOL_PORT}, on which an image's worker pool listens, is taken: end what listens there"
        )
    settings = [f"--env={name}={value}" for name, value in (env or {}).items()]
    if data is not None:
        settings.append(f"--volume={data}:{data}")
    with server_folder("image", folder) as logs:
        command = ["sh", "-c", _RUN, "sh", image, *settings]
        with Process(command, name="container", folder=logs) as process:
            process.wait_until(lambda: listens(POOL_PORT), seconds=START_SECONDS)
            yield WorkerPool(POOL_PORT, process)


def try_out() -> str:
    """Build the image, runs a job in it on a Flink cluster, and return one line that says how that went."""
    started = time.monotonic()
    build()
    built = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ledgerbeam-image-") as folder:
        data = Path(folder)
        output = data / "output"
        output.mkdir()
        data.chmod(0o755)
        output.chmod(0o777)  # the container's user writes there
        # The stock pool cannot tell the workers of two task managers from each other, so there is one.
        with image_pool(data=data) as pool, flink_cluster(places=[Place()], pool=pool) as cluster:
            job = Job(output, JOB_SIZE, 0.02, cluster.options)
            job.check()
        owners = {path.stat().st_uid for path in output.iterdir()}
    size = json.loads(_run(["buildah", "images", "--json", IMAGE]))[0]["size"]
    return (
        f"image {IMAGE}: {size}, built in {built - started:.0f} s; {JOB_SIZE} of {JOB_SIZE} results from its worker "
        f"pool on Flink, written by user {owners}, in {time.monotonic() - built:.0f} s with the start of the cluster"
    )


def _build_base() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        _run(["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", "bookworm", str(root), _MIRROR])
        shutil.rmtree(root / "var" / "cache" / "apt" / "archives")
        _import(root, _BASE)


def _import(root: Path, name: str) -> None:
    container = _run(["buildah", "from", "scratch"]).strip()
    try:
        _run(["buildah", "add", "--quiet", container, str(root), "/"])
        _run(["buildah", "commit", "--quiet", container, name])
    finally:
        _run(["buildah", "rm", container])


def _exists(image: str) -> bool:
    return (
        subprocess.run(["buildah", "inspect", "--type", "image", image], capture_output=True, check=False).returncode
        == 0
    )


def _run(command: Sequence[str]) -> str:
    limited = ["timeout", "--kill-after=10", str(STEP_SECONDS), *command]  # which ends what the command started, too
    done = subprocess.run(limited, cwd=pins.ROOT, capture_output=True, text=True, check=False)
    if done.returncode == _TIMED_OUT:
        raise MakeError(f"{' '.join(command)}: not done within {STEP_SECONDS} s; is the network to be had?")
    if done.returncode:
        raise MakeError(f"{' '.join(command)}: exit status {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout
