"""Who owns an output folder: the ledger whose mark lies in it.

A ledger marks the folder that its job writes to, as ``_ledgerbeam/<ledger id>.json``, when a run begins and before
anything is written. A folder that holds the mark of another ledger, or shards without a mark, is refused: shards of two
jobs side by side look like one dataset.

The ledger is the truth, and the mark says whose folder it is. So a mark of another job of the same ledger needs no
word: the ledger was taken for a new job, knows what the old one has written, and removes that as the new one completes.
But a mark of a run that the ledger does not know was written by a later state of it: this one is an older copy, which
does not know what lies there.
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
from ledgerbeam.io.listing.folder_files import list_files
from ledgerbeam.io.listing.left_out import MARKS_FOLDER, named_below
from ledgerbeam.io.listing.nested_folders import is_note, marked_below, nested_owners, note_nested
from ledgerbeam.io.storage.files import delete
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.io.storage.overwrite import refuse_folder_links
from ledgerbeam.io.storage.stat import stat
from ledgerbeam.io.storage.urls import is_local
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.ledger.model.values import decode, encode
from ledgerbeam.pipelines.console.run_progress import count
from ledgerbeam.pipelines.jobs.shard_job import shard_form
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.pipelines.outputs.recorded import unrecorded
from ledgerbeam.pipelines.outputs.removal import require_own_folder

Existing = Literal["replace", "keep"]
"""What to do with what others have written where a job is to write: remove it, or leave it."""

FORMAT = 1
"""Version of a mark."""

MOST_STRANGERS = 1_000


class OutputOwner:
    """The claim of a job's ledger to the job's output folder.

    The marks are read when this is made. Make it before the ledger is brought up to date: a run is in its ledger before
    it is in a mark, so of launchers that start at once on one ledger none takes it for an older copy.

    Args:
        spec: The job; one with an output.
        existing: What to do with what others have written there; None refuses it.

    Attributes:
        is_new: Whether this ledger has never written there; known once that was checked.
        keeps: Whether what others have written there is kept; likewise.
        replaces: Whether it is removed first; likewise.
        is_alone: Whether nobody else has written there; likewise.

    Raises:
        StorageError: If the folder cannot be looked at, or a link or a file lies where its marks do.
    """

    is_new: bool
    keeps: bool
    replaces: bool
    is_alone: bool
    _is_marked: bool

    def __init__(self, spec: JobSpec, existing: Existing | None) -> None:
        self._spec = spec
        self._existing = existing
        self._output = str(spec.output)
        self._folder = ObjectFolder(self._output, spec.storage_options)
        require_own_folder(f"{self._output}/{MARKS_FOLDER}")
        self._marks = self._read_marks()

    def check(self, store: LedgerStore | None) -> None:
        """Refuse a folder that is not this ledger's, unless the user chose what becomes of it; nothing is done yet.

        Args:
            store: The job's ledger, up to date; None if there is none yet.

        Raises:
            UsageError: If the shards there are another ledger's or have no mark, and the user chose nothing, or to
                replace what a pattern of the sources names; also if a folder in a folder that is not yet this ledger's
                is a link.
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
                f"{problem}\ngive another --output{self._owners_ledger()}, or choose what becomes of the shards:\n"
                "  --existing replace  removes the shards first\n"
                "  --existing keep     leaves all of it, beside what this job writes"
            )
        if self.replaces:
            self._spare_sources()
            self.is_alone = store is None or has_kept_nothing(store)

    def replace(self) -> None:
        """Remove what others have written there if `check` was told to, once nothing else refuses the job.

        The shards go, then the marks: a job that is killed in between finds out what it has lost.
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
        """Mark the folder as this ledger's: one small write, and the first time some requests for nested folders.

        Args:
            store: The job's ledger, in which the run has begun.
            run: Token of the run, as of `run_info`.

        Raises:
            UsageError: If another ledger has marked it meanwhile, or the job that owns a folder around it has written
                there.
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
        """Return who has come since the folder was checked; None for nobody. Its mark is there: who comes sees it."""
        # Of two new ledgers that did not see each other's mark at first, none goes on.
        if set(self._mark_names()) - {name} - self._marks.keys():
            self._marks = {other: mark for other, mark in self._read_marks().items() if other != name}
            return self._of_another(self._marks)
        around = note_nested(self._output, store.ledger_id(), self._spec.storage_options)
        # Of two jobs, one in a folder of the other: what was written before the note is seen here, and what is written
        # after it by the other job, in `check_kept`.
        shard = self._a_shard() if around and self.is_new and not self.keeps else None
        if shard is None:
            return None
        return (
            f"{self._output}: the job that owns {around[0]} has written here since this one looked: {printable(shard)}"
        )

    def check_kept(self, store: LedgerStore) -> None:
        """Check that the folder is still this ledger's, with all that it has written there.

        One request, and a few where others own folders below it.

        Raises:
            StorageError: If its mark is gone, so what was written before lies elsewhere, or nowhere; or another ledger
                has claimed a folder below it in which this one has outputs.
        """
        marks = self._folder.names(MARKS_FOLDER)
        if _mark_name(store) not in marks:
            raise StorageError(
                f"{self._output}: expected the folder to which this run began to write, and found none with its mark, "
                f"{_mark_name(store)}: it was moved, removed or replaced meanwhile, and some outputs went with it. Put "
                "it back if it was moved, and run the same command again: what is gone is written again"
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
                f"{self._output}/{printable(name)}: this job wrote it, and {folder} has become the output folder of "
                f"another job, as {mark} in it says: each of them may have written over files of the other. Run the "
                f"other one with another --output, delete {folder}, and run the same command again: what is gone is "
                "written again"
            )

    def begin_restart(self, store: LedgerStore) -> None:
        """Remove what a killed run of the job that ends here has published and not recorded.

        What it has recorded is superseded when another job takes the ledger; the other shards would be in no ledger.
        """
        job = store.job()
        if job is None or job.fingerprint == self._spec.identity().fingerprint or self.is_new or not self.is_alone:
            return
        form, options = shard_form(job.parameters.get("to")), self._spec.storage_options
        for shards in unrecorded(shards_below(self._output, form, options), store):
            self._folder.delete(shards)

    def strangers(self, store: LedgerStore) -> list[str]:
        """Return the names of shards that the ledger knows nothing of, the first few, unless others may write there.

        Args:
            store: The job's ledger. No run is at work on it.
        """
        shards = unrecorded(self._shards(), store) if self.is_alone else ()
        return list(islice(chain.from_iterable(shards), MOST_STRANGERS))

    def _problem(self, store: LedgerStore | None) -> str | None:
        """Return why the folder is not this ledger's; None if it is, or if it has no owner."""
        runs = [] if store is None else [run["info"] for run in store.runs()]
        own = None if store is None else self._marks.get(_mark_name(store))
        self._is_marked = own is not None
        self.is_alone = len(self._marks) == self._is_marked and (store is None or has_kept_nothing(store))
        self.is_new = own is None and all(info.get("output") != without_secrets(self._output) for info in runs)
        if own is not None:
            if own.get("run") in {info.get("token") for info in runs}:
                return None
            return (
                f"{self._output}: a later state of this ledger has written here than {self._spec.ledger} holds: "
                f"{self._of_later_state(own)}"
            )
        if self._marks:
            return self._of_another(self._marks)
        if not self.is_new:
            return None  # its mark was removed
        shard = self._a_shard()
        if shard is None:
            return self._a_product()
        return (
            f"{self._output}: it holds shards such as this job writes, and no ledger says whose they are: "
            f"{printable(shard)}"
        )

    def _of_later_state(self, mark: Mapping[str, Any]) -> str:
        if not self._is_of_this_place(mark):
            return (
                "this is an older copy of it, or a copy went on in its place; go on with the one that wrote last, "
                f"{_text(mark, 'url')} then"
            )
        other_host = "" if is_local(self._spec.ledger) else ", or go on from the host whose local copy has it"
        return f"an older copy lies there. Restore what is missing there{other_host}; else"

    def _is_of_this_place(self, mark: Mapping[str, Any]) -> bool:
        """Return whether the ledger of a mark lay where that of this job lies: to name it leads nowhere."""
        return mark.get("url") == without_secrets(self._spec.ledger)

    def _of_another(self, marks: Mapping[str, Mapping[str, Any]]) -> str:
        name, mark = next(iter(marks.items()))
        more = f" (and {count(len(marks) - 1, 'more ledger')})" if len(marks) > 1 else ""
        shard = self._a_shard()
        url = _text(mark, "url")
        was_here = self._is_of_this_place(mark)
        whose = f"a ledger that lay at {url} before" if was_here else f"another ledger, {url}"
        holds = f"; it holds shards such as {printable(shard)}" if shard else ""
        restore = ". Restore that ledger; else" if was_here else ""
        return f"{self._output}: it belongs to {whose}{more}, as {name} says{holds}{restore}"

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
            return f"{url}: this job would replace this file, and no ledger says whose it is"
        return None

    def _product_files(self) -> list[str]:
        product = self._spec.product()
        return [] if product is None else product.files()

    def _shards(self) -> Iterator[list[str]]:
        return shards_below(self._output, self._spec.shard_form, self._spec.storage_options)

    def shards(self) -> Iterator[str]:
        """Yield the names of the shards that lie in the folder."""
        return chain.from_iterable(self._shards())

    def _a_shard(self) -> str | None:
        return next(self.shards(), None)

    def _spare_sources(self) -> None:
        """Refuse to remove what a pattern names in the folder itself: it may be sources that look like shards.

        Raises:
            UsageError: If there is such a shard.
        """
        shard = next(filter(named_below(self._output, self._spec.sources().names), self.shards()), None)
        if shard is not None:
            raise UsageError(
                f"{self._output}/{printable(shard)}: --existing replace would remove it, and a pattern of the sources "
                "names it; give another --output. If it is no source, remove it yourself, and all like it"
            )

    def _mark_names(self) -> list[str]:
        return [name for name in self._folder.names(MARKS_FOLDER) if name.endswith(".json")]

    def _read_marks(self) -> dict[str, Mapping[str, Any]]:
        names = self._mark_names()
        found = zip(names, self._folder.read(names), strict=True)
        return {name: _parsed(data) for name, data in found if data is not None}

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
    """Return whether no run of a ledger has written beside what others had written there before."""
    return all(run["info"].get("existing") != "keep" for run in store.runs())


def shards_below(folder: str, form: str, options: Options) -> Iterator[list[str]]:
    """Yield the names of the shards below a folder, in pages, but for those in folders with owners of their own.

    Args:
        folder: A local folder or URL.
        form: What their names end with, as of `shard_form`.
        options: Storage options.
    """
    ends_so = re.compile(rf"(?:{form})\Z").search
    owned: tuple[str, ...] | None = None
    for page in list_files(folder, options):
        shards = [name for name in page.names if ends_so(name)]
        if owned is None and any("/" in name for name in shards):
            owned = tuple(f"{path}/" for path in marked_below(folder, options))
        yield [name for name in shards if not name.startswith(owned)] if owned else shards


def _mark_name(store: LedgerStore) -> str:
    return f"{MARKS_FOLDER}/{store.ledger_id()}.json"


def _parsed(data: bytes) -> Mapping[str, Any]:
    """Read a mark; one that cannot be read still counts as another ledger's."""
    try:
        mark = decode(data)
    except ValueError:
        return {}
    return mark if isinstance(mark, dict) else {}


def _text(mark: Mapping[str, Any], name: str) -> str:
    value = mark.get(name)
    return printable(value) if isinstance(value, str) else "unknown"
