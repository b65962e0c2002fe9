"""A Hub on the loopback: repositories with branches and commits, and the part of its HTTP interface that is used here.

It answers as `huggingface_hub` asks: information on a repository, trees by pages, single paths, files by ranges behind
a redirect, and the way of a commit (what goes how, LFS batches, uploads, NDJSON). Buckets are read-only. Of
Xet, whose contents are chunks that only its own server can join, it takes what comes and keeps nothing.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from typing import Any, TypeAlias
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tests.servers.process import QuietHandler, serving

TOKEN = "hf_loopbackTokenOfTheTests"

_DAY = "2026-01-01T00:00:00.000Z"
_Answer: TypeAlias = tuple[int, dict[str, str], bytes]  # status, headers, body


@dataclass(frozen=True)
class Blob:
    """A file of a commit: a regular one, or one in large file storage."""

    data: bytes
    lfs: bool

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def oid(self) -> str:
        """Git's name of the blob; in large file storage that of the pointer."""
        data = self.data
        if self.lfs:
            spec = "https://git-lfs.github.com/spec/v1"
            data = f"version {spec}\noid sha256:{self.sha256}\nsize {len(self.data)}\n".encode()
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

    @property
    def etag(self) -> str:
        """What the answer to a download names."""
        return self.sha256 if self.lfs else self.oid

    def described(self, path: str) -> dict[str, Any]:
        """Return the entry of a tree."""
        found: dict[str, Any] = {"type": "file", "oid": self.oid, "size": len(self.data), "path": path}
        if self.lfs:
            found["lfs"] = {"oid": self.sha256, "size": len(self.data), "pointerSize": 134}
            found["xetHash"] = hashlib.blake2b(self.data, digest_size=32).hexdigest()
        return found


@dataclass
class Repository:
    """Branches of commits."""

    commits: dict[str, dict[str, Blob]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    private: bool = False  # only for those who have the token
    messages: list[str] = field(default_factory=list)

    def commit(self, files: Mapping[str, Blob], branch: str = "main") -> str:
        """Make a commit of just these files."""
        name = hashlib.sha1(repr((len(self.commits), branch, sorted(files))).encode()).hexdigest()
        self.commits[name] = dict(files)
        self.branches[branch] = name
        return name

    def files(self, revision: str = "main") -> dict[str, Blob]:
        return self.commits[self.branches.get(revision, revision)]

    def knows(self, revision: str) -> bool:
        return self.branches.get(revision, revision) in self.commits


@dataclass
class Fault:
    """An answer in place of the right one."""

    wanted: str  # pattern of method and path
    status: int | None  # of the answer; None closes the connection without one
    heads: Mapping[str, str] = field(default_factory=dict)
    times: int = 1
    late: bool = False  # the request is served first, so that only its answer is lost


@dataclass
class HubServer:
    """What the server holds, and what it was asked."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    buckets: dict[str, dict[str, bytes]] = field(default_factory=dict)
    store: dict[str, bytes] = field(default_factory=dict)
    parts: dict[tuple[str, int], bytes] = field(default_factory=dict)
    page: int = 1000
    regular: tuple[str, ...] = (".md", ".json", ".gitattributes", ".txt", ".idx")  # others: large file storage
    part: int | None = None  # bytes of a part of an upload; None for one request
    pause: float = 0.0  # seconds that every 64 KiB of an upload take
    faults: list[Fault] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    uploaded: int = 0
    tokens: dict[str, str | None] = field(default_factory=dict)  # `Authorization` by path
    on_commit: Callable[[Repository], None] | None = None  # called before a commit is made
    url: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def options(self) -> dict[str, Any]:
        """Storage options with which fsspec reaches it."""
        return {"endpoint": self.url, "token": TOKEN}

    @property
    def env(self) -> dict[str, str]:
        """Environment with which a process reaches it."""
        return {"HF_ENDPOINT": self.url, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1"}

    def dataset(self, name: str, files: Mapping[str, bytes] | None = None) -> Repository:
        """Make a dataset with one commit."""
        repository = self.repositories[f"datasets/{name}"] = Repository()
        repository.commit({path: self.blob(path, data) for path, data in (files or {}).items()})
        return repository

    def blob(self, path: str, data: bytes) -> Blob:
        return Blob(data, not path.endswith(self.regular))

    def count(self, pattern: str) -> int:
        """Return how many requests there were whose method and path match."""
        return sum(re.search(pattern, line) is not None for line in self.asked)


@contextmanager
def hub_server(**settings: Any) -> Iterator[HubServer]:
    """Serve until the body ends."""
    hub = HubServer(**settings)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    with serving(server) as hub.url:
        yield hub


class RefusalError(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, code: str | None = None, said: str = "no") -> None:
        super().__init__(said)
        self.status, self.code, self.said = status, code, said


class _Handler(QuietHandler):
    hub: HubServer

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        path, line = unquote(parts.path), f"{self.command} {unquote(self.path)}"
        with self.hub.lock:
            self.hub.asked.append(line)
            self.hub.tokens[path] = self.headers.get("Authorization")
            fault = next((one for one in self.hub.faults if one.times and re.search(one.wanted, line)), None)
            if fault is not None:
                fault.times -= 1
        if fault is not None and not fault.late:
            self._body()
            self._fail(fault)
            return
        try:
            status, heads, body = self._answer(parts.path, path, parse_qs(parts.query))
        except RefusalError as no:
            heads = {"X-Error-Message": no.said, **({"X-Error-Code": no.code} if no.code else {})}
            status, body = no.status, json.dumps({"error": no.said}).encode()
        except (ConnectionError, TimeoutError):  # who asked was killed
            self.close_connection = True
            return
        if fault is not None:
            self._fail(fault)
            return
        self._send(status, heads, body)

    do_HEAD = do_POST = do_PUT = do_GET  # noqa: N815

    def _fail(self, fault: Fault) -> None:
        if fault.status is None:
            self.close_connection = True
            self.connection.close()
        else:
            self._send(fault.status, dict(fault.heads), b"no")

    def _send(self, status: int, heads: Mapping[str, str], body: bytes) -> None:
        try:
            self.send_response(status)
            for name, value in heads.items():
                self.send_header(name, value)
            if "Content-Length" not in heads:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)
        except ConnectionError:
            self.close_connection = True

    def _body(self, *, content: bool = False) -> bytes:
        """Read what was sent; the bytes of contents count even if they end too early."""
        left = int(self.headers.get("Content-Length") or 0)
        found = bytearray()
        while left:
            piece = self.rfile.read(min(left, 1 << 16))
            if not piece:
                raise ConnectionError("cut")
            found += piece
            left -= len(piece)
            if content:
                self._count(len(piece))
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                found += self.rfile.read(size)
                self.rfile.readline()
                if content:
                    self._count(size)
            self.rfile.readline()
        return bytes(found)

    def _count(self, size: int) -> None:
        with self.hub.lock:
            self.hub.uploaded += size
        time.sleep(self.hub.pause)

    def _answer(self, raw: str, path: str, query: dict[str, list[str]]) -> _Answer:
        for pattern, serve in _ROUTES:
            if (found := pattern.fullmatch(raw)) is not None:
                return serve(self, query, **{name: unquote(text or "") for name, text in found.groupdict().items()})
        self._body()
        raise RefusalError(404, None, f"no such route: {path}")

    def _is_known(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def _repository(self, kind: str, name: str, revision: str | None = None) -> Repository:
        self._require_valid_token()
        repository = self.hub.repositories.get(f"{kind}/{name}")
        if repository is None or (repository.private and not self._is_known()):
            raise RefusalError(404 if self._is_known() else 401, "RepoNotFound", "Repository not found")
        if revision is not None and not repository.knows(revision):
            raise RefusalError(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return repository

    def _info(self, query: Any, kind: str, name: str, revision: str = "") -> _Answer:
        repository = self._repository(kind, name, revision or "main")
        sha = repository.branches.get(revision or "main", revision)
        return _json({"_id": "1", "id": name, "sha": sha, "private": repository.private, "siblings": [], "tags": []})

    def _refs(self, query: Any, kind: str, name: str) -> _Answer:
        repository = self._repository(kind, name)
        commits = repository.branches.items()
        branches = [{"name": one, "ref": f"refs/heads/{one}", "targetCommit": commit} for one, commit in commits]
        return _json({"branches": branches, "tags": [], "converts": []})

    def _tree(self, query: dict[str, list[str]], kind: str, name: str, revision: str, path: str = "") -> _Answer:
        files = self._repository(kind, name, revision).files(revision)
        entries = _entries(files, path, recursive=query.get("recursive", [""])[0].lower() == "true")
        if path and not entries:
            raise RefusalError(404, "EntryNotFound", f"{path} does not exist")
        start = int(query.get("cursor", ["0"])[0])
        heads = {}
        if start + self.hub.page < len(entries):
            more = "&".join(f"{word}={quote(value[0])}" for word, value in query.items() if word != "cursor")
            next_url = f"{self.hub.url}{urlsplit(self.path).path}?{more}&cursor={start + self.hub.page}"
            heads["Link"] = f'<{next_url}>; rel="next"'
        status, kept, body = _json(entries[start : start + self.hub.page])
        return status, {**kept, **heads}, body

    def _paths(self, query: Any, kind: str, name: str, revision: str) -> _Answer:
        asked = parse_qs(self._body().decode()).get("paths", [])
        files = self._repository(kind, name, revision).files(revision)
        found = [files[path].described(path) for path in asked if path in files]
        folders = [path for path in asked if any(other.startswith(f"{path}/") for other in files)]
        return _json(found + [{"type": "directory", "oid": "0" * 40, "size": 0, "path": path} for path in folders])

    def _resolve(self, query: Any, name: str, revision: str, path: str, kind: str = "") -> _Answer:
        repository = self._repository(kind or "models", name, revision)
        files = repository.files(revision)
        if path not in files:
            raise RefusalError(404, "EntryNotFound", "Entry not found")
        blob = files[path]
        heads = {"X-Repo-Commit": repository.branches.get(revision, revision)}
        if not blob.lfs:
            return self._ranged(blob.data, {**heads, "ETag": f'"{blob.oid}"'})
        self.hub.store[blob.sha256] = blob.data
        heads |= {
            "X-Linked-ETag": f'"{blob.sha256}"',
            "X-Linked-Size": str(len(blob.data)),
            "ETag": f'"{blob.oid}"',
            "Location": f"{self.hub.url}/cdn/{blob.sha256}?Expires=1&Signature=ofTheLoopback",
        }
        return 302, heads, b""

    def _cdn(self, query: Any, oid: str) -> _Answer:
        # The store of contents has its own names of versions, as a CDN has.
        return self._ranged(self.hub.store[oid], {"ETag": f'"{oid[:32]}"'})

    def _ranged(self, data: bytes, heads: dict[str, str]) -> _Answer:
        wanted = self.headers.get("Range")
        if wanted is None:
            return 200, heads, data
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        start, stop = int(first), min(int(last) + 1 if last else len(data), len(data))
        if start >= len(data):
            return 416, {**heads, "Content-Range": f"bytes */{len(data)}"}, b""
        return 206, {**heads, "Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"}, data[start:stop]

    def _whoami(self, query: Any) -> _Answer:
        self._require_writer()
        return _json({"type": "user", "name": "somebody", "auth": {"accessToken": {"role": "write"}}, "orgs": []})

    def _yaml(self, query: Any) -> _Answer:
        self._body()
        return _json({"errors": [], "warnings": []})

    def _preupload(self, query: Any, kind: str, name: str, revision: str) -> _Answer:
        asked = [one["path"] for one in json.loads(self._body())["files"]]
        self._require_writer()
        files = self._repository(kind, name, revision).files(revision)
        told = []
        for path in asked:
            mode = "regular" if path.endswith(self.hub.regular) else "lfs"
            known = {"oid": files[path].etag} if path in files else {}
            told.append({"path": path, "uploadMode": mode, "shouldIgnore": False, **known})
        return _json({"files": told})

    def _batch(self, query: Any, name: str, kind: str = "") -> _Answer:
        asked = json.loads(self._body())
        self._require_writer()
        self._repository(kind or "models", name)
        objects = []
        for one in asked["objects"]:
            found = {"oid": one["oid"], "size": one["size"]}
            if one["oid"] not in self.hub.store:
                found["actions"] = self._actions(one["oid"], one["size"])
            objects.append(found)
        return _json({"transfer": "multipart" if self.hub.part else "basic", "objects": objects})

    def _actions(self, oid: str, size: int) -> dict[str, Any]:
        url, part = self.hub.url, self.hub.part
        verify = {"href": f"{url}/verify/{oid}"}
        if part is None or size <= part:
            return {"upload": {"href": f"{url}/lfs/{oid}?X-Amz-Signature=ofTheLoopback"}, "verify": verify}
        numbers = range(1, -(-size // part) + 1)
        header = {str(n): f"{url}/part/{oid}/{n}?X-Amz-Signature=ofTheLoopback" for n in numbers}
        upload = {"href": f"{url}/join/{oid}", "header": {"chunk_size": str(part), **header}}
        return {"upload": upload, "verify": verify}

    def _lfs(self, query: Any, oid: str) -> _Answer:
        self._keep(oid, self._body(content=True))
        return 200, {"ETag": f'"{oid}"'}, b""

    def _part(self, query: Any, oid: str, number: str) -> _Answer:
        self.hub.parts[oid, int(number)] = self._body(content=True)
        return 200, {"ETag": f'"{number}"'}, b""

    def _join(self, query: Any, oid: str) -> _Answer:
        numbers = [one["partNumber"] for one in json.loads(self._body())["parts"]]
        self._keep(oid, b"".join(self.hub.parts[oid, number] for number in numbers))
        return _json({})

    def _keep(self, oid: str, data: bytes) -> None:
        if hashlib.sha256(data).hexdigest() != oid:
            raise RefusalError(400, None, "the content is not what it is named after")
        self.hub.store[oid] = data

    def _verify(self, query: Any, oid: str) -> _Answer:
        self._body()
        if oid not in self.hub.store:
            raise RefusalError(404)
        return _json({})

    def _xet_token(self, query: Any, kind: str, name: str, revision: str) -> _Answer:
        self._repository(kind, name, revision)
        ends = int(time.time()) + 3600
        return _json({"casUrl": f"{self.hub.url}/cas", "accessToken": "of the loopback", "exp": ends})

    def _xet(self, query: Any, what: str) -> _Answer:
        """Take what the client of Xet sends, and give it nothing to share chunks with."""
        self._body()
        if self.command == "GET":
            raise RefusalError(404)
        return _json({"type": "result", "result": 1} if "shards" in what else {"was_inserted": True})

    def _require_valid_token(self) -> None:
        if self.headers.get("Authorization") is not None and not self._is_known():
            raise RefusalError(401, None, "Invalid credentials in Authorization header")

    def _require_writer(self) -> None:
        self._require_valid_token()
        if not self._is_known():
            raise RefusalError(401, None, "Invalid username or password.")

    def _commit(self, query: Any, kind: str, name: str, revision: str) -> _Answer:
        lines = [json.loads(line) for line in self._body().splitlines()]
        self._require_writer()
        repository = self._repository(kind, name, revision)
        if self.hub.on_commit is not None:
            self.hub.on_commit(repository)
        with self.hub.lock:
            return self._make_commit(repository, name, revision, lines)

    def _make_commit(self, repository: Repository, name: str, branch: str, lines: list[dict[str, Any]]) -> _Answer:
        if branch not in repository.branches:
            raise RefusalError(404, "RevisionNotFound", f"{branch} is no branch")
        files = dict(repository.files(branch))
        header = lines[0]["value"]
        if header.get("parentCommit") not in (None, repository.branches[branch]):
            raise RefusalError(412, None, "A commit has happened since. Please refresh and try again.")
        for line in lines[1:]:
            key, value = line["key"], line["value"]
            if key == "file":
                files[value["path"]] = Blob(base64.b64decode(value["content"]), lfs=False)
            elif key == "lfsFile":
                if value["oid"] not in self.hub.store:
                    raise RefusalError(400, None, f"{value['path']}: its content was not uploaded")
                files[value["path"]] = Blob(self.hub.store[value["oid"]], lfs=True)
            elif key == "deletedFile":
                if files.pop(value["path"], None) is None:
                    raise RefusalError(404, "EntryNotFound", "A file with this name doesn't exist")
            else:
                raise RefusalError(400, None, f"unknown: {key}")
        made = repository.commit(files, branch)
        repository.messages.append(header["summary"])
        return _json({"commitUrl": f"{self.hub.url}/datasets/{name}/commit/{made}", "commitOid": made, "success": True})

    def _bucket(self, query: Any, name: str) -> _Answer:
        self._bucket_files(name)
        return _json({"id": name, "private": False, "createdAt": _DAY, "size": 1, "totalFiles": 1})

    def _bucket_files(self, name: str) -> dict[str, bytes]:
        if name not in self.hub.buckets:
            raise RefusalError(404, "RepoNotFound", "Bucket not found")
        return self.hub.buckets[name]

    def _bucket_tree(self, query: dict[str, list[str]], name: str, path: str = "") -> _Answer:
        files = {key: Blob(data, lfs=True) for key, data in self._bucket_files(name).items()}
        found = _entries(files, path, recursive=query.get("recursive", [""])[0].lower() == "true")
        return _json([_in_bucket(one) for one in found])

    def _bucket_paths(self, query: Any, name: str) -> _Answer:
        asked = json.loads(self._body())["paths"]
        files = self._bucket_files(name)
        return _json([_in_bucket(Blob(files[path], lfs=True).described(path)) for path in asked if path in files])

    def _bucket_resolve(self, query: Any, name: str, path: str) -> _Answer:
        files = self._bucket_files(name)
        if path not in files:
            raise RefusalError(404, "EntryNotFound", "Entry not found")
        blob = Blob(files[path], lfs=True)
        self.hub.store[blob.sha256] = blob.data
        heads = {
            "X-Xet-Hash": blob.described(path)["xetHash"],
            "X-Linked-Size": str(len(blob.data)),
            "Location": f"{self.hub.url}/cdn/{blob.sha256}?Signature=ofTheLoopback",
        }
        return 302, heads, b""


def _json(value: Any) -> _Answer:
    return 200, {"Content-Type": "application/json"}, json.dumps(value).encode()


def _entries(files: Mapping[str, Blob], folder: str, *, recursive: bool) -> list[dict[str, Any]]:
    """Return what lies in a folder, folders first, as the interface describes it."""
    prefix = f"{folder}/" if folder else ""
    below = {path: blob for path, blob in files.items() if path.startswith(prefix)}
    folders = {
        prefix + "/".join(names[:depth])
        for path in below
        for names in [path[len(prefix) :].split("/")]
        for depth in range(1, len(names) if recursive else min(2, len(names)))
    }
    found: list[dict[str, Any]] = [
        {"type": "directory", "oid": "0" * 40, "size": 0, "path": path} for path in sorted(folders)
    ]
    return found + [
        blob.described(path) for path, blob in sorted(below.items()) if recursive or "/" not in path[len(prefix) :]
    ]


def _in_bucket(entry: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {name: entry[name] for name in ("type", "path", "size", "xetHash") if name in entry}
    return {**kept, "uploadedAt": _DAY}


_NAME = r"(?P<name>[^/]+/[^/]+)"
_KIND = r"/api/(?P<kind>models|datasets|spaces)"
_ROUTES: list[tuple[re.Pattern[str], Callable[..., _Answer]]] = [
    (re.compile(pattern), serve)
    for pattern, serve in (
        (rf"{_KIND}/{_NAME}(?:/revision/(?P<revision>[^/]+))?", _Handler._info),
        (rf"{_KIND}/{_NAME}/refs", _Handler._refs),
        (rf"{_KIND}/{_NAME}/tree/(?P<revision>[^/]+)(?:/(?P<path>.+))?", _Handler._tree),
        (rf"{_KIND}/{_NAME}/paths-info/(?P<revision>[^/]+)", _Handler._paths),
        (rf"{_KIND}/{_NAME}/preupload/(?P<revision>[^/]+)", _Handler._preupload),
        (rf"{_KIND}/{_NAME}/commit/(?P<revision>[^/]+)", _Handler._commit),
        (rf"/(?:(?P<kind>datasets|spaces)/)?{_NAME}\.git/info/lfs/objects/batch", _Handler._batch),
        (rf"/buckets/{_NAME}/resolve/(?P<path>.+)", _Handler._bucket_resolve),
        (rf"/(?:(?P<kind>datasets|spaces)/)?{_NAME}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", _Handler._resolve),
        (rf"/api/buckets/{_NAME}", _Handler._bucket),
        (rf"/api/buckets/{_NAME}/tree(?:/(?P<path>.+))?", _Handler._bucket_tree),
        (rf"/api/buckets/{_NAME}/paths-info", _Handler._bucket_paths),
        (rf"{_KIND}/{_NAME}/xet-write-token/(?P<revision>[^/]+)", _Handler._xet_token),
        (r"/cas/(?P<what>.+)", _Handler._xet),
        (r"/cdn/(?P<oid>[0-9a-f]+)", _Handler._cdn),
        (r"/lfs/(?P<oid>[0-9a-f]+)", _Handler._lfs),
        (r"/part/(?P<oid>[0-9a-f]+)/(?P<number>\d+)", _Handler._part),
        (r"/join/(?P<oid>[0-9a-f]+)", _Handler._join),
        (r"/verify/(?P<oid>[0-9a-f]+)", _Handler._verify),
        (r"/api/whoami-v2", _Handler._whoami),
        (r"/api/validate-yaml", _Handler._yaml),
    )
]
