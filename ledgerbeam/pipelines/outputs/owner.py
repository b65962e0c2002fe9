"""Ownership of output folders.

A ledger marks the output folder of its job with ``_ledgerbeam/<ledger id>.json`` when a run starts, before any output
is written. A job refuses a folder with the mark of another ledger, or with shards and no mark: shards of two jobs in
one folder look like one dataset.

The ledger is authoritative; the mark only names the owner. A mark of another job of the same ledger is accepted: the
ledger has recorded the outputs of the old job, and removes them as the new job completes. A mark also names a run. If
the ledger has not recorded this run, the ledger is an older copy, and outputs in the folder may be unrecorded, too.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Any, Literal

from ledgerbeam._base.redaction import printable, without_secrets
from ledgerbeam.errors import SourceNotFoundError, StorageError, UsageError
from ledgerbeam.io import Options, publish_bytes
from ledgerbeam.io.listing.left_out import MARKS_FOLDER, named_below
from ledgerbeam.io.listing.nested_folders import is_note, marked_below, nested_owners, note_nested
from ledgerbeam.io.storage.files import delete, refuse_folder_links
from ledgerbeam.io.storage.objects import ObjectFolder, list_files
from ledgerbeam.io.storage.stat import stat
from ledgerbeam.io.storage.urls import is_local
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.ledger.model.values import decode, encode
from ledgerbeam.pipelines.console.run_progress import count
from ledgerbeam.pipelines.jobs.shard_job import shard_form
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.pipelines.outputs.recorded import require_own_folder, unrecorded

Existing = Literal["replace", "keep"]  # what to do with existing files of others at the place of the outputs
FORMAT = 1  # version of the mark format
MOST_STRANGERS = 1_000


class OutputOwner:
    """The ownership of a job's output folder by the job's ledger.

    The constructor reads the marks. Create the object before the ledger is refreshed: then the ledger has the run of
    each mark, also if several launchers start on it at the same time, because a run is recorded before its mark.

    Args:
        existing: Treatment of existing files of others; None raises an error.
    """

    is_new: bool  # whether this ledger has never written to the folder; set by `check`
    keeps: bool  # whether existing files of others are kept; set by `check`
    replaces: bool  # whether existing files of others are removed first; set by `check`
    is_alone: bool  # whether only this ledger has written to the folder; set by `check`
    _is_marked: bool

    def __init__(self, spec: JobSpec, existing: Existing | None) -> None:
        self._spec = spec
        self._existing = existing
        self._output = str(spec.output)
        self._folder = ObjectFolder(self._output, spec.storage_options)
        require_own_folder(f"{self._output}/{MARKS_FOLDER}")
        self._marks = _read_marks(self._folder)

    def check(self, store: LedgerStore | None) -> None:
        """Raise an error if the folder is not this ledger's and the user has not chosen a treatment; change nothing.

        Args:
            store: The job's ledger, refreshed; None if it does not exist.

        Raises:
            UsageError: The shards belong to another ledger or have no mark, and the user chose no treatment. Or shards
                are to be replaced and match a pattern of the sources. Or the folder is not yet this ledger's, and a
                folder in it is a link.
        """
        problem = self._problem(store)
        self.keeps = self._existing == "keep" and problem is not None
        self.replaces = self._existing == "replace" and problem is not None
        if not self._is_marked and (problem is None or self._existing is not None):
            refuse_folder_links(self._output, owned_by=MARKS_FOLDER)
        if problem is None:
            return
        self.is_alone = False
        if self._existing is None:
            raise UsageError(
                f"{problem}\ngive another --output{self._owners_ledger()}, or choose what to do with the shards:\n"
                "  --existing replace  removes the shards first\n"
                "  --existing keep     keeps all files there, beside the outputs of this job"
            )
        if self.replaces:
            shard = next(filter(named_below(self._output, self._spec.sources().names), self.shards()), None)
            if shard is not None:  # it may be a source
                raise UsageError(
                    f"{self._output}/{printable(shard)}: --existing replace would remove it, and a pattern of the "
                    "sources matches it; give another --output. If it is not a source, remove it and similar files "
                    "yourself"
                )
            self.is_alone = store is None or has_kept_nothing(store)

    def replace(self) -> None:
        """Remove the existing files of others if `check` has set `replaces`. Call it after all other checks of the job.

        The marks are removed after the shards, so a job that is killed in between still refuses the folder.
        """
        if not self.replaces:
            return
        for shards in self._shards():
            self._folder.delete(shards)
        for url in self._product_files():
            delete(url, self._spec.storage_options)
        self._folder.delete(self._marks)
        self._marks = {}
        self._is_marked = False

    def claim(self, store: LedgerStore, run: str) -> None:
        """Mark the folder as this ledger's: one small write, and a few more requests for nested folders the first time.

        Args:
            run: Token of the run, see `run_info`.

        Raises:
            UsageError: Since the check, another ledger has marked the folder, or the job that owns an enclosing
                folder has written to this folder.
        """
        name = _mark_name(store)
        publish_bytes(f"{self._output}/{name}", encode(self._mark(store, run)), self._spec.storage_options)
        if not self._is_marked:
            problem = self._overtaken(store, name)
            if problem is not None:
                self._folder.delete([name])
                raise UsageError(f"{problem}\nrun one of the two jobs with another --output")
        self._is_marked = True

    def _overtaken(self, store: LedgerStore, name: str) -> str | None:
        """Return the problem if another job has claimed the folder since the check. Call it after writing the mark."""
        # Two new ledgers that claim the folder at the same time see each other's mark, and both stop.
        if set(_mark_names(self._folder)) - {name} - self._marks.keys():
            self._marks = {other: mark for other, mark in _read_marks(self._folder).items() if other != name}
            return self._of_another(self._marks)
        around = note_nested(self._output, store.ledger_id(), self._spec.storage_options)
        # One output folder can be inside the other's. Shards that the outer job wrote before the note are found here;
        # the outer job finds later ones in `check_kept`.
        shard = self._a_shard() if around and self.is_new and not self.keeps else None
        if shard is None:
            return None
        return f"{self._output}: the job that owns {around[0]} has just written a shard here: {printable(shard)}"

    def check_kept(self, store: LedgerStore) -> None:
        """Check that the folder is still this ledger's, and that no other job has claimed a folder with its outputs.

        It sends one request, and a few more if other jobs own folders below this folder. The mark may be missing if
        the job does not keep its shards: another launcher may have read and removed both.

        Raises:
            StorageError: The job keeps its shards, and its mark is missing: outputs were moved or removed. Or another
                ledger has claimed a folder below it that contains outputs of this ledger.
        """
        marks = self._folder.names(MARKS_FOLDER)
        if _mark_name(store) not in marks and self._spec.keeps_shards:
            raise StorageError(
                f"{self._output}: expected the mark of this run, {_mark_name(store)}, found none: the folder was "
                "moved, removed or replaced during the run, and some outputs are missing. If it was moved, move it "
                "back, and run the same command again: it writes missing outputs again"
            )
        if any(map(is_note, marks)):
            self._check_nested(store)

    def _check_nested(self, store: LedgerStore) -> None:
        found = nested_owners(self._output, self._spec.storage_options)
        marks = self._folder.read([f"{path}/{mark}" for path, mark in found.items()])
        nested = {
            f"{path}/": mark
            for (path, mark), content in zip(found.items(), marks, strict=True)
            if content is not None and not _parsed(content).get("keeps")
        }
        below = tuple(nested)
        name = next((name for page in store.output_columns() for name in page.names if name.startswith(below)), None)
        if name is not None:
            path, mark = next(one for one in nested.items() if name.startswith(one[0]))
            folder = f"{self._output}/{path}"
            raise StorageError(
                f"{self._output}/{printable(name)}: this job wrote it, but {folder} is now the output folder of "
                f"another job, see its {mark}; each job may have overwritten files of the other. Run the other job "
                f"with another --output, delete {folder}, and run this job again: it writes its missing outputs again"
            )

    def begin_restart(self, store: LedgerStore) -> None:
        """Remove unrecorded shards of killed runs before another job starts on the ledger.

        When the new job starts, the ledger supersedes the recorded shards. Unrecorded shards would stay forever.
        """
        job = store.job()
        if job is None or job.fingerprint == self._spec.identity().fingerprint or self.is_new or not self.is_alone:
            return
        form, options = shard_form(job.parameters.get("to")), self._spec.storage_options
        for shards in unrecorded(shards_below(self._output, form, options), store):
            self._folder.delete(shards)

    def strangers(self, store: LedgerStore) -> list[str]:
        """Return names of unrecorded shards, up to `MOST_STRANGERS`; none if another ledger may write to the folder."""
        shards = unrecorded(self._shards(), store) if self.is_alone else ()
        return list(islice(chain.from_iterable(shards), MOST_STRANGERS))

    def _problem(self, store: LedgerStore | None) -> str | None:
        """Return the reason why the ledger may not write to the folder; None if it may."""
        runs = [] if store is None else [run["info"] for run in store.runs()]
        own = None if store is None else self._marks.get(_mark_name(store))
        self._is_marked = own is not None
        self.is_alone = len(self._marks) == self._is_marked and (store is None or has_kept_nothing(store))
        self.is_new = own is None and all(info.get("output") != without_secrets(self._output) for info in runs)
        if own is not None:
            if own.get("run") in {info.get("token") for info in runs}:
                return None
            return (
                f"{self._output}: a newer copy of the ledger {self._spec.ledger} has written here: "
                f"{self._of_later_state(own)}"
            )
        if self._marks:
            return self._of_another(self._marks)
        if not self.is_new:
            return None  # its mark was removed
        shard = self._a_shard()
        if shard is None:
            return self._a_product()
        return f"{self._output}: it has shards with names of this job, and no ledger owns them: {printable(shard)}"

    def _of_later_state(self, mark: Mapping[str, Any]) -> str:
        if not self._is_of_this_place(mark):
            return (
                "this ledger is an older copy, or a copy was resumed in its place; continue with the ledger that wrote "
                f"last; it was at {_text(mark, 'url')}"
            )
        other_host = "" if is_local(self._spec.ledger) else ", or resume on the host whose local copy is complete"
        return f"this ledger is an older copy. Restore the newer one{other_host}; otherwise"

    def _is_of_this_place(self, mark: Mapping[str, Any]) -> bool:
        """Return whether the ledger of a mark had this ledger's URL. Then the URL no longer leads to that ledger."""
        return mark.get("url") == without_secrets(self._spec.ledger)

    def _of_another(self, marks: Mapping[str, Mapping[str, Any]]) -> str:
        name, mark = next(iter(marks.items()))
        more = f" (and {count(len(marks) - 1, 'more ledger')})" if len(marks) > 1 else ""
        shard = self._a_shard()
        url = _text(mark, "url")
        was_here = self._is_of_this_place(mark)
        whose = f"an earlier ledger at {url}" if was_here else f"another ledger, {url}"
        holds = f"; it holds shards such as {printable(shard)}" if shard else ""
        restore = ". Restore that ledger; otherwise" if was_here else ""
        return f"{self._output}: it belongs to {whose}{more}, see {name}{holds}{restore}"

    def _owners_ledger(self) -> str:
        marks = [mark for mark in self._marks.values() if isinstance(mark.get("url"), str)]
        if len(marks) != 1 or self._is_of_this_place(marks[0]):
            return ""
        return f", the owner's ledger: --ledger {shlex.quote(printable(marks[0]['url']))}"

    def _a_product(self) -> str | None:
        for url in self._product_files():
            try:
                stat(url, self._spec.storage_options)
            except SourceNotFoundError:
                continue
            return f"{url}: this job would replace this file, and no ledger owns it"
        return None

    def _product_files(self) -> list[str]:
        product = self._spec.product()
        return [] if product is None else product.files()

    def _shards(self) -> Iterator[list[str]]:
        return shards_below(self._output, self._spec.shard_form, self._spec.storage_options)

    def shards(self) -> Iterator[str]:
        return chain.from_iterable(self._shards())

    def _a_shard(self) -> str | None:
        return next(self.shards(), None)

    def _mark(self, store: LedgerStore, run: str) -> dict[str, Any]:
        spec, base = self._spec, self._spec.sources().base
        return {
            "format": FORMAT,
            "ledger": store.ledger_id(),
            "url": without_secrets(spec.ledger),
            "job": spec.identity().fingerprint,
            "command": spec.command,
            "base": base and without_secrets(base),
            "sources": [without_secrets(source) for source in spec.sources().names],
            "run": run,
            "keeps": not has_kept_nothing(store),
        }


def has_kept_nothing(store: LedgerStore) -> bool:
    """Return whether no run of a ledger has kept existing files of others beside its outputs."""
    return all(run["info"].get("existing") != "keep" for run in store.runs())


def shards_below(folder: str, form: str, options: Options) -> Iterator[list[str]]:
    """Yield the names of the shards below a folder, in pages, without those in folders with other owners.

    `form` is a regular expression of the end of their names, see `shard_form`.
    """
    ends_so = re.compile(rf"(?:{form})\Z").search
    owned: tuple[str, ...] | None = None
    for page in list_files(folder, options):
        shards = [name for name in page.names if ends_so(name)]
        if owned is None and any("/" in name for name in shards):
            owned = tuple(f"{path}/" for path in marked_below(folder, options))
        yield [name for name in shards if not name.startswith(owned)] if owned else shards


def owners_of(folder: str, options: Options) -> list[str]:
    """Return the URLs of the ledgers that have marked an output folder, sorted."""
    marks = _read_marks(ObjectFolder(folder, options)).values()
    return sorted({_text(mark, "url") for mark in marks if isinstance(mark.get("url"), str)})


def _mark_names(folder: ObjectFolder) -> list[str]:
    return [name for name in folder.names(MARKS_FOLDER) if name.endswith(".json")]


def _read_marks(folder: ObjectFolder) -> dict[str, Mapping[str, Any]]:
    names = _mark_names(folder)
    found = zip(names, folder.read(names), strict=True)
    return {name: _parsed(data) for name, data in found if data is not None}


def _mark_name(store: LedgerStore) -> str:
    return f"{MARKS_FOLDER}/{store.ledger_id()}.json"


def _parsed(data: bytes) -> Mapping[str, Any]:
    """Return a mark; empty if it is unreadable, so that it still counts as the mark of another ledger."""
    try:
        mark = decode(data)
    except ValueError:
        return {}
    return mark if isinstance(mark, dict) else {}


def _text(mark: Mapping[str, Any], name: str) -> str:
    value = mark.get(name)
    return printable(value) if isinstance(value, str) else "unknown"
