"""The identity of a job, by which a ledger refuses another job."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Literal

import orjson

from ledgerbeam._base.redaction import HIDDEN, holds_credential
from ledgerbeam.errors import JobMismatchError, UsageError
from ledgerbeam.ledger.model.part_texts import changed_lines, known_texts, pack_texts, unpack_texts

LEDGER_FORMAT = 1
"""Version of jobs and of the objects of a remote ledger; part of every fingerprint. Tables in LMDB have another one."""

OnJobChange = Literal["refuse", "restart", "accept"]
"""Action for a ledger of another job: raise, drop its progress, or keep its progress under the new job."""

Json = None | bool | int | float | str | list[Any] | dict[str, Any]
"""A value that JSON can hold."""

_UNSET = object()
_SHORT = 120
"""Largest sum of characters of two texts that are shown side by side in one line."""


@dataclass(frozen=True)
class Job:
    """A pipeline and the parameters that shape its outputs.

    Attributes:
        pipeline: Its name, for instance ``map``.
        parameters: Values that JSON can hold. Only values that change the bytes or the names of outputs belong here;
            a worker count does not. Nested mappings are compared key by key.
        texts: The texts behind hashes among the parameters, as of `part_texts.pack_texts`. They are not part of the
            job; they only show changes.
    """

    pipeline: str
    parameters: Mapping[str, Json]
    texts: str = field(default="", compare=False, repr=False)

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

    def as_row(self) -> dict[str, Any]:
        """Return the job as a row of a ledger: `as_dict`, and the texts unless they are empty."""
        return {**self.as_dict(), **({"texts": self.texts} if self.texts else {})}

    def with_texts(self) -> Job:
        """Return the job with the texts that this process has noted."""
        if self.texts:
            return self
        known = known_texts(value for _, value in flat_parameters(self.parameters))
        return replace(self, texts=pack_texts(known)) if known else self

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Job:
        """Rebuild a job from `as_dict`; other keys are ignored."""
        return cls(value["pipeline"], value["parameters"])

    def differences(self, stored: Job) -> list[str]:
        """Return the differences between this job and a recorded one.

        Returns:
            One text for each value, sorted by name: ``set limit: was 5, is 6``. Source code and other long texts have
            a line for each changed line. Empty for equal jobs.
        """
        was = dict(flat_parameters(stored.parameters))
        now = dict(flat_parameters(self.parameters))
        found = [] if stored.pipeline == self.pipeline else [_was_is("pipeline", stored.pipeline, self.pipeline)]
        names = [name for name in sorted({*was, *now}) if _is_other(was.get(name, _UNSET), now.get(name, _UNSET))]
        before, after = unpack_texts(stored.texts), unpack_texts(self.with_texts().texts) if names else {}
        return [*found, *(_change(name, was.get(name, _UNSET), now.get(name, _UNSET), before, after) for name in names)]


def job_changed_error(ledger: str, expected: str, found: str) -> JobMismatchError:
    """Return the error of a writer whose ledger was opened for another job meanwhile.

    `expected` and `found` are fingerprints.
    """
    return JobMismatchError(
        f"ledger {ledger}: another job has opened it while this one ran (fingerprint expected {expected}, found "
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
    """Yield the parameters of a job; nested parameters are named by all keys on their path."""
    for key, item in value.items():
        name = f"{prefix} {key}".lstrip()
        if isinstance(item, Mapping) and item:
            yield from flat_parameters(item, name)
        else:
            yield name, item


def _is_other(before: Any, after: Any) -> bool:
    return before is _UNSET or after is _UNSET or _canonical(before) != _canonical(after)


def _change(name: str, was: Any, now: Any, before: Mapping[str, str], after: Mapping[str, str]) -> str:
    if not (isinstance(was, str) and isinstance(now, str) and was in before and now in after):
        return _was_is(name, was, now)
    one, other = before[was], after[now]
    if len(one) + len(other) <= _SHORT and "\n" not in one + other and one != other:
        return _was_is(name, one, other)
    return "\n    ".join([f"{name}: changed", *changed_lines(one, other)])


def _was_is(name: str, was: Any, now: Any) -> str:
    return f"{name}: was {_shown(name, was)}, is {_shown(name, now)}"


def _shown(name: str, value: Any) -> str:
    if name.startswith("set ") and holds_credential(name.rpartition(" ")[2], value):
        return HIDDEN
    return "not set" if value is _UNSET else repr(value)
