"""What must be true of a job after a change, whatever the change was."""

from __future__ import annotations

import json
from typing import Any

from tests.changes.places import Place
from tests.pipelines.conftest import Ran


def failures(place: Place, ledger: str = "ledger") -> list[dict[str, Any]]:
    told = place.run("ledger", "failures", place.url(ledger), "--json")
    found: list[dict[str, Any]] = json.loads(told.out)["failures"]
    return found


def check_right(place: Place, ran: Ran, *, ledger: str = "ledger") -> None:
    """Check that a job is done, with exactly what one clean run makes of the sources as they are now."""
    assert ran.status == 0, ran.err
    assert ran.json["complete"] is True
    assert _of_listed(place) == place.clean()
    verified = place.run("ledger", "verify", place.url(ledger))
    assert verified.status == 0, verified.out
    place.check_bystanders()


def check_refused(place: Place, ran: Ran, *words: str, before: dict[str, bytes]) -> None:
    """Check that a job has done nothing but say why, and what to do."""
    assert ran.status in (1, 2), (ran.status, ran.out, ran.err)
    assert "Traceback" not in ran.err
    for word in words:
        assert word in ran.err, ran.err
    assert place.outputs() == before
    place.check_bystanders()


def _of_listed(place: Place) -> dict[str, bytes]:
    """Outputs of the sources that are there; those of one that is gone stay, and `status` tells of it."""
    there = [name for name in place.files("in") if name.endswith(".jsonl")]
    return {name: data for name, data in place.outputs().items() if name.startswith(tuple(there))}
