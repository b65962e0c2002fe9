"""What each kind of store can do: the one table that all ask, by the scheme of a URL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

__all__ = ["Store", "canonical_scheme", "store_named"]

_ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "local": "file"}


@dataclass(frozen=True, slots=True)
class Store:
    """What a kind of store can do; the defaults are those of one of which nothing is known.

    Attributes:
        api: Whose requests are made beyond what fsspec has: reads of a version, pages of listings, blocks of Azure.
        package: What `pip install` brings its client with.
        has_buckets: Whether a key has no leading slash, so that `scheme:///b/k` can only mean `scheme://b/k`.
        publishes_whole: Whether a put appears as a whole or not.
        creates_exclusively: Whether a put can be made conditional on the name being free.
        joins_objects: Whether the server makes an object of parts of others.
        deletes_many: How many objects one request deletes; those that are gone are no error.
        explains_refusals: Whether an answer to a HEAD request says why it was refused.
        whole_read: Arguments of the client that read a whole object without a request for its length.
    """

    api: Literal["s3", "gcs", "azure", "http", "hub"] | None = None
    package: str | None = None
    has_buckets: bool = False
    publishes_whole: bool = False
    creates_exclusively: bool = False
    joins_objects: bool = False
    deletes_many: int = 1
    explains_refusals: bool = True
    whole_read: Mapping[str, Any] = field(default_factory=dict)


_UNKNOWN = Store()
_OBJECTS = Store(publishes_whole=True)
_EXCLUSIVE = Store(publishes_whole=True, creates_exclusively=True)
_WEB = Store(api="http", package="aiohttp")
_AZURE = replace(_EXCLUSIVE, api="azure", package="'ledgerbeam[azure]'")

_STORES = {
    "file": _EXCLUSIVE,
    "memory": replace(_EXCLUSIVE, has_buckets=True),
    "s3": replace(
        _EXCLUSIVE,
        api="s3",
        package="'ledgerbeam[s3]'",
        has_buckets=True,
        joins_objects=True,
        deletes_many=1000,
        explains_refusals=False,
        whole_read={"max_concurrency": 1},
    ),
    "gs": replace(_EXCLUSIVE, api="gcs", package="'ledgerbeam[gcs]'", has_buckets=True),
    "az": replace(_AZURE, has_buckets=True),
    "abfs": _AZURE,
    "abfss": _AZURE,
    "adl": replace(_OBJECTS, package="'ledgerbeam[azure]'"),
    "http": _WEB,
    "https": _WEB,
    "hf": Store(api="hub", package="'ledgerbeam[hf]'"),
    "oss": _OBJECTS,
    "oci": _OBJECTS,
}


def canonical_scheme(scheme: str) -> str:
    """Return the one name under which a scheme is known."""
    scheme = scheme.lower()
    return _ALIASES.get(scheme, scheme)


def store_named(scheme: str) -> Store:
    """Return what the store of a canonical scheme can do."""
    return _STORES.get(scheme, _UNKNOWN)
