"""Names that stay the same between runs: of sources, of packs, of the tasks inside a source, of contents of outputs.

Every identity is 16 bytes of BLAKE2b. Each kind of identity uses its own personalisation of the hash, so that a source,
a pack and a node never have equal identities. The encoding of the hashed values is unambiguous.

A checksum of a content names its algorithm, so that checksums of earlier versions stay valid. Checksums detect
accidents and forgery alike. Publishing and reruns compare them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from struct import pack as pack_integers

from blake3 import blake3

from ledgerbeam.errors import LedgerError

ID_BYTES = 16  # length of every identity, in bytes
ROOT = bytes(ID_BYTES)  # the entry key of "this source entered the job". No node has this identity.

Lineage = tuple[tuple[int, int], ...]
"""The path from a source to a task: one ``(ordinal, count)`` for each fan-out passed, 0 <= ordinal < count.

The source itself is ``()``.
"""

_SOURCE = blake2b(digest_size=ID_BYTES, person=b"lb.source")
_PACK = blake2b(digest_size=ID_BYTES, person=b"lb.pack")
_NODE = blake2b(digest_size=ID_BYTES, person=b"lb.node")
_URL = blake2b(digest_size=ID_BYTES, person=b"lb.url")
_NAME = blake2b(digest_size=ID_BYTES, person=b"lb.name")


def _digest(kind: blake2b, data: bytes) -> bytes:
    hasher = kind.copy()
    hasher.update(data)
    return hasher.digest()


def run_id(number: int) -> str:
    """Return the id of a run from its number."""
    return f"{number:06d}"


def run_order(run: str) -> tuple[int, str]:
    """Return the key that sorts ids of runs in the order of their start. Any other name has a key too."""
    return len(run), run


def source_id(url: str, size: int, version: str) -> bytes:
    """Identify one input object by 16 bytes: its canonical URL, its size, and its version.

    The version is an ETag, a generation, or a modification time in nanoseconds as decimal text. Bytes of a local name
    that are not UTF-8 are surrogate escapes in the URL.
    """
    return _digest(_SOURCE, f"{size}:{len(version)}:{version}{url}".encode("utf-8", "surrogateescape"))


def source_ids(urls: Sequence[str], sizes: Sequence[int], versions: Sequence[str]) -> list[bytes]:
    """Identify a page of input objects, in order; equal to `source_id` of each, without its call overhead."""
    copy = _SOURCE.copy
    found: list[bytes] = []
    append = found.append
    for url, size, version in zip(urls, sizes, versions, strict=True):
        hasher = copy()
        hasher.update(f"{size}:{len(version)}:{version}{url}".encode("utf-8", "surrogateescape"))
        append(hasher.digest())
    return found


def pack_id(member_ids: Iterable[bytes]) -> bytes:
    """Identify a pack by the ids of its members, in order. A pack of one member has another id than this member."""
    return _digest(_PACK, b"".join(member_ids))


def node_id(source: bytes, lineage: Lineage) -> bytes:
    """Identify one task of a source: 16 bytes, never `ROOT`. The lineage ``()`` names the source's own task."""
    if not lineage:
        return _digest(_NODE, source)
    numbers = [number for pair in lineage for number in pair]
    return _digest(_NODE, source + pack_integers(f"<{len(numbers)}Q", *numbers))


def url_key(url: str) -> bytes:
    """Hash a canonical URL to the 16-byte key of the URL in a ledger, independent of its size and version."""
    return _digest(_URL, url.encode("utf-8", "surrogateescape"))


def name_key(name: str) -> bytes:
    """Hash the name of an output to 16 bytes, since names can be longer than a key of the store."""
    return _digest(_NAME, name.encode("utf-8", "surrogateescape"))


_BLAKE3 = "blake3"
_BYTES = 16
_CONTENT = "content:"


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
        self._digest = blake3() if self._algorithm else blake2b(digest_size=_BYTES)

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
    """Return the version of a source that is identified by the checksum of its content, not by an ETag or a time.

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
