"""Text to tokens: UTF-8 bytes, or a tokenizer file of Hugging Face `tokenizers`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray

from ledgerbeam._base.extensions import install_command
from ledgerbeam.errors import ChangedSourceError, RecordError, UsageError
from ledgerbeam.io.datasets.megatron.layout import optimal_dtype
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.files import read_bytes

BYTES = "bytes"  # name of the tokenizer that needs no file

EOD_NAMES = ("<|endoftext|>", "<|end_of_text|>", "<eod>", "<EOD>", "<eos>", "</s>", "[EOS]")
"""Names of a token that ends documents, in the order in which they are tried."""

TextTokens: TypeAlias = Sequence[int] | NDArray[Any]  # the tokens of one text

SpecialTokens: TypeAlias = Literal["text", "token"]
"""Result for the name of a special token inside a text: tokens of ordinary text, or the special token."""


class ByteTokenizer:
    """UTF-8 bytes as tokens from 0 to 255; 256 ends documents."""

    vocabulary = 256

    def eod(self, name: str | None) -> int:
        """Return 256; raises UsageError if a name was given, since bytes have no names."""
        if name is not None:
            raise UsageError(f"--eod {name}: the tokens of 'bytes' have no names; leave --eod out: 256 ends documents")
        return 256

    def encode(self, text: str) -> TextTokens:
        """Return the bytes of a text: u8."""
        return np.frombuffer(text.encode(), np.uint8)


class FileTokenizer:
    """A tokenizer of the package `tokenizers`, without padding, truncation and special tokens around texts.

    `eod`, the token that ends documents, is always treated as a special token. UsageError: the package is missing, the
    content is not a tokenizer, or the tokenizer uses random numbers.
    """

    def __init__(self, data: bytes, url: str, special_tokens: SpecialTokens = "text", eod: int | None = None) -> None:
        # The job has a process for each core, so threads of the package would only compete with each other.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        try:
            from tokenizers import Tokenizer as Model  # noqa: PLC0415 - an optional dependency
        except ImportError as error:
            raise UsageError(
                f"{url}: reading a tokenizer file needs the package tokenizers; {install_command('tokenize')}"
            ) from error
        self._url = url
        try:
            settings = orjson.loads(data)
            for token in settings.get("added_tokens", ()):
                token["special"] = token["special"] or token["id"] == eod
            self._model = Model.from_str(orjson.dumps(settings).decode())
        except Exception as error:  # the package raises Exception itself
            raise UsageError(f"{url}: expected a tokenizer.json of Hugging Face tokenizers: {error}") from error
        if settings["model"].get("dropout"):
            raise UsageError(
                f"{url}: its model drops merges at random (dropout {settings['model']['dropout']}), so a restarted "
                "job could yield other tokens; set dropout to null"
            )
        self._model.no_padding()
        self._model.no_truncation()
        self.vocabulary = 1 + max(self._model.get_vocab(with_added_tokens=True).values(), default=0)
        self._dtype = optimal_dtype(self.vocabulary)
        self._refused: NDArray[np.bool_] | None = None
        if special_tokens == "text":
            self._model.encode_special_tokens = True
            self._refused = np.zeros(self.vocabulary, bool)
            self._refused[self._special(settings["model"])] = True
            if eod is not None:
                self._refused[eod] = True

    def _special(self, model: Mapping[str, Any]) -> list[int]:
        """Return the special tokens, without the token for unknown text."""
        unknown = model.get("unk_token")
        unknown_id = model.get("unk_id") if unknown is None else self._model.token_to_id(unknown)
        added = self._model.get_added_tokens_decoder()
        return [number for number, token in added.items() if token.special and number != unknown_id]

    def eod(self, name: str | None) -> int:
        """Return the token that ends documents: the named one, or the first of `EOD_NAMES`. UsageError: no token."""
        for candidate in EOD_NAMES if name is None else (name,):
            token: int | None = self._model.token_to_id(candidate)
            if token is not None:
                return token
        if name is not None:
            raise UsageError(f"{self._url}: there is no token {name!r}; pass another --eod")
        raise UsageError(
            f"{self._url}: none of the usual tokens for the end of a document exists ({', '.join(EOD_NAMES)}); name "
            "the token with --eod TOKEN, or pass --no-append-eod"
        )

    def encode(self, text: str) -> TextTokens:
        """Return the tokens of a text.

        RecordError: the model makes a special token of text that must become ordinary tokens. This can happen
        with models of whole words and with Unigram models, whose words include the special tokens.
        """
        (encoding,) = self._model.encode_batch_fast([text], add_special_tokens=False)
        tokens = np.array(encoding.ids, self._dtype)  # a list takes many times the memory
        if self._refused is not None and (found := tokens[self._refused[tokens]]).size:
            name = self._model.id_to_token(int(found[0]))
            raise RecordError(
                f"expected ordinary tokens, but the model of {self._url} makes the special token {name!r} of the text; "
                "keep this token with --special-tokens token, or leave such records out with --on-error reject"
            )
        return tokens


Tokenizer: TypeAlias = ByteTokenizer | FileTokenizer  # the same text always has the same tokens


def read_tokenizer(
    url: str,
    options: Options | None = None,
    *,
    checksum: str | None = None,
    special_tokens: SpecialTokens = "text",
    eod: int | None = None,
) -> tuple[Tokenizer, str]:
    """Read a tokenizer: ``bytes``, or the URL of a ``tokenizer.json``.

    Also return the checksum of its file: BLAKE2b of 16 bytes as hexadecimal digits, empty for ``bytes``. `eod` is the
    token that ends documents; it is treated as special.

    ChangedSourceError: the checksum of the file is not `checksum`. UsageError: the file is not a tokenizer, the package
    that reads it is missing, or special tokens are requested for ``bytes``.
    """
    if url == BYTES:
        if special_tokens != "text":
            raise UsageError(
                f"--special-tokens {special_tokens}: the tokenizer 'bytes' has no special tokens; leave this option out"
            )
        return ByteTokenizer(), ""
    data = read_bytes(url, options)
    found = hashlib.blake2b(data, digest_size=16).hexdigest()
    if checksum not in (None, found):
        raise ChangedSourceError(
            f"{url}: changed after the job started: expected the checksum {checksum}, found {found}; run the job again"
        )
    return FileTokenizer(data, url, special_tokens, eod), found
