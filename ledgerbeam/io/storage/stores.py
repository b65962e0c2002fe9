"""Capabilities of each kind of store, by the scheme of the URL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

_ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "local": "file"}


@dataclass(frozen=True, slots=True)
class Store:
    """The capabilities of a kind of store; the defaults apply to an unknown store.

    Attributes:
        api: The API for requests that fsspec does not have: reads of a version, pages of listings, blocks of Azure.
        extra: The extra of ledgerbeam that contains its client.
        package: The package that contains its client, if no extra does.
        has_buckets: Whether keys have no leading slash, so that `scheme:///b/k` can only mean `scheme://b/k`.
        publishes_whole: Whether a put is atomic: readers see the whole object or none.
        creates_exclusively: Whether a put can be made conditional on the name not existing.
        joins_objects: Whether the server can create an object from parts of others.
        deletes_many: Number of objects that one request can delete; missing ones are no error.
        explains_refusals: Whether the response to a refused HEAD request gives the reason.
        imports_quietly: Whether its client starts no thread at import, so that the process may still fork.
        whole_read: Arguments of the client for reading a whole object without a request for its size.
    """

    api: Literal["s3", "gcs", "azure", "http", "hub"] | None = None
    extra: str | None = None
    package: str | None = None
    has_buckets: bool = False
    publishes_whole: bool = False
    creates_exclusively: bool = False
    joins_objects: bool = False
    deletes_many: int = 1
    explains_refusals: bool = True
    imports_quietly: bool = False
    whole_read: Mapping[str, Any] = field(default_factory=dict)


_UNKNOWN = Store()
_OBJECTS = Store(publishes_whole=True)
_EXCLUSIVE = Store(publishes_whole=True, creates_exclusively=True)
_WEB = Store(api="http", package="aiohttp")
_AZURE = replace(_EXCLUSIVE, api="azure", extra="azure")

_STORES = {
    "file": _EXCLUSIVE,
    "memory": replace(_EXCLUSIVE, has_buckets=True),
    "s3": replace(
        _EXCLUSIVE,
        api="s3",
        extra="s3",
        has_buckets=True,
        joins_objects=True,
        deletes_many=1000,
        explains_refusals=False,
        imports_quietly=True,
        whole_read={"max_concurrency": 1},
    ),
    "gs": replace(_EXCLUSIVE, api="gcs", extra="gcs", has_buckets=True),
    "az": replace(_AZURE, has_buckets=True),
    "abfs": _AZURE,
    "abfss": _AZURE,
    "adl": replace(_OBJECTS, extra="azure"),
    "http": _WEB,
    "https": _WEB,
    "hf": Store(api="hub", extra="hf"),
    "oss": _OBJECTS,
    "oci": _OBJECTS,
}


def canonical_scheme(scheme: str) -> str:
    """Return the canonical name of a scheme."""
    scheme = scheme.lower()
    return _ALIASES.get(scheme, scheme)


def is_remote_scheme(scheme: str) -> bool:
    """Return whether a scheme belongs to a remote store in the table."""
    name = canonical_scheme(scheme)
    return name != "file" and name in _STORES


def store_named(scheme: str) -> Store:
    """Return the capabilities of the store of a canonical scheme."""
    return _STORES.get(scheme, _UNKNOWN)
