"""Checks of folders below an output folder: routes, folders of sources and other jobs must not share one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from ledgerbeam._base.names import ASIDE, check_route
from ledgerbeam.errors import FunctionError, UsageError
from ledgerbeam.io.listing.nested_folders import nested_owners
from ledgerbeam.io.storage.objects import list_files

_OURS = re.compile(r"-\d{10}(?:-\d{6})*\.[^/]*\Z")  # end of the name of an output, see `output_name`


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
