"""Files below a folder with their sizes, and nested output folders with separate owners.

A note is a file that names a nested output folder of another owner. A job that claims an output folder writes a note
about this folder into every enclosing folder that has an owner. Into this folder it writes a note for each folder below
that has an owner. So one request finds all nested folders, for any number of outputs. Folders of stages, whose names
start with `_`, have no notes: they contain no outputs of other jobs, and are removed at the end.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b
from itertools import compress, islice
from typing import NamedTuple

from ledgerbeam._base.names import ASIDE
from ledgerbeam.errors import SourceNotFoundError, StorageError
from ledgerbeam.io import native
from ledgerbeam.io.listing.left_out import MARKS_FOLDER
from ledgerbeam.io.storage.client import Options, ask_each, call, filesystem
from ledgerbeam.io.storage.objects import ObjectFolder, s3_pages
from ledgerbeam.io.storage.publish import publish_bytes
from ledgerbeam.io.storage.responses import storage_error
from ledgerbeam.io.storage.urls import canonical_url, is_local, split_scheme, store_of

_PAGE = 10_000


class FilePage(NamedTuple):
    """Files below a folder, as two columns of equal length: paths relative to the folder, and sizes in bytes."""

    names: list[str]
    sizes: list[int]


def list_files(
    folder: str, options: Options | None = None, *, beginning: str = "", recursive: bool = True
) -> Iterator[FilePage]:
    """List every file below a folder, including hidden files. A missing folder has no files.

    Links to folders are not followed. A file that is removed during the listing may be listed or not. On an object
    store, names that do not start with `beginning` may be skipped, and subfolders are skipped unless `recursive`.
    """
    url = canonical_url(folder).rstrip("/") or "/"
    if is_local(url):
        return _list_local(url)
    if store_of(url).api == "s3":
        return _list_s3(url, options, beginning, recursive=recursive)
    return _list_store(url, options, recursive=recursive)


def _list_local(root: str) -> Iterator[FilePage]:
    waiting = [""]
    while waiting:
        below = waiting.pop()
        folder = os.path.join(root, below)
        try:
            with os.scandir(folder) as entries:
                while found := list(islice(entries, _PAGE)):
                    names = [entry.name for entry in found if not entry.is_dir()]
                    waiting += [f"{below}{entry.name}/" for entry in found if entry.is_dir(follow_symlinks=False)]
                    yield _described(folder, below, names)
        except (FileNotFoundError, NotADirectoryError):
            continue  # it does not exist, or was removed meanwhile
        except OSError as error:
            raise storage_error(error, folder, "list") from error


def _described(folder: str, below: str, names: list[str]) -> FilePage:
    """Return the files with their sizes. Files that were removed meanwhile, and broken links, are left out."""
    sizes = sizes_of(folder, names)
    if -1 in sizes:
        there = [size >= 0 for size in sizes]
        names, sizes = list(compress(names, there)), list(compress(sizes, there))
    return FilePage([below + name for name in names], sizes)


def sizes_of(folder: str, names: list[str]) -> list[int]:
    """Return the sizes of local files in bytes; -1 for a name without a file. Names may also be absolute paths."""
    found = native.compiled.stat_files(folder, names)[0] if native.compiled is not None else []
    return found + [_size(os.path.join(folder, name)) for name in names[len(found) :]]


def _size(path: str) -> int:
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return -1
    except OSError as error:
        raise storage_error(error, path, "read") from error
    return -1 if stat.S_ISDIR(found.st_mode) else found.st_size


def _list_s3(url: str, options: Options | None, beginning: str, *, recursive: bool) -> Iterator[FilePage]:
    key = split_scheme(url)[1].partition("/")[2]
    prefix = f"{key}/" if key else ""
    for page in s3_pages(url, prefix + beginning, options, recursive=recursive):
        items = [item for item in page if item["Key"] != prefix]
        yield FilePage([item["Key"][len(prefix) :] for item in items], [item["Size"] for item in items])


def _list_store(url: str, options: Options | None, *, recursive: bool) -> Iterator[FilePage]:
    store = filesystem(url, options)
    store.invalidate_cache()
    try:
        found = call(url, "list", store.find if recursive else store.ls, url, detail=True)
    except SourceNotFoundError:
        return
    start = len(store._strip_protocol(url).rstrip("/")) + 1  # noqa: SLF001 - fsspec offers no public name for it
    infos = found.values() if recursive else found
    files = [info for info in infos if info["type"] != "directory" and len(info["name"]) > start]
    for begin in range(0, len(files), _PAGE):
        page = files[begin : begin + _PAGE]
        yield FilePage([info["name"][start:] for info in page], [int(info["size"] or 0) for info in page])


_MARK, _NOTE = ".json", ".nested"


def note_nested(output: str, ledger: str, options: Options | None = None) -> list[str]:
    """Write the notes for an output folder that a ledger has claimed, in the folders around it and in itself.

    Return the enclosing folders with other owners, the nearest first. Folders of the same ledger need no note.
    """

    def is_of_another(folder: str) -> bool:
        with suppress(StorageError):  # without permission to read the marks, the job does not write there either
            return any(not mark.endswith(f"/{ledger}{_MARK}") for mark in _marks(folder, options))
        return False

    if _is_of_stage(output.rpartition("/")[2]):
        return []
    nested = [(outer, output.removeprefix(f"{outer}/"), outer) for outer in _folders_around(output)]
    nested += [(output, path, f"{output}/{path}") for path in marked_below(output, options)]
    nested = [one for one in nested if not _is_of_stage(one[1])]
    noted = [*compress(nested, ask_each(is_of_another, [other for *_, other in nested]))]
    for outer, path, _ in noted:
        content = os.fsencode(path)
        name = f"{blake2b(content, digest_size=16).hexdigest()}{_NOTE}"
        publish_bytes(f"{outer}/{MARKS_FOLDER}/{name}", content, options)
    return [outer for outer, *_ in noted if outer != output]


def nested_owners(output: str, options: Options | None = None) -> dict[str, str]:
    """Return the folders below an output folder that have another owner: the mark of the owner by relative path."""
    folder = ObjectFolder(output, options)
    notes = [*filter(is_note, folder.names(MARKS_FOLDER))]
    paths = [os.fsdecode(path) for path in folder.read(notes) if path is not None]
    marks = {path: next(iter(_marks(f"{output}/{path}", options)), None) for path in paths}
    return {path: mark for path, mark in marks.items() if mark is not None}


def is_note(name: str) -> bool:
    """Return whether a file in the folder of marks is a note, by its name."""
    return name.endswith(_NOTE)


def marked_below(folder: str, options: Options | None = None) -> set[str]:
    """Return the relative paths of the folders below a folder that have marks. This lists all files below it."""
    names = (name for page in list_files(folder, options) for name in page.names)
    return {name.rpartition(f"/{MARKS_FOLDER}/")[0] for name in names} - {""}


def _marks(folder: str, options: Options | None) -> list[str]:
    return [name for name in ObjectFolder(folder, options).names(MARKS_FOLDER) if name.endswith(_MARK)]


def _folders_around(folder: str) -> Iterator[str]:
    scheme, rest = ("", folder) if is_local(folder) else split_scheme(folder)
    while "/" in rest.strip("/"):
        rest = rest.rpartition("/")[0]
        yield f"{scheme}://{rest}" if scheme else rest


def _is_of_stage(path: str) -> bool:
    return any(part.startswith("_") and part not in ASIDE for part in path.split("/"))
