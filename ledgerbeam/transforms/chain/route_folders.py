"""The folders of routes and of sources below an output folder: separate from each other, and of no other job."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from ledgerbeam._base.names import REJECTS, check_route
from ledgerbeam.errors import FunctionError, UsageError
from ledgerbeam.io.listing.folder_files import list_files
from ledgerbeam.io.listing.nested_folders import nested_owners

_OURS = re.compile(r"-\d{10}(?:-\d{6})*\.[^/]*\Z")
"""What the names of outputs end with: see `output_name`."""


class RouteFolders:
    """Checks whether routes can have their own folders, and whether outputs lie in folders of other jobs.

    The outputs of sources in a folder are in a folder of the same name, so a route with this name could overwrite them,
    now or with the next source.

    Args:
        output: Canonical URL of the output folder.
        base: What output names are relative to, a URL ending in ``/``; or None, where they begin with the scheme of
            their sources.
        storage_options: Passed to fsspec unchanged.
    """

    def __init__(self, output: str, base: str | None, storage_options: Mapping[str, Any]) -> None:
        self._output = output
        self._base = base
        self._options = storage_options
        self._free = {"", REJECTS}

    @cached_property
    def _nested(self) -> dict[str, str]:
        return nested_owners(self._output, self._options)

    def require_free(self, route: str, name: str = "") -> None:
        """Refuse a route, or a name, that could write over other outputs. A folder is looked at once.

        Args:
            route: Its name.
            name: Of an output without a route, as far as it is known.

        Raises:
            FunctionError: The name cannot be that of a route.
            UsageError: There are sources, or outputs of what has no route, in a folder of that name; or the output
                would lie in the output folder of another job.
        """
        if route != "" and route == name.partition("/")[0] and "/" in name:
            raise self._taken(route, f"{self._output}/{name}")
        if route == "" and name.startswith(f"{REJECTS}/"):
            raise UsageError(
                f"{self._output}/{name}: outputs cannot lie in {REJECTS}, the folder of rejected records; give that "
                "folder of sources as --base, or a pattern that begins in it"
            )
        self._require_unowned(f"{route}/{name}" if route else name)
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

    def _require_unowned(self, path: str) -> None:
        for folder, mark in self._nested.items():
            if path.startswith(f"{folder}/"):
                raise UsageError(
                    f"{self._output}/{path}: {self._output}/{folder} is the output folder of another job, as {mark} in "
                    "it says; give another --output, or, if it is the folder of a route, give the route another name"
                )

    def _source_in(self, route: str) -> str | None:
        """Return the URL of a file in the folder of sources with the name of a route."""
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
            f"route {route!r}: expected a folder {self._output}/{route} for it alone, found that the outputs of other "
            f"sources go there, because of {url}; give the route another name"
        )
