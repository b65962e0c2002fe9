"""Rows decoded to checked values. Any program that can write to a ledger can put damaged rows into it.

Every function raises ValueError for a row that no ledger writes; `errors.translated` converts it to
LedgerDamagedError.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ledgerbeam.ledger.model.job import Job
from ledgerbeam.ledger.model.runs import read_audit, read_set_ups, read_work_time
from ledgerbeam.ledger.model.values import decode, integer, mapping, rows, seconds, text

_DEEPEST = 64
_RUN_KEY = re.compile(rb"[0-9]{1,6}|[a-f][0-9]{7,12}")
_RUN_DIGITS = 6  # least number of digits of an id


def read_source_fields(row: bytes) -> dict[str, Any]:
    """Decode a row of `sources`: ``url``, ``size``, ``version``; optionally ``members``, ``changed`` and numbers."""
    fields = mapping(decode(row))
    text(fields.get("url"))
    integer(fields.get("size"))
    text(fields.get("version"))
    for name in ("number", "replaced", "back"):
        integer(fields.get(name, 0))
    for several in ("again", "changed"):
        for one in rows(fields.get(several, [])):
            integer(one)
    for member in rows(fields.get("members", [])):
        url, size, version = rows(member)
        text(url)
        integer(size)
        text(version)
    return fields


def read_retired(row: bytes) -> tuple[int, list[str]]:
    """Decode a row of `retired`: the number of the control object that replaced the source, and its URLs."""
    number, *urls = rows(decode(row))
    return integer(number), [text(url) for url in urls]


def read_failure(row: bytes) -> dict[str, Any]:
    """Decode a row of `failed`."""
    fields = mapping(decode(row))
    found: dict[str, Any] = {name: text(fields.get(name)) for name in ("task", "reason", "error")}
    found |= {name: integer(fields.get(name)) for name in ("attempts", "number")}
    return {**found, "last": seconds(fields.get("last"))}


def read_deaths(row: bytes) -> tuple[str, list[tuple[int, float, int, bool]]]:
    """Decode a row of `attempts`: the name of the task, and number, time, place and kind of each death."""
    fields = mapping(decode(row))
    deaths = [rows(death) for death in rows(fields.get("deaths"))]
    if not all(len(death) == 4 and isinstance(death[3], bool) for death in deaths):
        raise ValueError(f"expected deaths of four values, found {deaths!r:.80}")
    return text(fields.get("task")), [
        (integer(number), seconds(at), integer(place), broke) for number, at, place, broke in deaths
    ]


def read_job(row: bytes) -> Job:
    """Decode the job in `meta`."""
    fields = shallow(mapping(decode(row)))
    return Job(text(fields.get("pipeline")), mapping(fields.get("parameters")), text(fields.get("texts", "")))


def run_key(run: str) -> bytes:
    """Return the key of `runs` for the id of a run.

    The key is the id. An id of more than six digits is prefixed by a letter for its length, so that keys sort as
    numbers.
    """
    more = len(run) - _RUN_DIGITS
    letter = chr(ord("a") + more - 1) if 0 < more <= _RUN_DIGITS else ""
    return (letter + run).encode("utf-8", "surrogatepass")


def read_run_key(key: bytes) -> str:
    """Decode a key of `runs`: the id of the run."""
    run = key.lstrip(b"abcdef").decode("utf-8", "replace")
    if _RUN_KEY.fullmatch(key) is None or run_key(run) != key:
        raise ValueError(f"expected the id of a run, found {key[:80]!r}")
    return run


def read_run(row: bytes) -> dict[str, Any]:
    """Decode a row of `runs`."""
    fields = mapping(decode(row))
    listed, ended, outcome = (fields.get(name) for name in ("listed", "ended", "outcome"))
    if not isinstance(fields.get("listing_finished"), bool):
        raise ValueError(f"expected whether a listing is finished, found {fields.get('listing_finished')!r:.80}")
    if not isinstance(fields.get("tidied"), bool | None):
        raise ValueError(f"expected whether a run has tidied up, found {fields.get('tidied')!r:.80}")
    return {
        **{name: value for name, value in fields.items() if name != "id"},
        "began": seconds(fields.get("began")),
        "ended": None if ended is None else seconds(ended),
        "outcome": None if outcome is None else text(outcome),
        "tidied": fields.get("tidied"),
        "listed": None if listed is None else integer(listed),
        "info": check_info(fields.get("info")),
        "set_ups": None if fields.get("set_ups") is None else read_set_ups(fields["set_ups"]),
        "time": None if fields.get("time") is None else read_work_time(fields["time"]),
        "audit": None if fields.get("audit") is None else read_audit(fields["audit"]),
    }


def check_info(value: Any) -> dict[str, Any]:
    """Check the types of those values of a run's info that commands read. Other values are free."""
    info = shallow(mapping(value))
    for name in ("host", "runner", "folder", "place"):
        text(info.get(name, ""))
    for name in ("pid", "workers"):
        integer(info.get(name, 0))
    for word in rows(info.get("command", [])):
        text(word)
    return info


def shallow(value: Any, deepest: int = _DEEPEST) -> Any:
    """Check that a JSON value is not nested too deeply for Python, and return it."""
    if not deepest:
        raise ValueError(f"expected a value of at most {_DEEPEST} levels, found more")
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    for item in inner:
        shallow(item, deepest - 1)
    return value
