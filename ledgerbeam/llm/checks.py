"""Checks of answers: refusal, finish reason, JSON, JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from hashlib import blake2b
from typing import Any

import orjson

from ledgerbeam._base.extensions import import_extra
from ledgerbeam.errors import UsageError
from ledgerbeam.results import Reject

_MOST_RAW = 64 << 10  # characters of an answer that are kept with a rejected record


class AnswerCheck:
    """Reads the value of an answer: its text, or with a schema its JSON.

    Args:
        schema: A JSON Schema, the path of its file, or None.

    Attributes:
        digest: Hash of the schema; None without one.
        response_format: The parameter that requests answers for the schema; None without one.
    """

    def __init__(self, schema: Mapping[str, Any] | str | None) -> None:
        try:
            self._schema = _loaded(schema) if isinstance(schema, str) else schema
        except (OSError, ValueError) as error:
            raise UsageError(f"schema: {schema}: {error}; give a JSON Schema, or the path of its file") from None
        self.digest, self.response_format = None, None
        if self._schema is not None:
            self.digest = blake2b(orjson.dumps(self._schema, option=orjson.OPT_SORT_KEYS), digest_size=8).hexdigest()
            asked = {"name": "answer", "schema": self._schema, "strict": True}
            self.response_format = {"type": "json_schema", "json_schema": asked}
            self._best_fault({})  # raises for an invalid schema

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_validator"}

    def value(self, answer: Mapping[str, Any]) -> Any:
        """Return the value of an answer, or a `Reject` with the raw answer."""
        try:
            choice = answer["choices"][0]
            message = choice["message"]
            text, refusal, finish = message.get("content"), message.get("refusal"), choice.get("finish_reason")
        except (KeyError, IndexError, TypeError, AttributeError):
            return rejected("no answer", "expected a message", orjson.dumps(answer).decode())
        if refusal:
            return rejected("refused", "the model refused", str(refusal))
        if finish == "content_filter":
            return rejected("content filter", "the answer was filtered", text or "")
        if not isinstance(text, str):
            return rejected("no answer", "expected a text", orjson.dumps(message).decode())
        if finish == "length":
            return rejected("cut off", "the answer reached the limit of tokens", text)
        if self._schema is None:
            return text
        try:
            value = orjson.loads(text)
        except ValueError as error:
            return rejected("not JSON", str(error), text)
        fault = self._best_fault(value)
        return value if fault is None else rejected("violates schema", f"{fault.json_path}: {fault.message}", text)

    def _best_fault(self, value: Any) -> Any:
        return import_extra("jsonschema", "llm", _NEED).exceptions.best_match(self._validator.iter_errors(value))

    @cached_property
    def _validator(self) -> Any:
        jsonschema, referencing = import_extra("jsonschema", "llm", _NEED), import_extra("referencing", "llm", _NEED)
        kind = jsonschema.validators.validator_for(self._schema, jsonschema.Draft202012Validator)
        try:
            kind.check_schema(self._schema)
        except jsonschema.SchemaError as error:
            raise UsageError(f"schema: {error.json_path}: {error.message}; give a valid JSON Schema") from None
        return kind(self._schema, registry=referencing.Registry())  # the default one fetches references by HTTP


_NEED = "a schema needs jsonschema"


def _loaded(path: str) -> dict[str, Any]:
    with open(path, "rb") as file:
        found: dict[str, Any] = orjson.loads(file.read())
    return found


def rejected(reason: str, problem: str, raw: str) -> Reject:
    """Return the `Reject` of a record, with a raw answer."""
    cut = f"{raw[:_MOST_RAW]} ... ({len(raw):,} characters)" if len(raw) > _MOST_RAW else raw
    return Reject(reason, f"{problem[:200]}; answer: {cut}")
