"""Clients of stores for which a key is a name, whatever it holds.

s3fs and adlfs cut off what begins with `?versionId=` also where nobody has asked for versions, and adlfs parses a key
as a URL, which loses its line breaks and changes the order of what follows `?` and `#`. So the index of
`a?versionId=1.jsonl` would be written to the object `a` of somebody else.
"""

from __future__ import annotations

import re
from typing import Any

__all__ = ["with_literal_keys"]

_VERSIONS = {"s3": "?versionId=", "azure": "?versionid="}
"""What begins the version of an object, by the API of its store."""

_IN_URLS = re.compile(r"[\t\r\n?#]")
"""What means something else in a URL than in a key."""


def with_literal_keys(client: Any, api: str | None) -> Any:
    """Return a class of file systems that takes keys as they are; the class itself where it does so already.

    Args:
        client: Class of s3fs, adlfs or another package.
        api: That of its store.
    """
    if api not in _VERSIONS:
        return client
    mark = _VERSIONS[api]

    class LiteralKeys(client):
        @classmethod
        def _strip_protocol(cls, path: Any) -> Any:
            odd = _IN_URLS.search(path) if api == "azure" and isinstance(path, str) else None
            if odd is None:
                return super()._strip_protocol(path)
            return super()._strip_protocol(path[: odd.start()]) + path[odd.start() :]

        def split_path(self, path: str, *args: Any, **kwargs: Any) -> tuple[str, str, str | None]:
            cut = path.find(mark)
            if cut < 0 or self.version_aware:
                bucket, key, version = super().split_path(path, *args, **kwargs)
                return bucket, key, version
            bucket, key, _ = super().split_path(path[:cut], *args, **kwargs)
            return bucket, key + path[cut:], None

    return LiteralKeys
