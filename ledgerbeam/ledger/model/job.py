"""What a job does, so that a ledger can refuse another one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

import orjson

from ledgerbeam.errors import JobMismatchError, UsageError

LEDGER_FORMAT = 1
"""Version of jobs and of the objects of a ledger; it is part of every fingerprint. Tables in LMDB have their own."""

OnJobChange = Literal["refuse", "restart", "accept"]
"""What to do with a ledger of another job: raise, drop its progress, or keep its progress under the new job."""

Json = None | bool | int | float | str | list[Any] | dict[str, Any]
"""A value that JSON can hold."""

_UNSET = object()


@dataclass(frozen=True)
class Job:
    """A pipeline and the parameters that shape its outputs.

    Attributes:
        pipeline: Its name, for instance ``map``.
        parameters: Values that JSON can hold. Only what changes the bytes or the names of outputs belongs here:
            a worker count does not. Nested mappings are compared key by key.
    """

    pipeline: str
    parameters: Mapping[str, Json]

    @property
    def fingerprint(self) -> str:
        """32 hexadecimal digits: BLAKE2b of the canonical JSON of the job and of `LEDGER_FORMAT`.

        Raises:
            UsageError: A parameter is not a JSON value.
        """
        return blake2b(
            _canonical({"format": LEDGER_FORMAT, **self.as_dict()}), digest_size=16, person=b"lb.job"
        ).hexdigest()

    def as_dict(self) -> dict[str, Any]:
        """Return the job as a JSON object: ``{"pipeline": ..., "parameters": {...}}``."""
        return {"pipeline": self.pipeline, "parameters": dict(self.parameters)}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Job:
        """Rebuild a job from `as_dict`; other keys are ignored."""
        return cls(value["pipeline"], value["parameters"])

    def differences(self, stored: Job) -> list[str]:
        """Return how this job differs from one that a ledger holds.

        Returns:
            One line for each value, sorted by name: ``function source: was 'ab12', is 'cd34'``. Empty for equal jobs.
        """
        was = dict(flat_parameters(stored.parameters))
        now = dict(flat_parameters(self.parameters))
        lines = [] if stored.pipeline == self.pipeline else [f"pipeline: was {stored.pipeline!r}, is {self.pipeline!r}"]
        for name in sorted({*was, *now}):
            before, after = was.get(name, _UNSET), now.get(name, _UNSET)
            if before is _UNSET or after is _UNSET or _canonical(before) != _canonical(after):
                lines.append(f"{name}: was {_shown(before)}, is {_shown(after)}")
        return lines


def taken_for_another_job(ledger: str, expected: str, found: str) -> JobMismatchError:
    """Return the error of a writer whose ledger was taken for another job while it ran; fingerprints as found."""
    return JobMismatchError(
        f"ledger {ledger}: it was taken for another job while this one ran (fingerprint expected {expected}, found "
        f"{found}); nothing more of this job is recorded. Stop this job, or run it again with a ledger of its own"
    )


def _canonical(value: Any) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError as error:
        if "surrogates" in str(error):  # a path that is not UTF-8
            return json.dumps(value, sort_keys=True).encode("ascii")
        raise UsageError(f"a job parameter is not a JSON value: {error}") from error


def flat_parameters(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the parameters of a job, those in nested mappings under the names of all that they are in."""
    for key, item in value.items():
        name = f"{prefix} {key}".lstrip()
        if isinstance(item, Mapping) and item:
            yield from flat_parameters(item, name)
        else:
            yield name, item


def _shown(value: Any) -> str:
    return "not set" if value is _UNSET else repr(value)
