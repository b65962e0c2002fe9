"""Text to tokens: UTF-8 bytes, or a tokenizer file of Hugging Face `tokenizers`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray

from ledgerbeam.errors import ChangedSourceError, UsageError
from ledgerbeam.io.megatron.layout import optimal_dtype
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.files import read_bytes

__all__ = ["BYTES", "EOD_NAMES", "ByteTokenizer", "FileTokenizer", "TextTokens", "Tokenizer", "read_tokenizer"]

BYTES = "bytes"
"""The name of the tokenizer that needs no file."""

EOD_NAMES = ("<|endoftext|>", "<|end_of_text|>", "<eod>", "<EOD>", "<eos>", "</s>", "[EOS]")
"""Names under which the end of a document is looked for, in this order."""

TextTokens: TypeAlias = Sequence[int] | NDArray[Any]
"""The tokens of one text."""

_BATCH_CHARACTERS = 1_000_000


class Tokenizer(Protocol):
    """Turns text into tokens, always the same text into the same tokens."""

    @property
    def vocabulary(self) -> int:
        """One more than the highest token that a text can become."""

    def eod(self, name: str | None) -> int:
        """Return the token that ends documents: of that name, or of the first of `EOD_NAMES` that it has.

        Raises:
            UsageError: It has no such token.
        """

    def encode(self, texts: Sequence[str]) -> list[TextTokens]:
        """Return the tokens of each text, without any special token that the text does not hold."""


class ByteTokenizer:
    """UTF-8 bytes as tokens from 0 to 255; 256 ends documents."""

    vocabulary = 256

    def eod(self, name: str | None) -> int:
        """Return 256.

        Raises:
            UsageError: A name was given: bytes have none.
        """
        if name is not None:
            raise UsageError(f"--eod {name}: the tokens of 'bytes' have no names, its end of a document is 256")
        return 256

    def encode(self, texts: Sequence[str]) -> list[TextTokens]:
        """Return the bytes of each text: u8."""
        return [np.frombuffer(text.encode(), np.uint8) for text in texts]


class FileTokenizer:
    """A tokenizer of the package `tokenizers`, without padding, truncation and special tokens around texts.

    Args:
        data: The content of a `tokenizer.json`.
        url: Where it was read, for messages.

    Raises:
        UsageError: The package is missing, the content is no tokenizer, or one that tosses coins.
    """

    def __init__(self, data: bytes, url: str) -> None:
        # The job has a process for each core; threads of the package would only be in each other's way.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        try:
            from tokenizers import Tokenizer as Model  # noqa: PLC0415 - an optional dependency
        except ImportError as error:
            raise UsageError(
                f"{url}: reading a tokenizer file needs the package tokenizers; pip install 'ledgerbeam[tokenize]'"
            ) from error
        self._url = url
        try:
            settings = orjson.loads(data)
            self._model = Model.from_str(data.decode())
        except Exception as error:  # the package raises Exception itself
            raise UsageError(
                f"{url}: expected a tokenizer.json of Hugging Face tokenizers, found something else: {error}"
            ) from error
        if settings["model"].get("dropout"):
            raise UsageError(
                f"{url}: its model drops merges at random (dropout {settings['model']['dropout']}), so a restarted "
                "job could not end with the bytes of a clean one; set dropout to null"
            )
        self._model.no_padding()
        self._model.no_truncation()
        self.vocabulary = 1 + max(self._model.get_vocab(with_added_tokens=True).values(), default=0)
        self._dtype = optimal_dtype(self.vocabulary)

    def eod(self, name: str | None) -> int:
        """Return the token that ends documents; see `Tokenizer`."""
        for candidate in EOD_NAMES if name is None else (name,):
            token: int | None = self._model.token_to_id(candidate)
            if token is not None:
                return token
        if name is not None:
            raise UsageError(f"{self._url}: has no token {name!r}; give another --eod")
        raise UsageError(
            f"{self._url}: has none of the usual tokens for the end of a document ({', '.join(EOD_NAMES)}); name it "
            "with --eod TOKEN, or pass --no-append-eod"
        )

    def encode(self, texts: Sequence[str]) -> list[TextTokens]:
        """Return the tokens of each text."""
        found: list[TextTokens] = []
        batch: list[str] = []
        size = 0
        for text in texts:
            batch.append(text)
            size += len(text)
            if size > _BATCH_CHARACTERS:
                found += self._encode(batch)
                batch, size = [], 0
        return found + self._encode(batch)

    def _encode(self, texts: list[str]) -> list[TextTokens]:
        encodings = self._model.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, self._dtype) for encoding in encodings]  # a list takes many times the memory


def read_tokenizer(url: str, options: Options | None = None, *, checksum: str | None = None) -> tuple[Tokenizer, str]:
    """Read a tokenizer.

    Args:
        url: ``bytes``, or where a ``tokenizer.json`` lies.
        options: Storage options.
        checksum: What the file must have; None for any.

    Returns:
        The tokenizer, and the checksum of its file: BLAKE2b of 16 bytes as hexadecimal digits, empty for ``bytes``.

    Raises:
        ChangedSourceError: The file has another checksum.
        SourceNotFoundError: There is no such file.
        UsageError: The file is no tokenizer, or the package that reads it is missing.
    """
    if url == BYTES:
        return ByteTokenizer(), ""
    data = read_bytes(url, options)
    found = hashlib.blake2b(data, digest_size=16).hexdigest()
    if checksum not in (None, found):
        raise ChangedSourceError(
            f"{url}: changed since the job began: expected the checksum {checksum}, found {found}; run the job again"
        )
    return FileTokenizer(data, url), found
