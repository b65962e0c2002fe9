"""`TokenizeRecords`: a function of one task that tokenizes the texts of records."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Self

from ledgerbeam.errors import FunctionError, RecordError
from ledgerbeam.io.datasets.megatron.tokenizer import SpecialTokens, TextTokens, Tokenizer, read_tokenizer
from ledgerbeam.ledger.model.job import Json
from ledgerbeam.sources.forms import OnError
from ledgerbeam.transforms.mapping.function import MapWithin
from ledgerbeam.user_code.functions import made_of
from ledgerbeam.user_code.guards import describe_error, is_interrupt, message_of
from ledgerbeam.user_code.loading import Reference, import_function
from ledgerbeam.user_code.objects import ReadyObject


class TokenizeRecords(MapWithin):
    """A function of one task, for `ProcessTask`: make one document per key from each record.

    A document is a list of token sequences. The value of a key is a text or a list of texts; each text becomes one
    sequence. A result maps keys to documents.

    Args:
        tokenizer: Tokenizer, see `read_tokenizer`. Each worker reads it.
        checksum: Checksum of the file of the tokenizer.
        keys: Names of the text fields. A dot leads into a nested object, unless the record has a field of that name.
        split: Function that splits a text into a list of texts, or its name; None does not split.
        special_tokens: Treatment of names of special tokens inside texts, see `read_tokenizer`.
        eod: Token at the end of each document, or None. A text that contains it is an error, unless `special_tokens` is
            ``token``.
        on_error: Treatment of a record that cannot be decoded, has no text, or cannot be tokenized.
    """

    is_async = False  # a function that splits texts is called without `await`

    def __init__(
        self,
        tokenizer: str,
        checksum: str,
        keys: tuple[str, ...],
        split: Reference | None = None,
        *,
        special_tokens: SpecialTokens = "text",
        eod: int | None = None,
        on_error: OnError = "fail",
    ) -> None:
        super().__init__("tokenize" if split is None else split, "megatron", on_error=on_error)
        self._tokenizer = tokenizer
        self._checksum = checksum
        self._keys = keys
        self._split = split
        self._special_tokens = special_tokens
        self._eod = eod
        self._options: Mapping[str, Any] = {}

    def __repr__(self) -> str:
        return f"TokenizeRecords({self._tokenizer!r}, {self._keys!r})"

    def identity(self) -> dict[str, Json]:
        """Return everything that affects the results: tokenizer, keys and splitting function."""
        split: dict[str, Json] = {} if self._split is None else {"split": str(self._split), **made_of(self._split)}
        return {"tokenizer": self._checksum, "keys": list(self._keys), "special_tokens": self._special_tokens, **split}

    def with_storage_options(self, options: Mapping[str, Any]) -> Self:
        """Return a copy that reads the tokenizer with the storage options of the pipeline."""
        given = copy.copy(self)
        given._options = options  # noqa: SLF001 - a copy of this object
        return given

    def _load(self) -> tuple[ReadyObject, ...]:
        tokenizer, _ = read_tokenizer(
            self._tokenizer, self._options, checksum=self._checksum, special_tokens=self._special_tokens, eod=self._eod
        )
        split = import_function(self._split) if self._split else None
        document = partial(self._document, tokenizer=tokenizer, split=split)
        return (ReadyObject(lambda record: {key: document(record, key) for key in self._keys}),)

    def _document(
        self, record: Any, key: str, tokenizer: Tokenizer, split: Callable[[str], Any] | None
    ) -> list[TextTokens]:
        return [self._tokens(text, key, tokenizer) for text in self._sentences(record, key, split)]

    def _tokens(self, text: str, key: str, tokenizer: Tokenizer) -> TextTokens:
        try:
            return tokenizer.encode(text)
        except BaseException as error:
            if is_interrupt(error):
                raise
            is_own = type(error) is RecordError
            what = message_of(error) if is_own else f"{self._tokenizer} raised {describe_error(error)}"
            raise RecordError(f"the text under {key!r}: {what}") from error

    def _sentences(self, record: Any, key: str, split: Callable[[str], Any] | None) -> list[str]:
        value = _look_up(record, key)
        texts = [value] if isinstance(value, str) else value
        if not _is_texts(texts):
            raise RecordError(f"expected text under {key!r}, found {type(value).__name__}; name the text with --key")
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
            raise RecordError(f"no field {key!r}: found {found}; name the text with --key")
        value = value[name]
    return value
