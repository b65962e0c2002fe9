"""Datasets of the Hub: read the files of a commit, upload contents in advance, and commit them together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import RevisionNotFoundError
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import (
    are_progress_bars_disabled,
    disable_progress_bars,
    enable_progress_bars,
    parse_hf_uri,
)

from ledgerbeam.errors import SourceNotFoundError, StorageError, UsageError
from ledgerbeam.io.storage.client import Options, call, filesystem
from ledgerbeam.io.storage.responses import http_status, lacks_repository
from ledgerbeam.io.storage.stat import content_name

_CONFLICTS = frozenset({409, 412})  # HTTP status if the parent is no longer the last commit
_EXAMPLE = "hf://datasets/OWNER/NAME[@BRANCH][/FOLDER]"

_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclass(frozen=True)
class HubFile:
    """A file of a commit: its size, and the hash of its content (SHA-256 in large file storage, else the Git hash)."""

    size: int
    version: str


@dataclass(frozen=True)
class Upload:
    """A file that the next commit adds. `sha256` is None if the content is part of the commit itself."""

    sha256: str | None
    size: int
    operation: CommitOperationAdd


class HubDataset:
    """A folder on a branch of a dataset of the Hub.

    Args:
        url: `hf://datasets/OWNER/NAME[@BRANCH][/FOLDER]`.
        options: `endpoint` and `token`. Default: the values in the environment.

    Raises:
        UsageError: The URL does not name a dataset.
    """

    def __init__(self, url: str, options: Options) -> None:
        try:
            place = parse_hf_uri(url)
        except ValueError as error:
            raise UsageError(f"{url}: expected {_EXAMPLE}, found no such name ({error})") from error
        if place.type != "dataset":
            raise UsageError(f"{url}: expected a dataset of the Hub, {_EXAMPLE}, found a {place.type}")
        self.url = url
        self.folder = place.path_in_repo.rstrip("/")
        self._name, self._branch = place.id, place.revision or "main"
        self._options = {"endpoint": options.get("endpoint"), "token": options.get("token")}
        self._api = HfApi(**self._options)

    def _path(self, name: str) -> str:
        return f"{self.folder}/{name}" if self.folder else name

    def head(self) -> str:
        """Return the hash of the last commit."""
        try:
            info = call(self.url, "read", self._api.repo_info, self._name, repo_type="dataset", revision=self._branch)
        except SourceNotFoundError as error:
            if isinstance(error.__cause__, RevisionNotFoundError):
                to = f"the branch: hf repos branch create {self._name} {self._branch} --type dataset"
            else:
                to = f"the dataset, with or without --private: hf repos create {self._name} --type dataset"
            raise SourceNotFoundError(f"{error}\nTo make {to}") from error
        return str(info.sha)

    def files(self, commit: str) -> dict[str, HubFile]:
        """Return the files of the folder in a commit, by name; empty if there is no such folder."""
        start = len(self._path(""))

        def read() -> dict[str, HubFile]:
            tree = self._api.list_repo_tree(
                self._name, self.folder or None, recursive=True, revision=commit, repo_type="dataset"
            )
            return {
                one.path[start:]: HubFile(one.size, str(content_name(vars(one))))
                for one in tree
                if isinstance(one, RepoFile)
            }

        try:
            return call(self.url, "list", read)
        except SourceNotFoundError as error:
            if lacks_repository(error):
                raise
            return {}

    def read(self, name: str, commit: str) -> bytes:
        """Read a small file as it is in a commit."""
        url = f"hf://datasets/{self._name}@{commit}/{self._path(name)}"
        return call(self.url, "read", filesystem(url, self._options).cat_file, url)

    def send(self, files: Mapping[str, str | bytes]) -> dict[str, Upload]:
        """Upload the contents of files, unless the Hub has them; small ones are sent with the commit.

        `files` has, by name in the folder, bytes or the path of a local file, which must exist until the commit.
        """
        operations = {name: CommitOperationAdd(self._path(name), content) for name, content in files.items()}
        additions = list(operations.values())
        self._write(
            self._api.preupload_lfs_files,
            self._name,
            additions,
            repo_type="dataset",
            revision=self._branch,
            num_threads=1,  # for LFS: a kill loses the files in transfer; Xet uploads chunks concurrently anyway
        )
        return {name: Upload(_sent(one), one.upload_info.size, one) for name, one in operations.items()}

    def commit(self, uploads: Sequence[Upload], removed: Sequence[str], parent: str, message: str) -> str | None:
        """Create one commit.

        Returns:
            The hash of the commit; None if the parent already has a child commit. The child may be this commit, if its
            response was lost.
        """
        deletions = [CommitOperationDelete(self._path(name), is_folder=False) for name in removed]
        try:
            made = self._write(
                self._api.create_commit,
                self._name,
                [*(upload.operation for upload in uploads), *deletions],
                commit_message=message,
                repo_type="dataset",
                revision=self._branch,
                parent_commit=parent,
            )
        except StorageError as error:
            if http_status(error) in _CONFLICTS:
                return None
            raise
        return str(made.oid)

    def _write(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        has_bars = not are_progress_bars_disabled()
        if has_bars:
            disable_progress_bars()
        try:
            return call(self.url, "write", function, *args, **kwargs)
        finally:
            if has_bars:
                enable_progress_bars()


def _sent(operation: CommitOperationAdd) -> str | None:
    """Return the SHA-256 of content that the client uploaded, and then dropped; None if it did not upload it."""
    is_sent = operation.path_or_fileobj == b"" and operation.upload_info.size > 0
    return str(operation.upload_info.sha256.hex()) if is_sent else None
