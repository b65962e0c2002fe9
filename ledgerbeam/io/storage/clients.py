"""Classes of file systems that are made of those of s3fs, adlfs and fsspec, where these do what a job must not have.

- A key is a name, whatever it holds. s3fs and adlfs cut off what begins with `?versionId=` also where nobody has asked
  for versions, and adlfs parses a key as a URL, which loses its line breaks and changes the order of what follows `?`
  and `#`. So the index of `a?versionId=1.jsonl` would be written to the object `a` of somebody else.
- What is small is sent to S3 at once. botocore asks before each body whether the server wants it (`Expect:
  100-continue`, RFC 9110, section 10.1.1), which spares a large one that is refused, and is one more way to the server
  and back for the others.
- Of two threads that create one object in memory (`memory://`) one wins. fsspec looks whether it is there, copies the
  content, and puts it there.
"""

from __future__ import annotations

import re
import threading
from typing import Any

ASKED_FOR = 1 << 20
"""Bytes of a body from which on a server of S3 is asked before it is sent."""

_turn = threading.Lock()

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


def sending_at_once(client: Any) -> Any:
    """Return a class of file systems that sends bodies of less than `ASKED_FOR` bytes to S3 without a question.

    Args:
        client: Class of s3fs.
    """

    class AtOnce(client):
        async def set_session(self, *args: Any, **kwargs: Any) -> Any:
            found = await super().set_session(*args, **kwargs)
            found.meta.events.register_last("before-call.s3", _ask_for_large_only, unique_id="ledgerbeam-ask")
            return found

    return AtOnce


def _ask_for_large_only(params: dict[str, Any], **_: Any) -> None:
    """Take the question from a request that is about to be made."""
    from botocore.utils import determine_content_length  # noqa: PLC0415 - an optional package

    length = determine_content_length(params.get("body"))
    if length is not None and length < ASKED_FOR:
        params["headers"].pop("Expect", None)


def creating_in_turn(client: Any) -> Any:
    """Return a class of file systems of whose threads one at a time writes a whole object.

    Args:
        client: Class of fsspec for what lies in the memory of this process.
    """

    class InTurn(client):
        def pipe_file(self, *args: Any, **kwargs: Any) -> Any:
            with _turn:
                return super().pipe_file(*args, **kwargs)

    return InTurn
