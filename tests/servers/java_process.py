"""How the Java servers are started: options of the runtime, class paths, Beam's job servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.servers import pins
from tests.servers.engine import HOST
from tests.servers.process import Process, ServerError, free_port, listens

JOB_SERVER_SECONDS = 90.0

# What Flink and Spark open up by reflection, and Java 17 keeps closed unless told.
_OPENED = (
    *("java.io", "java.lang", "java.lang.invoke", "java.lang.reflect", "java.net", "java.nio", "java.text"),
    *("java.time", "java.util", "java.util.concurrent", "java.util.concurrent.atomic", "java.util.concurrent.locks"),
    *("sun.nio.ch", "sun.security.action", "sun.util.calendar"),
)
_EXPORTED = ("java.base/sun.net.util", "java.rmi/sun.rmi.registry")
MODULE_OPTIONS = (
    *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED),
    *(f"--add-exports={name}=ALL-UNNAMED" for name in _EXPORTED),
)
# One compiler tier and one collector thread: these servers live for a minute, several on one small machine.
LEAN = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xss512k", "-XX:-UsePerfData")


def missing(jars: pins.Jars, name: str) -> str | None:
    """Return what is missing to run a server made of jars; None when nothing is."""
    if not jars.ready:
        return f"no {name}: {pins.REMEDY}"
    if pins.java() is None:
        return f"no Java 11 or 17: {pins.REMEDY}"
    return None


def java_command(class_path: str | Path, main: str, *arguments: str, options: Sequence[str] = ()) -> list[str]:
    """Return the command line that runs a class of a class path."""
    program = pins.java()
    if program is None:
        raise ServerError(f"there is no Java 11 or 17; {pins.REMEDY}")
    return [str(program), *MODULE_OPTIONS, *LEAN, *options, "-cp", str(class_path), main, *arguments]


def job_server(
    class_path: str | Path,
    main: str,
    *arguments: str,
    options: Sequence[str],
    folder: Path,
    env: Mapping[str, str] | None = None,
) -> tuple[Process, int]:
    """Start a job server of Beam and wait until it takes jobs; whoever asked ends it.

    Returns:
        The process, and the port where jobs are sent to.
    """
    port = free_port()
    work = folder / "job-server"
    common = [f"--job-host={HOST}", f"--job-port={port}", "--artifact-port=0", "--expansion-port=0"]
    common.append(f"--artifacts-dir={work / 'artifacts'}")
    options = [f"-Djava.io.tmpdir={work}", *options]
    command = java_command(class_path, main, *arguments, *common, options=options)
    process = Process(command, name="job-server", folder=folder, env=env, work=work)
    try:
        process.wait_until(lambda: listens(port), seconds=JOB_SERVER_SECONDS)
    except BaseException:
        process.stop()
        raise
    return process, port
