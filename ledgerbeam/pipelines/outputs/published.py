"""The metadata of a format beside the shards of a job: made once they are complete, noted, compared with the note.

A note has the size and the checksum of each file. So a file that was changed since is told and written again, and
`ledger verify` finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ledgerbeam._base.names import is_route
from ledgerbeam.errors import LedgerbeamError, PublicationError, SourceNotFoundError, UsageError
from ledgerbeam.io import Options
from ledgerbeam.io.compression.content import is_older
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.io.storage.files import delete
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.io.storage.overwrite import refuse_links
from ledgerbeam.io.storage.publish import remove_stale_temporaries
from ledgerbeam.io.storage.stat import stat_many
from ledgerbeam.ledger import LedgerStore, OutputShard, dataset_manifest
from ledgerbeam.ledger.model.faults import fault_point
from ledgerbeam.pipelines.console.run_progress import count
from ledgerbeam.pipelines.jobs.claim import routes_of
from ledgerbeam.pipelines.jobs.spec import JobSpec, work_folder_of
from ledgerbeam.pipelines.outputs.contents import checksum_at, content_problem
from ledgerbeam.pipelines.outputs.metadata import publish_shards
from ledgerbeam.pipelines.outputs.stamp import OutputStamp

_NOTE = "published-"


@dataclass(frozen=True)
class PublishedFile:
    """A file of metadata that a job has written.

    Attributes:
        url: Where it lies.
        form: The format that it is of.
        size: Bytes.
        checksum: Of its content, see `checksums`.
    """

    url: str
    form: str
    size: int
    checksum: str


@dataclass(frozen=True)
class PublishedMetadata:
    """The metadata of a format beside the shards of a job, which stay where they are: a `Product`.

    Each route of the job is a dataset of its own, with metadata in its folder.

    Attributes:
        form: Name of the format.
    """

    name: ClassVar[str] = "published"

    form: str

    @property
    def replaces_shards(self) -> bool:
        """False: the metadata is of the shards."""
        return False

    def place(self, job: JobSpec) -> str:
        """Return the output folder."""
        return str(job.output)

    def files(self) -> list[str]:
        """Return nothing: all of it lies in the output folder."""
        return []

    def check(self, page: Page, job: JobSpec) -> None:
        """Refuse sources with shards that differ only in their folders, if the format cannot distinguish these."""
        files = job.sources().as_files
        if self.form == "lit" and (files is None or files.are_apart):
            _require_base_names(page)

    def is_made(self, job: JobSpec, store: LedgerStore) -> bool:
        """Return whether the metadata of a complete job's shards is noted."""
        noted = {route for form, route in _noted(job.work_folder, job.storage_options) if form == self.form}
        for route in {"", *routes_of(store)} | noted:
            manifest = dataset_manifest(store, route=route)
            shards, name = list(manifest), _note_name(self.form, route)
            note = OutputStamp(job.work_folder, name, manifest.fingerprint, shards, job.storage_options)
            if (route in noted) != bool(shards) or (shards and note.read() is None):
                return False
        return True

    def make(
        self,
        job: JobSpec,
        store: LedgerStore,
        *,
        rewrite: Callable[[int], bool],  # noqa: ARG002 - a run has written all shards that were missing
        say: Callable[[str], None],
    ) -> list[str]:
        """Publish the metadata of a complete job's shards unless that is done, and return its URLs.

        Metadata of a route that has no shards any more is removed.
        """
        made = {route: self._publish(job, store, route, say) for route in ("", *routes_of(store))}
        urls = [url for some in made.values() for url in some]
        for form, route in list(_noted(job.work_folder, job.storage_options)):
            if form == self.form and not made.get(route):
                self._withdraw(job, route, urls, say)
        if not urls:
            say(f"{job.output}: no shards, so nothing is published as {self.form}")
        return urls

    def _withdraw(self, job: JobSpec, route: str, kept: Collection[str], say: Callable[[str], None]) -> None:
        """Remove the metadata of a dataset that has no shards any more, as far as it is as it was written."""
        options = job.storage_options
        note = OutputStamp(job.work_folder, _note_name(self.form, route), "", (), options)
        for file in _files(note.latest(), self.form):
            if file.url not in kept and content_problem(file.url, file.size, file.checksum, options) is None:
                delete(file.url, options)
                say(f"removed, since it has no shards any more: {file.url}")
        note.forget()

    def _publish(self, job: JobSpec, store: LedgerStore, route: str, say: Callable[[str], None]) -> list[str]:
        """Publish the metadata of one dataset, as `make`; nothing if it has no shards."""
        manifest = dataset_manifest(store, route=route)
        root, shards, options = str(manifest.root), list(manifest), job.storage_options
        if not shards:
            return []
        note = OutputStamp(job.work_folder, _note_name(self.form, route), manifest.fingerprint, shards, options)
        files = _files(note.noted(), self.form)
        looked = ((file.url, content_problem(file.url, file.size, file.checksum, options)) for file in files)
        changed = [f"{url}: {problem}" for url, problem in looked if problem is not None]
        urls = [file.url for file in files]
        if files and not changed and not (self.form == "lit" and _are_older(urls, root, shards, options)):
            say(f"up to date: {urls[-1]}")
            return urls
        for what in changed:
            say(f"{what}, so this is not what the job has written; it is written again")
        refuse_links(str(job.output), [root])
        fault_point("published.before")
        if note.begin():  # publishing was killed
            remove_stale_temporaries(root)
        try:
            done = publish_shards(shards, root, self.form, options, ledger=job.ledger)
        except LedgerbeamError as error:
            other = "" if self.form == "webdataset" else ", --to webdataset writes that of wids"
            raise PublicationError(
                f"{root}: all outputs are written and recorded, but not the metadata of {self.form}: {error}\nRun the "
                f"same command to try again; --to tar needs no metadata{other}; none of them writes the outputs again"
            ) from error
        fault_point("published.after")
        note.end(done.urls, checksums={url: checksum_at(url, options) for url in done.urls})
        say(
            f"{count(done.shards, 'shard')} with {count(done.records, 'record')} published as {self.form}: "
            f"{done.urls[-1]}"
        )
        return done.urls

    def not_made(self, job: JobSpec) -> str:
        """Return a warning that nothing was published since tasks have failed."""
        return (
            f"{job.output}: not published as {self.form}, since records are missing; metadata that is there already is "
            "of the shards as they were before"
        )


def _are_older(urls: Sequence[str], root: str, shards: Sequence[OutputShard], options: Options) -> bool:
    """Return whether a shard was written after the metadata, as a lost one is: readers of LIT refuse an older index."""
    try:
        found = stat_many([f"{root}/{shard.name}" for shard in shards], options)
        made = stat_many(urls, options)
    except SourceNotFoundError:  # publishing again tells which
        return True
    return any(is_older(one, shard) for one in made for shard in found)


def published_files(store: LedgerStore, options: Options) -> list[PublishedFile]:
    """Return the metadata that a job has written for the very shards that it has: none while it is not complete.

    Args:
        store: The job's ledger.
        options: Storage options.

    Raises:
        LedgerError: The ledger changes meanwhile; also StorageError.
    """
    work = work_folder_of(store.url)
    if not store.status()["complete"]:
        return []
    found = []
    routes = ["", *routes_of(store)]
    for form, route in _noted(work, options):
        if route in routes:
            manifest = dataset_manifest(store, route=route)
            note = OutputStamp(work, _note_name(form, route), manifest.fingerprint, manifest, options)
            found += _files(note.noted(), form)
    return found


def _noted(work: str, options: Options) -> Iterator[tuple[str, str]]:
    """Yield the format and the route of each note in the work folder of a ledger."""
    for name in ObjectFolder(work, options).names(""):
        form, _, route = name.removeprefix(_NOTE).removesuffix(".json").partition("-")
        if name == f"{_note_name(form, route)}.json" and (not route or is_route(route)):
            yield form, route


def forget_published(ledger: str, form: str, route: str, options: Options) -> None:
    """Forget what metadata a job has written, since other metadata takes its place.

    Args:
        ledger: URL of the job's ledger.
        form: The format of the metadata.
        route: The route of the shards; empty for the main dataset.
        options: Storage options.

    Raises:
        StorageError: The note of it cannot be deleted.
    """
    delete(f"{work_folder_of(ledger)}/{_note_name(form, route)}.json", options)


def _note_name(form: str, route: str) -> str:
    return f"{_NOTE}{form}-{route}" if route else f"{_NOTE}{form}"


def _files(noted: Mapping[str, Any] | None, form: str) -> list[PublishedFile]:
    """Return what a note says; of one without checksums, of an earlier version, nothing."""
    checksums, sizes = (noted or {}).get("checksums"), (noted or {}).get("files")
    if not isinstance(checksums, dict) or not isinstance(sizes, dict):
        return []
    if not all(isinstance(checksums.get(url), str) for url in sizes):
        return []
    return [PublishedFile(url, form, size, checksums[url]) for url, size in sizes.items()]


def _require_base_names(page: Page) -> None:
    """Refuse what `write_lit_metadata` would refuse in the end."""
    seen: dict[str, str] = {}
    for url, size in zip(page.urls, page.sizes, strict=True):
        other = seen.setdefault(url.rpartition("/")[2], url) if size else url
        if other != url:
            raise UsageError(
                f"{other} and {url}: LIT distinguishes shards by their base names, which come from those of sources; "
                "rename one, or use --to webdataset, which keeps folders apart"
            )
