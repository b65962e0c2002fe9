"""Files of the Hub: one request describes many of them, one reads a range, and the response names the version.

The fsspec file system of `huggingface_hub` lists a whole folder to describe one file, and does not say which version a
read returned. A version is a hash of the content: the SHA-256 in large file storage, the Git hash of a regular file,
the Xet hash in a bucket. So a commit that does not change a file keeps its version.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from huggingface_hub import HfFileSystem, hf_hub_url
from huggingface_hub.hf_api import RepoFolder
from huggingface_hub.utils import HfUri, get_session, hf_raise_for_status, parse_hf_uri

from ledgerbeam.errors import StorageError
from ledgerbeam.io.storage.responses import byte_range, require_range

READ_SECONDS = 60.0  # longest wait for the next bytes of a read, in seconds


class HubFileSystem(HfFileSystem):
    """The file system of `huggingface_hub` with fewer requests, and with the version of each read."""

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """Describe a file or a folder: one request."""
        where = parse_hf_uri(self.unstrip_protocol(path))
        found = self.describe([path])[0] if where.path_in_repo else None
        if found is None:  # the root, or perhaps a folder of a bucket
            found = super().info(path, **kwargs)
        return found

    def describe(self, paths: Sequence[str]) -> list[dict[str, Any] | None]:
        """Describe up to 500 paths of a repository as `info` does, in order; None for a path without a file."""
        places = [parse_hf_uri(self.unstrip_protocol(path)) for path in paths]
        found: dict[tuple[str, str, str | None, str], dict[str, Any]] = {}
        for kind, name, revision in dict.fromkeys((place.type, place.id, place.revision) for place in places):
            wanted = [one.path_in_repo for one in places if (one.type, one.id, one.revision) == (kind, name, revision)]
            for entry in self._entries(kind, name, revision, wanted):
                found[kind, name, revision, entry["path"]] = entry
        return [
            None if entry is None else {**entry, "name": self._strip_protocol(path)}
            for path, place in zip(paths, places, strict=True)
            for entry in [found.get((place.type, place.id, place.revision, place.path_in_repo))]
        ]

    def _entries(self, kind: str, name: str, revision: str | None, paths: list[str]) -> Iterable[dict[str, Any]]:
        if kind == "bucket":
            for file in self._api.get_bucket_paths_info(name, paths):
                yield {"path": file.path, "type": "file", "size": file.size, "xet_hash": file.xet_hash}
            return
        for one in self._api.get_paths_info(name, paths, revision=revision, repo_type=kind):
            if isinstance(one, RepoFolder):
                yield {"path": one.path, "type": "directory", "size": 0}
            else:
                yield {"path": one.path, "type": "file", "size": one.size, "lfs": one.lfs, "blob_id": one.blob_id}

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """Read a range or the whole file: one request, and one more if the content is stored elsewhere."""
        return self.read_version(path, start, end)[1]

    def read_version(self, path: str, start: int | None, end: int | None) -> tuple[str, bytes]:
        """Read a range or the whole file; return the version that the response names, and the bytes."""
        where = parse_hf_uri(self.unstrip_protocol(path))
        wanted = byte_range(start, end)
        # The client's own headers for the credentials of these options.
        heads = {**self._api._build_hf_headers(), "Accept-Encoding": "identity"}  # noqa: SLF001
        if wanted is not None:
            heads["Range"] = wanted
        answer = get_session().get(self._address(where), headers=heads, timeout=READ_SECONDS)
        hf_raise_for_status(answer)
        url = self.unstrip_protocol(path)
        require_range(url, wanted, answer.status_code, answer.headers, "download the file to a local disk")
        # The first response is of the Hub. The last one may be of the store behind it, with its own ETags.
        hops = [hop.headers for hop in (*answer.history, answer)]
        for name in ("X-Xet-Hash",) if where.is_bucket else ("X-Linked-ETag", "ETag"):
            for heads in hops:
                if version := str(heads.get(name, "")).removeprefix("W/").strip('"'):
                    return version, answer.content
        raise StorageError(
            f"{url}: the response of the Hub does not name the version of the file, so a change could not be detected; "
            "download the file to a local disk"
        )

    def _address(self, where: HfUri) -> str:
        if where.is_bucket:
            return where.to_url(endpoint=self.endpoint).replace("/tree/", "/resolve/", 1)
        return hf_hub_url(
            where.id, where.path_in_repo, repo_type=where.type, revision=where.revision, endpoint=self.endpoint
        )
