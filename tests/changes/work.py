"""The user function of jobs whose sources change under them: a record may say what to do to a source.

A record acts as long as there is a file or object with the name of the new content and `.armed` behind it. Of several
records that ask for a change one makes it, since to cut or to append twice is another change; the others wait for it.

The module imports nothing of this repository, so that it can lie anywhere: `tests.changes.places` writes a copy of it
for every test, which is then edited where a test is about edited code.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from typing import Any


def work(record: dict[str, Any]) -> dict[str, Any]:
    """Do what the record asks for, then return its text in capitals."""
    if "do" in record and "CHANGES_OFF" not in os.environ:
        _do(record["do"], record["at"], record["new"])
    return {"id": record["id"], "text": record["text"].upper()}


def _do(what: str, url: str, new: str) -> None:
    armed = f"{new}.armed"
    if not _exists(armed):
        return
    if what == "fail":
        raise ValueError("as asked")
    if _is_first(f"{new}.made"):
        change(what, url, new)
        _remove(armed)
    while _exists(armed):  # or a worker that is ahead would read all the rest before another one has made the change
        time.sleep(0.01)


def change(what: str, url: str, new: str) -> None:
    """Change a source as somebody else would, who knows of no job.

    Args:
        what: The change, as the tests name it; "claimed" is none of the source, but another job, over the sources in a
            folder beside it, whose output folder lies below that of the job.
        url: The source.
        new: Another file or object, with its new content, or what is to be appended.
    """
    if what == "claimed":
        _claim(url.rpartition("/in/")[0])
    elif url.startswith("s3://"):
        _change_object(what, url, new)
    else:
        with open(new, "rb") as file:
            _change_file(what, url, file.read())


def _claim(root: str) -> None:
    places = [f"{root}/in/sub/*.jsonl", "--output", f"{root}/out/sub", "--ledger", f"{root}/inner"]
    words = [sys.executable, "-m", "ledgerbeam", "map", f"{__name__}:work", *places, "--to", "jsonl", "--workers", "1"]
    env = {**os.environ, "CHANGES_OFF": "1"}
    subprocess.run(words, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False)  # it may be refused


def _exists(url: str) -> bool:
    if not url.startswith("s3://"):
        return os.path.exists(url)
    import s3fs

    found: bool = s3fs.S3FileSystem(skip_instance_cache=True).exists(url)
    return found


def _remove(url: str) -> None:
    if not url.startswith("s3://"):
        os.unlink(url)
        return
    import s3fs

    s3fs.S3FileSystem(skip_instance_cache=True).rm_file(url)


def _is_first(mark: str) -> bool:
    """Make a mark; return whether it was not there, of several that do so at once to one."""
    try:
        if not mark.startswith("s3://"):
            with open(mark, "xb"):
                return True
        import s3fs

        s3fs.S3FileSystem(skip_instance_cache=True).pipe_file(mark, b"", mode="create")
    except FileExistsError:
        return False
    return True


def _change_object(what: str, url: str, new_url: str) -> None:
    import s3fs

    store = s3fs.S3FileSystem(skip_instance_cache=True)
    if what == "deleted":
        store.rm_file(url)
        return
    before, new = store.cat_file(url), store.cat_file(new_url)
    contents = {
        "appended": before + new,
        "touched": before,
        **{cut: before[:size] for cut, size in _cuts(before).items()},
    }
    store.pipe_file(url, contents.get(what, new))


def _cuts(data: bytes) -> dict[str, int]:
    """Return the sizes that a source has after each way to cut it off, by the names of the changes."""
    line_end = data.index(b"\n", len(data) // 2) + 1
    return {"emptied": 0, "truncated": line_end, "truncated in a record": line_end + 9}


def _change_file(what: str, path: str, new: bytes) -> None:
    if what == "deleted":
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        return
    found = os.stat(path)
    if what == "overwritten":
        with open(path, "r+b") as file:
            file.write(new)
            file.truncate()
    elif what == "appended":
        with open(path, "ab") as file:
            file.write(new)
    elif what.startswith(("truncated", "emptied")):
        with open(path, "rb") as file:
            size = _cuts(file.read())[what]
        os.truncate(path, size)
    elif what == "touched":
        os.utime(path)
    else:
        _replace_file(what, path, new, found)


def _replace_file(what: str, path: str, new: bytes, found: os.stat_result) -> None:
    aside = f"{path}.new"
    with open(aside, "wb") as file:
        file.write(new)
    times = {
        "replaced, with an older time": found.st_mtime_ns - 10**12,
        "replaced, with the time that it had": found.st_mtime_ns,
        "replaced, with a time to come": found.st_mtime_ns + 10**13,
    }
    if what in times:
        os.utime(aside, ns=(times[what], times[what]))
    elif what != "replaced":
        raise ValueError(f"{what!r} is no change of a source")
    os.replace(aside, path)
