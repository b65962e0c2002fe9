"""Checksums of the contents of outputs. Each names its algorithm, so that checksums of earlier versions stay valid.

They detect accidents and forgery alike. Publishing and reruns are decided by comparing them.
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
    """Compute the checksum of a content that comes in chunks: ``blake3:`` and 16 bytes as hexadecimal digits.

    Args:
        like: A recorded checksum; its algorithm is used, so that both can be compared. A checksum without the name of
            an algorithm is BLAKE2b of 16 bytes, as earlier versions recorded it.

    Raises:
        LedgerError: The algorithm is unknown.
    """

    def __init__(self, like: str | None = None) -> None:
        self._algorithm = _BLAKE3 if like is None else _algorithm(like)
        if self._algorithm not in ("", _BLAKE3):
            raise LedgerError(
                f"expected a checksum of BLAKE3 or BLAKE2b, found {like:.80}; use the version of ledgerbeam that "
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
    """Return the checksum of a content given in chunks; see `ContentDigest`."""
    digest = ContentDigest(like)
    for chunk in chunks:
        digest.update(chunk)
    return digest.checksum


def content_version(checksum: str) -> str:
    """Return the version of a source that is identified by its content, independent of time and place of writing.

    No store has versions of this form.
    """
    return _CONTENT + checksum


def checksum_of(version: str) -> str | None:
    """Return the checksum in a version made by `content_version`; None for any other version."""
    return version.removeprefix(_CONTENT) if version.startswith(_CONTENT) else None


def are_comparable(one: str, other: str) -> bool:
    """Return whether two checksums have the same algorithm, so that equal contents have equal checksums."""
    return _algorithm(one) == _algorithm(other)


def _algorithm(checksum: str) -> str:
    return checksum.rpartition(":")[0]
