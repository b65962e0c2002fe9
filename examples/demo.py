"""Demonstration of a restart: index, map, SIGKILL, the same command again, comparison. `make demo` runs it.

The text is the source code of Python's standard library, as JSONL and tar shards. The job extracts the functions that
have docstrings.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

import orjson

from ledgerbeam import open_ledger
from ledgerbeam.errors import LedgerNotFoundError

JSONL_SHARDS = 12
TAR_SHARDS = 4
TASK_BYTES = 2**20
INDEX = "ledgerbeam index 'shards/*' --ledger indexing"
MAP = (
    "ledgerbeam map cleaning:documented_functions 'shards/*' "
    "--output {output} --to jsonl --task-bytes 1M --ledger {ledger}"
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=64, help="size of the text, in megabytes (default: 64)")
    args = parser.parse_args(argv)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ledgerbeam-demo-") as folder:
        same = demonstrate(Path(folder), args.megabytes * 10**6)
    say(f"\nThe demonstration took {time.monotonic() - started:.0f} s, and has removed its temporary folder.")
    return 0 if same else 1


def demonstrate(folder: Path, size: int) -> bool:
    shutil.copy(Path(__file__).with_name("cleaning.py"), folder)
    job = MAP.format(output="out", ledger="progress")

    title(1, "Write the source code of Python's standard library, repeated, as JSONL and tar shards")
    say(f"\n{make_shards(folder / 'shards', size)}")

    title(2, "Index the shards: then one read gets any record")
    run(folder, INDEX)
    run(folder, "ledgerbeam show shards/00.jsonl")

    title(3, "Map the records to the documented functions in them. Kill the job when a third of the tasks is done")
    kill_at_a_third(folder, job, size)
    run(folder, "ledgerbeam ledger status progress")

    title(4, "Run the same command again: the job resumes from the ledger")
    before = progress(folder / "progress")
    run(folder, job)
    after = progress(folder / "progress")
    say(f"\nSkipped, because recorded before the kill: {before['tasks']} tasks, {before['sources']} complete shards.")
    say(f"Done by the second run: {after['tasks'] - before['tasks']} of {after['tasks']} tasks.")
    run(folder, "ledgerbeam ledger status progress")
    run(folder, "ledgerbeam ledger verify progress")

    title(5, "Run another job without a kill, and compare the outputs byte for byte")
    run(folder, MAP.format(output="clean", ledger="undisturbed"))
    return compare(folder / "out", folder / "clean")


def say(text: str) -> None:
    print(text, flush=True)  # keeps the order with the commands' output, also through a pipe


def title(number: int, text: str) -> None:
    say(f"\n{number}. {text}")


def start(folder: Path, command: str) -> subprocess.Popen[bytes]:
    """Start a command with this interpreter, without a shell, so that patterns are not expanded."""
    environment = {**os.environ, "TMPDIR": str(folder)}  # Beam's leftovers after the kill are removed with the folder
    arguments = [sys.executable, "-m", *shlex.split(command)]
    return subprocess.Popen(arguments, cwd=folder, env=environment, stderr=subprocess.STDOUT)


def run(folder: Path, command: str) -> None:
    say(f"\n$ {command}")
    status = start(folder, command).wait()
    if status:
        raise SystemExit(f"demo: the command above ended with status {status}; see its message")


def make_shards(folder: Path, size: int) -> str:
    """Write about `size` bytes of text, three quarters as JSONL, and return a summary.

    The same version of Python writes the same shards.
    """
    folder.mkdir()
    share = size // (JSONL_SHARDS + TAR_SHARDS)
    texts = endless_sources()
    for number in range(JSONL_SHARDS):
        with (folder / f"{number:02d}.jsonl").open("wb") as file:
            while file.tell() < share:
                path, text = next(texts)
                file.write(orjson.dumps({"path": path, "text": text}) + b"\n")
    for number in range(TAR_SHARDS):
        with tarfile.open(folder / f"{number:02d}.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
            while archive.offset < share:
                path, text = next(texts)
                key = f"{archive.offset:010d}"
                add_member(archive, f"{key}.py", text.encode())
                add_member(archive, f"{key}.json", orjson.dumps({"path": path}))
    written = sum(path.stat().st_size for path in folder.iterdir())
    return f"{JSONL_SHARDS} JSONL shards and {TAR_SHARDS} tar shards, {written / 1e6:.0f} MB"


def endless_sources() -> Iterator[tuple[str, str]]:
    """Yield path and text of each module of the standard library, again and again. Each text starts with its copy."""
    library = Path(sysconfig.get_paths()["stdlib"])
    paths = sorted(path for path in library.rglob("*.py") if "site-packages" not in path.parts)
    for copy in count(1):
        for path in paths:
            try:
                text = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue  # sources in other encodings test the parser
            yield path.relative_to(library).as_posix(), f"# copy {copy}\n{text}"


def add_member(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def progress(ledger: Path) -> dict[str, int]:
    """Return the numbers of complete sources, done tasks and filtered tasks. The job may be running."""
    try:
        status = open_ledger(str(ledger)).status()
    except LedgerNotFoundError:
        return {"sources": 0, "tasks": 0, "filtered": 0}
    return {"sources": status["sources"]["complete"], "tasks": status["tasks"]["done"], "filtered": status["filtered"]}


def kill_at_a_third(folder: Path, command: str, size: int) -> None:
    """Start the job, and send it SIGKILL, which no program can catch, after a third of its tasks is recorded."""
    shards = JSONL_SHARDS + TAR_SHARDS
    third = shards * -(-size // shards // TASK_BYTES) // 3
    say(f"\n$ {command} &")
    process = start(folder, command)
    try:
        while process.poll() is None and progress(folder / "progress")["tasks"] < third:
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait()
    if process.returncode != -signal.SIGKILL:
        raise SystemExit(
            f"demo: the job ended with status {process.returncode} before it was killed; give more --megabytes"
        )
    say(f"$ kill -9 {process.pid}")
    time.sleep(1)  # the workers notice the death of the launcher and end
    done = progress(folder / "progress")
    lost = len(list((folder / "out").glob("*.jsonl"))) - (done["tasks"] - done["filtered"])
    say(f"\nOutputs that are written but not recorded, so the next run writes them again: {lost} shards.")


def compare(found: Path, expected: Path) -> bool:
    names = {
        path.relative_to(root).as_posix()
        for root in (found, expected)
        for path in root.rglob("*")
        if path.is_file() and path.parent.name != "_ledgerbeam"  # the mark names the ledger, which differs
    }
    total = hashlib.blake2b(digest_size=16)
    differing = 0
    for number, name in enumerate(sorted(names)):
        one, other = digest(found / name), digest(expected / name)
        same = one == other
        differing += not same
        total.update(f"{name} {one}\n".encode())
        if number < 3 or not same:
            say(f"  {'same' if same else 'DIFFERENT'}  {one}  {other}  {name}")
    say("  ... (columns: BLAKE2 hash from the killed and resumed job, hash from the undisturbed job, file)")
    say(f"  hash of all names and hashes: {total.hexdigest()}")
    verdict = "identical, byte for byte" if not differing else f"{differing} DIFFERENT"
    say(f"\n{len(names)} files of the killed job, compared with those of the undisturbed job: {verdict}")
    return bool(names) and not differing


def digest(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest() if path.is_file() else "missing" + " " * 25


if __name__ == "__main__":
    sys.exit(main())
