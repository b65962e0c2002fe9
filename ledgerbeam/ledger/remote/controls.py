"""Control objects: the few objects of a remote ledger whose order matters.

============================  =====================================================================
``job.json``                  the job that the ledger was created for; created once, never changed
``controls/000007.json``      event number 7: a run started (``run``), sources were forgotten (``forget``),
                              another job opened the ledger (``accept``, ``restart``)
============================  =====================================================================

Numbers are a logical clock. A writer takes the greatest number that it sees and creates the next. If the store can
create exclusively, one of several writers gets the number, and the others take the next one. An object with number n
was written by a host that had seen n, so the clocks of hosts do not matter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ledgerbeam.errors import LedgerDamagedError, LedgerVersionError
from ledgerbeam.ledger.model.identity import run_id
from ledgerbeam.ledger.model.job import LEDGER_FORMAT, Job
from ledgerbeam.ledger.model.rows import Withdrawn, read_withdrawn, withdrawn_row
from ledgerbeam.ledger.model.values import (
    decode,
    encode,
    flag,
    id_bytes,
    identity,
    integer,
    mapping,
    recordable,
    rows,
    seconds,
    shown,
    text,
)
from ledgerbeam.ledger.remote.segment import column, damaged

JOB_NAME = "job.json"  # the object that makes a folder a ledger
CONTROLS = "controls"  # folder of the numbered control objects
HIGHEST = 999_999_999_999  # the greatest number that the name of a control object can have

Kind = Literal["run", "forget", "accept", "restart"]

_NAME = re.compile(rf"{CONTROLS}/([0-9]{{6}}|[1-9][0-9]{{6,11}})(-[0-9a-f]+)?\.json")


@dataclass(frozen=True, slots=True)
class Control:
    """One numbered event of a ledger."""

    number: int
    kind: Kind
    at: float  # time, seconds since 1970 UTC
    token: str  # random text that distinguishes the same event created by two hosts
    info: Mapping[str, Any] = field(default_factory=dict)
    sources: Sequence[bytes] = ()
    failures_only: bool = False  # whether only the failures of these sources were forgotten
    # Reasons why tasks of sources run again. For a forgotten source they replace all earlier reasons.
    withdrawn: Mapping[bytes, Withdrawn] = field(default_factory=dict)
    job: Job | None = None  # the job that opened the ledger

    def __post_init__(self) -> None:
        """Check the values, of new and of decoded events."""
        with recordable("this event"):
            if integer(self.number, 1) > HIGHEST:
                raise ValueError(f"expected an event number up to {HIGHEST}, found {self.number}")
            if self.kind not in ("run", "forget", "accept", "restart"):
                raise ValueError(f"expected the kind run, forget, accept or restart, found {shown(self.kind)}")
            seconds(self.at)
            text(self.token)
            mapping(self.info)
            flag(self.failures_only)
            for source in (*self.sources, *self.withdrawn):
                id_bytes(source)
            if (self.job is None) == (self.kind in ("accept", "restart")):
                found = f"{self.kind} with {shown(self.job)}"
                raise ValueError(f"expected a job for accept and restart only, found {found}")

    @property
    def run(self) -> str:
        """The id of the run that the event starts."""
        return run_id(self.number)


def control_name(control: Control, *, exclusive: bool) -> str:
    """Return the name of a control object. If the store cannot create exclusively, the token makes it unique."""
    return f"{CONTROLS}/{control.number:06d}{'' if exclusive else f'-{control.token}'}.json"


def control_number(name: str) -> int | None:
    """Return the number in the name of a control object; None for another name."""
    match = _NAME.fullmatch(name)
    return None if match is None else int(match[1])


def number_gap_error(url: str, number: int, highest: int) -> LedgerDamagedError:
    """Return the error for an object whose number is too great: control objects with lower numbers are missing."""
    return LedgerDamagedError(
        f"{url}: expected a number up to {highest + 1} in a control object, up to {highest} in another object, found "
        f"{number}; the object was not applied. An object below {CONTROLS}/ was deleted, or another program wrote "
        "this one. Restore the deleted object from a copy; if there is no copy, delete this object. Then run again"
    )


def encode_control(control: Control) -> bytes:
    """Encode a control object."""
    fields: dict[str, Any] = {
        "format": LEDGER_FORMAT,
        "kind": control.kind,
        "number": control.number,
        "at": control.at,
        "token": control.token,
    }
    if control.kind == "run":
        fields["info"] = dict(control.info)
    elif control.kind == "forget":
        fields["sources"] = [source.hex() for source in control.sources]
        fields["failures_only"] = control.failures_only
        fields["withdrawn"] = [[source.hex(), *withdrawn_row(why)] for source, why in control.withdrawn.items()]
    elif control.job is not None:
        fields["job"] = control.job.as_row()
    return encode(fields)


def decode_control(data: bytes, url: str) -> Control:
    """Decode a control object. Raises LedgerVersionError, LedgerDamagedError."""
    try:
        fields = mapping(decode(data))
        _check_format(fields, url)
        kind: Any = fields.get("kind")
        return Control(
            number=integer(fields.get("number")),
            kind=kind,
            at=seconds(fields.get("at")),
            token=text(fields.get("token")),
            info=fields.get("info", {}),
            sources=column(fields, "sources", identity),
            failures_only=fields.get("failures_only", False),
            withdrawn={identity(source): read_withdrawn(why) for source, *why in column(fields, "withdrawn", rows)},
            job=Job.from_row(fields["job"]) if "job" in fields else None,
        )
    except ValueError as error:
        raise damaged(url, f"{error}") from None


def encode_ledger(token: str, job: Job) -> bytes:
    """Encode ``job.json``: the ledger's id and its first job."""
    with recordable("this job"):
        about = {**job.as_row(), "pipeline": text(job.pipeline), "parameters": mapping(dict(job.parameters))}
    return encode({"format": LEDGER_FORMAT, "ledger": token, **about, "fingerprint": job.fingerprint})


def decode_ledger(data: bytes, url: str) -> tuple[str, Job]:
    """Decode ``job.json``; raises like `decode_control`."""
    try:
        fields = mapping(decode(data))
        _check_format(fields, url)
        return text(fields.get("ledger")), Job.from_row(fields)
    except ValueError as error:
        raise damaged(url, f"{error}") from None


def _check_format(fields: Mapping[str, Any], url: str) -> None:
    """Check the format version of an object. Raises LedgerVersionError or ValueError."""
    found = integer(fields.get("format"), 1)
    if found > LEDGER_FORMAT:
        raise LedgerVersionError(
            f"{url}: it has format {found}, and this ledgerbeam reads formats up to {LEDGER_FORMAT}; install the "
            "version of ledgerbeam that wrote it, or a newer one"
        )
