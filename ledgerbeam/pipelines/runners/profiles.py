"""Profiles of worker processes, as one file for speedscope: https://www.speedscope.app."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ledgerbeam._base.extensions import __version__
from ledgerbeam.io import Options
from ledgerbeam.io.storage.files import refuse_foreign
from ledgerbeam.ledger.model.values import encode
from ledgerbeam.ledger.worker.reports import read_reports

SUFFIX = ".profile"

_LOOKS = re.compile(rb'\Z|\{(?s:.*)"exporter": ?"ledgerbeam ')
_SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def refuse_no_profile(url: str, options: Options) -> None:
    """Check that the place of a profile is free, or holds an earlier profile.

    Raises:
        UsageError: Another file is there. StorageError is raised too.
    """
    refuse_foreign({url: _LOOKS}, options, kind="an earlier profile")


def left_profiles(run_dirs: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the profile of each worker process of some folders, including dead workers."""
    for folder in run_dirs:
        for profile in read_reports(folder, SUFFIX):
            if profile["stacks"]:  # otherwise the process ended before any work
                yield profile


def speedscope(profiles: Sequence[Mapping[str, Any]], name: str) -> bytes:
    """Return one file with the profiles of all worker processes.

    Args:
        profiles: Profiles from `left_profiles`.
        name: Name of the file in speedscope.
    """
    frames: dict[tuple[str, str, int], int] = {}
    made = []
    for number, profile in enumerate(profiles, start=1):
        places = [frames.setdefault(tuple(function), len(frames)) for function in profile["functions"]]
        lasted = sum(profile["seconds"])
        made.append(
            {
                "type": "sampled",
                "name": f"worker {number}, process {profile['pid']}, {lasted:.1f} s",
                "unit": "seconds",
                "startValue": 0,
                "endValue": lasted,
                "samples": [[places[function] for function in stack] for stack in profile["stacks"]],
                "weights": profile["seconds"],
            }
        )
    shared = {"frames": [{"name": function, "file": file, "line": line} for function, file, line in frames]}
    head = {"$schema": _SCHEMA, "exporter": f"ledgerbeam {__version__}", "name": name, "activeProfileIndex": 0}
    return encode({**head, "shared": shared, "profiles": made})
