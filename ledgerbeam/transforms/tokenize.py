"""Text of records as tokens: `TokenizeRecords`, a function of one task."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Self

from ledgerbeam.errors import FunctionError
from ledgerbeam.io.megatron.tokenizer import TextTokens, Tokenizer, read_tokenizer
from ledgerbeam.ledger import FailedTask, NoneTask, Task
from ledgerbeam.ledger.model.function_parts import made_of
from ledgerbeam.ledger.model.job import Json
from ledgerbeam.ledger.model.user_code import Reference, import_function
from ledgerbeam.ledger.model.user_errors import describe_error, failed_by, is_interrupt, message_of
from ledgerbeam.transforms.mapping import record_place

__all__ = ["TokenizeRecords"]


class TokenizeRecords:
    """A function of one task for `ProcessTask`: for each key, each record becomes a document.

    A document is a list of sequences. The value under a key is a text, one sequence, or a list of texts, one each.

    Args:
        tokenizer: As `read_tokenizer` takes it; read on the worker.
        checksum: Of its file.
        keys: Names of texts in a record; a dot leads into a nested object unless the record has the whole name.
        split: The function that makes a list of texts of one, by its name or itself, or None.
    """

    def __init__(
        self,
        tokenizer: str,
        checksum: str,
        keys: tuple[str, ...],
        split: Reference | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._checksum = checksum
        self._keys = keys
        self._split = split
        self._options: Mapping[str, Any] = {}
        self._loaded: tuple[Tokenizer, Callable[[str], Any] | None] | None = None

    def __repr__(self) -> str:
        return f"TokenizeRecords({self._tokenizer!r}, {self._keys!r})"

    def identity(self) -> dict[str, Json]:
        """Return what shapes the results: the content of the tokenizer's file, the keys, and what splits texts."""
        split: dict[str, Json] = {} if self._split is None else {"split": str(self._split), **made_of(self._split)}
        return {"tokenizer": self._checksum, "keys": list(self._keys), **split}

    def with_storage_options(self, options: Mapping[str, Any]) -> Self:
        """Return the function with the options of the store that holds the tokenizer, which its pipeline gives."""
        given = copy.copy(self)
        given._options = options  # noqa: SLF001 - its own copy
        return given

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": None}

    def __call__(self, task: Task) -> Task | NoneTask | FailedTask:
        """Tokenize the records of `task`.

        Raises:
            ChangedSourceError: The tokenizer's file has changed.
        """
        if not task.records:
            return NoneTask(task)
        try:
            tokenizer, split = self._load()
        except FunctionError as error:
            return failed_by(error, task, f"{task.name}: {error}")
        texts: list[list[list[str]]] = [[] for _ in self._keys]
        for position, record in enumerate(task.records):
            try:
                for of_key, key in zip(texts, self._keys, strict=True):
                    of_key.append(self._sentences(record, key, split))
            except BaseException as error:
                if is_interrupt(error):
                    raise
                own = type(error) is FunctionError
                what = message_of(error) if own else f"{self._split} raised {describe_error(error)}"
                return failed_by(error, task, f"{record_place(task, position)}: {what}")
        return task.replace(records=[_tokens(tokenizer, documents) for documents in texts])

    def _load(self) -> tuple[Tokenizer, Callable[[str], Any] | None]:
        if self._loaded is None:
            tokenizer, _ = read_tokenizer(self._tokenizer, self._options, checksum=self._checksum)
            self._loaded = tokenizer, import_function(self._split) if self._split else None
        return self._loaded

    def _sentences(self, record: Any, key: str, split: Callable[[str], Any] | None) -> list[str]:
        value = _look_up(record, key)
        texts = [value] if isinstance(value, str) else value
        if not _is_texts(texts):
            raise FunctionError(f"expected text under {key!r}, found {type(value).__name__}; see --key")
        if split is None:
            return texts
        sentences: list[str] = []
        for text in texts:
            made = split(text)
            if not _is_texts(made):
                raise FunctionError(f"{self._split} returned a {type(made).__name__}: expected a list of texts")
            sentences += made
        return sentences


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _look_up(record: Any, key: str) -> Any:
    if isinstance(record, Mapping) and key in record:
        return record[key]
    value = record
    for name in key.split("."):
        if not isinstance(value, Mapping) or name not in value:
            found = (
                f"a record with {', '.join(map(repr, record))}" if isinstance(record, Mapping) else repr(record)[:80]
            )
            raise FunctionError(f"has no {key!r}: found {found}; name the text with --key")
        value = value[name]
    return value


def _tokens(tokenizer: Tokenizer, documents: list[list[str]]) -> list[list[TextTokens]]:
    """Tokenize all texts of a task at once."""
    tokens = iter(tokenizer.encode([text for texts in documents for text in texts]))
    return [list(islice(tokens, len(texts))) for texts in documents]
