"""Products of all shards of a job: notes that record their files, and the metadata of a format beside the shards.

A note stores the size and the checksum of each file of a product. A rerun compares them with the files, reports a
changed file, and writes it again. `ledger verify` reports changed files, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ledgerbeam._base.names import is_route
from ledgerbeam.errors import LedgerbeamError, PublicationError, SourceNotFoundError, UsageError
from ledgerbeam.io import Options, publish_bytes
from ledgerbeam.io.compression.content import is_older
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.io.storage.files import delete, read_bytes, refuse_links
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.io.storage.publish import remove_stale_temporaries
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.stat import stat, stat_many
from ledgerbeam.ledger import LedgerStore, OutputShard, dataset_manifest
from ledgerbeam.ledger.model.faults import fault_point
from ledgerbeam.ledger.model.identity import content_checksum
from ledgerbeam.ledger.model.values import decode, encode
from ledgerbeam.pipelines.console.run_progress import count
from ledgerbeam.pipelines.jobs.spec import JobSpec, Product, work_folder_of
from ledgerbeam.pipelines.outputs.metadata import publish_catalog, publish_shards
from ledgerbeam.pipelines.outputs.recorded import require_own_folder, routes_of

_NOTE = "published-"

READ_BYTES = 4 * 2**20  # size of the blocks that a thread reads, in bytes


@dataclass(frozen=True)
class PublishedFile:
    """A metadata file of a job."""

    url: str
    form: str
    size: int
    checksum: str


@dataclass(frozen=True)
class PublishedMetadata(Product):
    """The metadata of a format beside the shards of a job.

    Each route of the job is a separate dataset, with metadata in its folder.
    """

    name: ClassVar[str] = "published"
    replaces_shards: ClassVar[bool] = False  # the metadata refers to the shards

    form: str

    def check(self, page: Page, job: JobSpec) -> None:
        """Raise UsageError if the format needs unique base names of shards, and two sources have one base name."""
        files = job.sources().as_files
        if self.form == "lit" and (files is None or files.pack_bytes is None):  # else the first file of a pack names it
            _require_base_names(page)

    def is_made(self, job: JobSpec, store: LedgerStore) -> bool:
        noted = {route for form, route in _noted(job.work_folder, job.storage_options) if form == self.form}
        for route in {"", *routes_of(store)} | noted:
            manifest = dataset_manifest(store, route=route)
            shards, name = list(manifest), _note_name(self.form, route)
            note = OutputStamp(job.work_folder, name, manifest.fingerprint, shards, job.storage_options)
            is_wanted = bool(shards) or self._is_catalog(job, route)
            if (route in noted) != is_wanted or (is_wanted and note.read() is None):
                return False
        return True

    def make(
        self,
        job: JobSpec,
        store: LedgerStore,
        *,
        rewrite: Callable[[int], bool],  # noqa: ARG002 - a run has written all missing shards
        say: Callable[[str], None],
    ) -> list[str]:
        """Publish the metadata of a complete job's shards unless it is up to date, and return its URLs.

        Metadata of a route without shards is removed.
        """
        made = {route: self._publish(job, store, route, say) for route in ("", *routes_of(store))}
        urls = [url for some in made.values() for url in some]
        for form, route in list(_noted(job.work_folder, job.storage_options)):
            if form == self.form and not made.get(route):
                self.withdraw(job, route, urls, say)
        if not urls:
            say(f"{job.output}: no shards, so no {self.form} metadata is published")
        return urls

    def _is_catalog(self, job: JobSpec, route: str) -> bool:
        """Return whether a catalog of columns is written also without shards, so that they can be read."""
        return self.form == "columns" and not route and bool(job.column_names())

    def withdraw(self, job: JobSpec, route: str, kept: Collection[str], say: Callable[[str], None]) -> None:
        """Remove the metadata of a dataset without shards. Files that others have changed or moved stay."""
        options = job.storage_options
        note = OutputStamp(job.work_folder, _note_name(self.form, route), "", (), options)
        for file in _files(note.latest(), self.form):
            is_here = file.url not in kept and file.url.startswith(f"{job.output}/")
            if is_here and content_problem(file.url, file.size, file.checksum, options) is None:
                delete(file.url, options)
                say(f"removed, because the job no longer writes its shards: {file.url}")
        note.forget()

    def _publish(self, job: JobSpec, store: LedgerStore, route: str, say: Callable[[str], None]) -> list[str]:
        """Publish the metadata of one dataset, see `make`. Without shards, publish nothing."""
        manifest = dataset_manifest(store, route=route)
        root, shards, options = str(manifest.root), list(manifest), job.storage_options
        if not shards and not self._is_catalog(job, route):
            return []
        note = OutputStamp(job.work_folder, _note_name(self.form, route), manifest.fingerprint, shards, options)
        files = _files(note.noted(), self.form)
        looked = ((file.url, content_problem(file.url, file.size, file.checksum, options)) for file in files)
        changed = [f"{url}: {problem}" for url, problem in looked if problem is not None]
        urls = [file.url for file in files]
        if files and not changed and not (self.form in ("lit", "columns") and _are_older(urls, root, shards, options)):
            say(f"up to date: {urls[-1]}")
            return urls
        for what in changed:
            say(f"{what}; the file has changed since this job wrote it, and is written again")
        refuse_links(str(job.output), [root])
        fault_point("published.before")
        if note.begin():  # publishing was interrupted
            remove_stale_temporaries(root)
        try:
            if shards:
                done = publish_shards(job.files_of(shards), root, self.form, options, ledger=job.ledger)
            else:
                done = publish_catalog(root, (), job.column_names(), options)
        except LedgerbeamError as error:
            other = "" if self.form == "webdataset" else ", and --to webdataset writes metadata of wids"
            raise PublicationError(
                f"{root}: all outputs are written and recorded, but not the metadata of {self.form}: {error}\nRun the "
                f"same command to write only the metadata again. --to tar needs no metadata{other}"
            ) from error
        fault_point("published.after")
        note.end(done.urls, checksums={url: checksum_at(url, options) for url in done.urls})
        say(
            f"{count(done.shards, 'shard')} with {count(done.records, 'record')} published as {self.form}: "
            f"{done.urls[-1]}"
        )
        return done.urls

    def not_made(self, job: JobSpec) -> str:
        return (
            f"{job.output}: not published as {self.form}, because records are missing; existing metadata describes the "
            "earlier shards"
        )


def withdraw_earlier(job: JobSpec, say: Callable[[str], None]) -> None:
    """Remove the metadata of an earlier job of the ledger in formats that the job does not publish."""
    form = getattr(job.product(), "form", None)
    for other, route in list(_noted(job.work_folder, job.storage_options)):
        if other != form:
            PublishedMetadata(other).withdraw(job, route, (), say)


def _are_older(urls: Sequence[str], root: str, shards: Sequence[OutputShard], options: Options) -> bool:
    """Return whether a shard is newer than the metadata, as after a lost shard is written again. LIT refuses that."""
    try:
        found = stat_many([f"{root}/{shard.name}" for shard in shards], options)
        made = stat_many(urls, options)
    except SourceNotFoundError:  # the publication reports the missing file
        return True
    return any(is_older(one, shard) for one in made for shard in found)


def published_files(store: LedgerStore, options: Options) -> list[PublishedFile]:
    """Return the metadata of a job for its current shards; empty while the job is not complete."""
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
    """Yield format and route of each note in the work folder of a ledger."""
    for name in ObjectFolder(work, options).names(""):
        form, _, route = name.removeprefix(_NOTE).removesuffix(".json").partition("-")
        if name == f"{_note_name(form, route)}.json" and (not route or is_route(route)):
            yield form, route


def forget_published(ledger: str, form: str, route: str, options: Options) -> None:
    """Remove the note of a job's metadata, because other metadata replaces it."""
    delete(f"{work_folder_of(ledger)}/{_note_name(form, route)}.json", options)


def _note_name(form: str, route: str) -> str:
    return f"{_NOTE}{form}-{route}" if route else f"{_NOTE}{form}"


def _files(noted: Mapping[str, Any] | None, form: str) -> list[PublishedFile]:
    """Return the files of a note; empty for a note of an earlier version, without checksums."""
    checksums, sizes = (noted or {}).get("checksums"), (noted or {}).get("files")
    if not isinstance(checksums, dict) or not isinstance(sizes, dict):
        return []
    if not all(isinstance(checksums.get(url), str) for url in sizes):
        return []
    return [PublishedFile(url, form, size, checksums[url]) for url, size in sizes.items()]


def _require_base_names(page: Page) -> None:
    """Raise an error if base names of shards would not be unique, as `write_lit_metadata` would later."""
    seen: dict[str, str] = {}
    for url, size in zip(page.urls, page.sizes, strict=True):
        other = seen.setdefault(url.rpartition("/")[2], url) if size else url
        if other != url:
            raise UsageError(
                f"{other} and {url}: LIT needs unique base names of shards, which come from the sources; rename a "
                "source, or use --to webdataset, which keeps folders apart"
            )


class OutputStamp:
    """The note of a product: a digest of the shards that it was made of, and its files with their sizes.

    `shards` are all shards of the job, in the order of its dataset manifest.
    """

    def __init__(self, work: str, name: str, fingerprint: str, shards: Iterable[OutputShard], options: Options) -> None:
        self._work = work
        self._url = f"{work}/{name}.json"
        self._options = options
        self._of = _digest(fingerprint, shards)

    def noted(self) -> dict[str, Any] | None:
        """Return the note if it records exactly these `shards`, else None. The files of the note are not checked."""
        note = self.latest()
        return note if note.get("of") == self._of and isinstance(note.get("files"), dict) else None

    def latest(self) -> dict[str, Any]:
        """Return the note, for any shards; empty if missing or unreadable, since the product can be made again."""
        require_own_folder(self._work)
        try:
            note = decode(read_bytes(self._url, self._options))
        except (SourceNotFoundError, ValueError):
            return {}
        return note if isinstance(note, dict) else {}

    def forget(self) -> None:
        delete(self._url, self._options)

    def read(self) -> dict[str, Any] | None:
        """Return the note if it records exactly these `shards`, and its files have the recorded sizes; else None."""
        note = self.noted()
        if note is None:
            return None
        try:
            changed = any(stat(url, self._options).size != size for url, size in note["files"].items())
        except SourceNotFoundError:
            return None
        return None if changed else note

    def begin(self) -> bool:
        """Record that the product is being made. Return whether this was recorded before: an attempt was killed."""
        unfinished = self.latest().get("of", "") is None
        self._write({"of": None})
        return unfinished

    def end(self, files: Iterable[str], **facts: Any) -> None:
        self._write({"of": self._of, "files": {url: stat(url, self._options).size for url in files}, **facts})

    def _write(self, note: dict[str, Any]) -> None:
        publish_bytes(self._url, encode(note), self._options)


def _digest(fingerprint: str, shards: Iterable[OutputShard]) -> str:
    """Return a digest of the shards: their order, names, contents and job."""
    digest = hashlib.blake2b(fingerprint.encode(), digest_size=16)
    for shard in shards:
        digest.update(f"\n{shard.name}\t{shard.checksum}".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def checksum_at(url: str, options: Options) -> str:
    """Return the checksum of a file."""
    with RangeReader(url, options) as reader:
        return content_checksum(reader.blocks(READ_BYTES))


def size_problem(url: str, size: int, options: Options) -> str | None:
    """Return the problem with a file's size or existence, without reading the file; else None."""
    try:
        found = stat(url, options).size
    except SourceNotFoundError:
        return f"expected {size} bytes, found no such file or object"
    except LedgerbeamError as error:
        return str(error)
    return None if found == size else f"expected {size} bytes, found {found}"


def content_problem(
    url: str, size: int, checksum: str, options: Options, span: tuple[int, int] | None = None
) -> str | None:
    """Return the problem with a file's size or content, else None. A file of another size is not read.

    The checksum is of the whole file, or of the bytes of `span`, a half-open range.
    """
    start, stop = span or (0, size)
    try:
        with RangeReader(url, options) as reader:
            if reader.size != size:
                return f"expected {size} bytes, found {reader.size}"
            found = content_checksum(reader.blocks(READ_BYTES, start=start, stop=stop), like=checksum)
    except SourceNotFoundError:
        return f"expected {size} bytes, found no such file or object"
    except LedgerbeamError as error:
        return str(error)
    if found == checksum:
        return None
    where = "" if span is None else f"bytes {start} to {stop}: "
    return f"{where}expected the checksum {checksum}, found {found}"
