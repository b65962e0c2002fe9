"""Folders below an output folder: nested output folders with separate owners, and folders of routes.

A note is a file that names a nested output folder of another owner. A job that claims an output folder writes a note
about this folder into every enclosing folder that has an owner. Into this folder it writes a note for each folder below
that has an owner. So one request finds all nested folders, for any number of outputs. Folders of stages, whose names
start with `_`, have no notes: they contain no outputs of other jobs, and are removed at the end.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from hashlib import blake2b
from itertools import compress
from typing import Any

from ledgerbeam._base.names import ASIDE, check_route
from ledgerbeam.errors import FunctionError, StorageError, UsageError
from ledgerbeam.io.listing.left_out import MARKS_FOLDER
from ledgerbeam.io.storage.client import Options, ask_each
from ledgerbeam.io.storage.objects import ObjectFolder, list_files
from ledgerbeam.io.storage.publish import publish_bytes
from ledgerbeam.io.storage.urls import is_local, split_scheme

_MARK, _NOTE = ".json", ".nested"
_OURS = re.compile(r"-\d{10}(?:-\d{6})*\.[^/]*\Z")  # end of the name of an output, see `transforms.chain.write`


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


class RouteFolders:
    """Check that each route has a folder of its own, and that no output is in the folder of another job.

    If sources are in a folder, their outputs are in an output folder of the same name. A route of this name could
    overwrite them, now or after sources are added.
    """

    def __init__(self, output: str, base: str | None, storage_options: Mapping[str, Any]) -> None:
        self._output = output  # canonical URL of the output folder
        self._base = base  # URL ending with ``/`` that names are relative to. None if they start with a scheme
        self._options = storage_options
        self._free = {"", *ASIDE}

    @cached_property
    def _nested(self) -> dict[str, str]:
        return nested_owners(self._output, self._options)

    def require_free(self, route: str, name: str = "") -> None:
        """Raise an error if outputs of a route could overwrite other outputs. Each folder is listed once.

        `route` is empty for an output without a route. `name` is the name of the output below the route, empty if not
        known yet. Raises FunctionError for an invalid route, and UsageError if other outputs or another job use its
        folder.
        """
        if route != "" and route == name.partition("/")[0] and "/" in name:
            raise self._taken(route, f"{self._output}/{name}")
        folder = name.partition("/")[0]
        if route == "" and folder in ASIDE and "/" in name:
            raise UsageError(
                f"{self._output}/{name}: the folder {folder} is reserved for rejected or dropped records; pass the "
                "folder of these sources as --base, or a pattern that starts in this folder"
            )
        path = f"{route}/{name}" if route else name
        for folder, mark in self._nested.items():
            if path.startswith(f"{folder}/"):
                raise UsageError(
                    f"{self._output}/{path}: {self._output}/{folder} is the output folder of another job (see {mark} "
                    "in it); give another --output, or rename the route if it is the folder of a route"
                )
        if route in self._free:
            return
        try:
            check_route(route)
        except ValueError as error:
            raise FunctionError(str(error)) from None
        found = self._source_in(route)
        if found is not None:
            raise self._taken(route, found)
        self._free.add(route)

    def _source_in(self, route: str) -> str | None:
        """Return the URL of a file in a folder of sources that has the name of the route; None if no file is found."""
        if self._base is None:
            return None
        folder = f"{self._base}{route}"
        is_own = folder == f"{self._output}/{route}"
        for page in list_files(folder, self._options):
            for name in page.names:
                if not (is_own and _OURS.search(name)):
                    return f"{folder}/{name}"
        return None

    def _taken(self, route: str, url: str) -> UsageError:
        return UsageError(
            f"route {route!r}: its folder {self._output}/{route} is also used for the outputs of a folder of sources "
            f"of this name, see {url}; rename the route"
        )
