"""The identity of a job, by which a ledger refuses another job; and texts that show changes.

A job holds hashes of source code, values and small files. The hashed texts are stored beside the job in its ledger, by
hash, without credentials and bounded in size. They only explain a difference; the hashes alone decide equality.
"""

from __future__ import annotations

import base64
import json
import re
import textwrap
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import unified_diff
from hashlib import blake2b
from itertools import repeat
from typing import Any, Literal

import orjson

from ledgerbeam._base.redaction import HIDDEN, holds_credential, is_credential, is_opaque, printable, without_secrets
from ledgerbeam.errors import JobMismatchError, UsageError
from ledgerbeam.ledger.model.values import mapping, text

LEDGER_FORMAT = 1
"""Version of jobs and of the objects of a remote ledger; part of every fingerprint. Tables in LMDB have another one."""

OnJobChange = Literal["refuse", "restart", "accept"]
"""Action for a ledger of another job: raise, drop its progress, or keep its progress under the new job."""

Json = None | bool | int | float | str | list[Any] | dict[str, Any]  # a value that JSON can hold

_UNSET = object()
_SHORT = 120  # largest sum of characters of two texts that are shown side by side in one line


@dataclass(frozen=True)
class Job:
    """A pipeline and the parameters that shape its outputs.

    Attributes:
        pipeline: Its name, for instance ``map``.
        parameters: Values that JSON can hold. Only values that change the bytes or the names of outputs belong here;
            a worker count does not. Nested mappings are compared key by key.
        texts: The texts whose hashes are among the parameters, from `pack_texts`. They only show changes, and do not
            belong to the identity.
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
        """Return the job with the texts that `note_text` has recorded in this process."""
        if self.texts:
            return self
        known = known_texts(value for _, value in flat_parameters(self.parameters))
        return replace(self, texts=pack_texts(known)) if known else self

    @classmethod
    def from_row(cls, value: Any) -> Job:
        """Read a job from `as_row`. Raises ValueError."""
        fields = mapping(value)
        return cls(text(fields.get("pipeline")), mapping(fields.get("parameters")), text(fields.get("texts", "")))

    def differences(self, stored: Job) -> list[str]:
        """Return the differences between this job and a recorded one: one text for each value, sorted by name.

        For example ``set limit: was 5, is 6``. Source code and other long texts have a line for each changed line.
        """
        was = dict(flat_parameters(stored.parameters))
        now = dict(flat_parameters(self.parameters))
        found = [] if stored.pipeline == self.pipeline else [_was_is("pipeline", stored.pipeline, self.pipeline)]
        both = {name: (was.get(name, _UNSET), now.get(name, _UNSET)) for name in sorted({*was, *now})}
        names = [name for name, pair in both.items() if _UNSET in pair or len({*map(_canonical, pair)}) > 1]
        before, after = unpack_texts(stored.texts), unpack_texts(self.with_texts().texts) if names else {}
        shown = set[str]()  # changed lines: several functions may be in one module
        for name in names:
            change = _change(name, *both[name], before, after)
            lines = change.partition("\n")[2]
            found.append(f"{name}: changed in the same lines" if lines in shown else change)
            shown |= {lines} - {""}
        return found


def job_changed_error(ledger: str, expected: str, found: str) -> JobMismatchError:
    """Return the error of a writer whose ledger was opened for another job meanwhile.

    `expected` and `found` are fingerprints.
    """
    return JobMismatchError(
        f"ledger {ledger}: another job has opened it while this one ran (expected the fingerprint {expected}, found "
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
    if " set " in f" {name}" and holds_credential(name.rpartition(" ")[2], value):
        return HIDDEN
    return "not set" if value is _UNSET else repr(value)


LONGEST = 64_000  # largest number of characters of a stored text. Longer texts have only a hash.
MOST = 256_000  # largest number of characters of all stored texts of a job. The longest texts are left out first.

_MOST_NOTED = 4_000
_SHOWN_LINES = 12
_WIDEST = 110
_LEAVES = 500

_QUOTED = re.compile(
    r"""(?P<name>[\w.-]+)(?P<sign>["'\]]*\s*(?::\s*\w+\s*)?[:=]\s*[rbfuRBFU]*)"""
    r"""(?P<quote>["'])(?P<value>.*?)(?P=quote)"""
)
_PLAIN = re.compile(r"""(?P<name>[\w.-]+)(?P<sign>\s*[:=]\s*)(?P<value>[^\s"'(){}\[\],#]+)""")
_WORD = re.compile(r"[A-Za-z0-9+/=_-]{20,}")

_noted: OrderedDict[str, tuple[Callable[[], str], bool]] = OrderedDict()
_lock = threading.Lock()


def note_text(key: str, read: Callable[[], str], *, is_code: bool = True) -> None:
    """Record, in this process, the function that reads the text with the hash `key`. If it raises, there is no text.

    Credentials are removed: in code from quotes and comments, in another text also from words without quotes.
    """
    with _lock:
        _noted[key] = read, is_code
        while len(_noted) > _MOST_NOTED:
            _noted.popitem(last=False)


def known_texts(values: Iterator[Any]) -> dict[str, str]:
    """Return, by hash, the texts that `note_text` has recorded for those values that are hashes of texts.

    The texts have no credentials, and together at most `MOST` characters.
    """
    found: dict[str, str] = {}
    for key in values:
        with _lock:
            noted = _noted.get(key) if isinstance(key, str) else None
        if noted is not None and (text := _read(*noted)) is not None:
            found[key] = text
    left = MOST
    kept: dict[str, str] = {}
    for key, text in sorted(found.items(), key=lambda item: (len(item[1]), item[0])):
        left -= len(text)
        if left >= 0:
            kept[key] = text
    return kept


def pack_texts(texts: Mapping[str, str]) -> str:
    """Encode texts for a ledger."""
    return base64.b64encode(zlib.compress(json.dumps(dict(texts)).encode())).decode()


def unpack_texts(packed: Any) -> dict[str, str]:
    """Decode the texts of `pack_texts`; empty if they are damaged, since they only explain."""
    try:
        data = zlib.decompressobj().decompress(base64.b64decode(packed), 8 * MOST)
        found = json.loads(data)
    except (TypeError, ValueError, zlib.error):
        return {}
    texts = found.items() if isinstance(found, dict) else ()
    return {key: text for key, text in texts if isinstance(text, str)}


def changed_lines(before: str, after: str) -> list[str]:
    """Return the changed lines of a text, with ``-`` and ``+`` in front; of many lines only the first."""
    lines: list[str] = []
    for line in list(unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0))[2:]:
        if not line.startswith("@@"):
            lines.append(printable(f"{line[0]} {line[1:]}"))
        elif lines:
            lines.append("...")
    if not lines:
        return ["only a hidden credential or the version of Python has changed"]
    more = len(lines) - _SHOWN_LINES
    shown = [line if len(line) <= _WIDEST else f"{line[: _WIDEST - 3]}..." for line in lines[:_SHOWN_LINES]]
    return [*shown, f"... and {more:,} more lines"] if more > 0 else shown


def shown_value(name: str, value: Any) -> str:
    """Return a value as text without credentials, with one line for each part of a list or mapping.

    Raises:
        ValueError: JSON cannot hold the value, or it has too many parts.
    """
    if isinstance(value, (str, bool, int, float, type(None))):
        return HIDDEN if holds_credential(name, value) else str(value)
    return "\n".join(_parts(name, value, [_LEAVES]))


def _parts(name: str, value: Any, left: list[int], indent: str = "") -> Iterator[str]:
    left[0] -= 1
    if left[0] < 0 or len(indent) > 20:
        raise ValueError("it has too many parts")
    if type(value) in (set, frozenset):
        value = sorted(value, key=repr)
    if type(value) not in (dict, list, tuple):
        raise ValueError(f"it holds a {type(value).__name__}")
    is_dict = type(value) is dict
    for key, part in value.items() if is_dict else zip(repeat(name), value, strict=False):
        label = f"{indent}{key!r}:" if is_dict else f"{indent}-"
        if isinstance(part, (str, bool, int, float, type(None))):
            left[0] -= 1
            yield f"{label} {HIDDEN if holds_credential(str(key), part) else repr(part)}"
        else:
            yield label
            yield from _parts(str(key), part, left, f"{indent}  ")


def _read(read: Callable[[], str], is_code: bool) -> str | None:
    try:
        text = read()
    except Exception:  # noqa: BLE001 - a text that cannot be read is left out
        return None
    if len(text) > LONGEST:
        return None
    return "\n".join(
        _without_credentials(line, is_code) for line in without_secrets(textwrap.dedent(text)).splitlines()
    )


def _without_credentials(line: str, is_code: bool) -> str:
    line = _QUOTED.sub(_hidden, line)
    code, mark, comment = line.partition("#") if is_code else ("", "", line)
    line = code + mark + _PLAIN.sub(_hidden, comment)
    return _WORD.sub(lambda found: HIDDEN if is_opaque(found[0]) else found[0], line)


def _hidden(found: re.Match[str]) -> str:
    if not is_credential(found["name"], found["value"]):
        return found[0]
    quote = found.groupdict().get("quote") or ""
    return f"{found['name']}{found['sign']}{quote}{HIDDEN}{quote}"
