"""What must hold of a ledger and an output folder, whatever has happened."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Never

from ledgerbeam.ledger import LedgerStore
from ledgerbeam.ledger.model.identity import content_checksum, source_ids
from ledgerbeam.ledger.opening import open_store
from tests.fault.runs.function import clean_outputs
from tests.fault.runs.sources import ChangingSources


class SimulationError(AssertionError):
    """A run has left what it must not."""


def _fail(message: str) -> Never:
    raise SimulationError(message)


class Judge:
    """Compares what runs leave with what one clean run makes of the versions that sources have had.

    Args:
        sources: They know what each version has held.
        output: Replayer of the outputs; files of others are put there and beside it, which nobody may touch.
        ledger: Replayer of the ledger.
    """

    def __init__(self, sources: ChangingSources, output: Path, ledger: Path) -> None:
        self._sources = sources
        self._output = output
        self._ledger = ledger
        self._foreign = self._make_foreign()

    def _make_foreign(self) -> dict[Path, bytes]:
        """Files of others, which nobody may touch."""
        here = self._output.parent
        places = [self._output / "notes.txt", self._output / "b" / "x.jsonl", here / "in" / "readme", here / "x"]
        for place in places:
            place.parent.mkdir(exist_ok=True)
            place.write_text(f"mine: {place.name}")
        return {place: place.read_bytes() for place in places}

    def check(self, *, alone: bool) -> None:
        """Check that complete sources are of one version, in the ledger and, if a run was alone, on the disk."""
        for place, data in self._foreign.items():
            if not place.exists() or place.read_bytes() != data:
                _fail(f"{place} is not ours, and was changed or removed")
        if not (self._ledger / "data.mdb").exists():
            return
        store = open_store(str(self._ledger), create=False, read_only=True)
        recorded: dict[bytes, dict[str, tuple[int, str]]] = {}
        for found in store.outputs(ordered=False):
            recorded.setdefault(found.source_id, {})[found.output.name] = (found.output.size, found.output.checksum)
        expected_files: set[str] = set()
        for row in store.sources():
            outputs = recorded.get(row.source_id, {})
            expected_files |= outputs.keys()
            if row.state != "complete":
                continue
            self._check_source(row, outputs, on_disk=alone)
        if alone and (more := self._files() - expected_files - self._of_gone(store)):
            _fail(f"a run that was alone said done and left {sorted(more)}, which no source yields")

    def _check_source(self, row: Any, outputs: Mapping[str, tuple[int, str]], *, on_disk: bool) -> None:
        held = self._sources.held
        ids = {source_ids([v.path], [v.size], [str(v.time)])[0]: v for v in held}
        version = ids.get(row.source_id)
        if version is None:
            _fail(f"{row} is complete, and was never there")
        contents = [clean_outputs(os.path.basename(row.url), data) for data in held[version]]
        matching = [made for made in contents if made is not None and _recorded(made) == outputs]
        if not matching:
            _fail(f"{version} is complete with {dict(outputs)}; clean runs make {contents} of {held[version]}")
        made = matching[-1]
        found = {name: (self._output / name).read_bytes() for name in made if (self._output / name).exists()}
        if on_disk and found != made:
            _fail(f"{version} is complete; on disk lies {found}, a clean run makes {made}")

    def remove_unrecorded(self) -> None:
        """Do what a run asks for that has found shards of which its ledger knows nothing."""
        store = open_store(str(self._ledger), create=False, read_only=True)
        known = {found.output.name for found in store.outputs(ordered=False)} | _superseded(store)
        for name in self._files() - known:
            (self._output / name).unlink()

    def _of_gone(self, store: LedgerStore) -> set[str]:
        """Return what a source had yielded that changed and then went, before its new version was done: that stays."""
        there = {os.path.basename(version.path) for version in self._sources.now()}
        return {name for name in _superseded(store) if name.partition(".jsonl")[0] + ".jsonl" not in there}

    def _files(self) -> set[str]:
        return {
            str(path.relative_to(self._output))
            for path in self._output.rglob("*")
            if path.is_file() and path not in self._foreign and "_ledgerbeam" not in path.parts
        }


def _superseded(store: LedgerStore) -> set[str]:
    return {name for page in store.superseded_names() for name in page}


def _recorded(made: Mapping[str, bytes]) -> dict[str, tuple[int, str]]:
    return {name: (len(data), content_checksum([data])) for name, data in made.items()}
