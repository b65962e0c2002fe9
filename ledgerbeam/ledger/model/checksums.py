"""Checksums of the contents of outputs. Each says how it was computed, so that those of earlier versions stay right.

They name a content against accidents and forgery alike: what is published and what is run again is decided by them.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Protocol

from blake3 import blake3

from ledgerbeam.errors import LedgerError

_BLAKE3 = "blake3"
_BYTES = 16
_CONTENT = "content:"


class _Hash(Protocol):
    def update(self, data: bytes, /) -> object:
        """Take the next bytes."""

    def digest(self) -> bytes:
        """Return the digest of all bytes so far."""


class ContentDigest:
    """Computes the checksum of a content that comes in chunks: ``blake3:`` and 16 bytes as hexadecimal digits.

    Args:
        like: A recorded checksum, to compute one that is compared with it. One without the name of an algorithm is
            BLAKE2b of 16 bytes, which earlier versions have recorded.

    Raises:
        LedgerError: It names an algorithm that is not known.
    """

    def __init__(self, like: str | None = None) -> None:
        self._algorithm = _BLAKE3 if like is None else _algorithm(like)
        if self._algorithm not in ("", _BLAKE3):
            raise LedgerError(
                f"expected a checksum of BLAKE3 or BLAKE2b, found {like:.80}; use the version of ledgerbeam that has "
                "recorded it"
            )
        self._digest: _Hash = blake3() if self._algorithm else blake2b(digest_size=_BYTES)

    def update(self, data: bytes) -> None:
        """Take the next bytes."""
        self._digest.update(data)

    @property
    def checksum(self) -> str:
        """The checksum of all bytes so far."""
        digits = self._digest.digest()[:_BYTES].hex()
        return f"{self._algorithm}:{digits}" if self._algorithm else digits


def content_checksum(chunks: Iterable[bytes], like: str | None = None) -> str:
    """Return the checksum of a content that is given in chunks; see `ContentDigest`."""
    digest = ContentDigest(like)
    for chunk in chunks:
        digest.update(chunk)
    return digest.checksum


def content_version(checksum: str) -> str:
    """Return the version of a source that is identified by its content, whenever and wherever that was written.

    No store names a version so.
    """
    return _CONTENT + checksum


def checksum_of(version: str) -> str | None:
    """Return the checksum that a version of `content_version` names; None for any other version."""
    return version.removeprefix(_CONTENT) if version.startswith(_CONTENT) else None


def are_comparable(one: str, other: str) -> bool:
    """Return whether two checksums were computed alike, so that equal contents have equal ones."""
    return _algorithm(one) == _algorithm(other)


def _algorithm(checksum: str) -> str:
    return checksum.rpartition(":")[0]
