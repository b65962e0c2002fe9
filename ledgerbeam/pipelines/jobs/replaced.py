"""Sources that are done in part: whether their files are still those that the done parts were read from."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace

from ledgerbeam.io.storage.urls import is_local
from ledgerbeam.ledger import LedgerStore, Source
from ledgerbeam.ledger.selection import PendingSource, with_progress

__all__ = ["look_at_files"]

_log = logging.getLogger(__name__)


def look_at_files(sources: Sequence[Source], store: LedgerStore) -> list[PendingSource]:
    """Return sources with what is done of them, as `with_progress`, for the next pass over them.

    A local file may be replaced by one of the same size and time, which is the same source by its identity. So the
    ledger keeps when anything of a file was last changed, as its inode says and nobody can set. A source that is done
    in part and of which that differs is begun anew: its parts would be of two contents. Planning and reading are told
    the time, too, and fail the tasks if it is another by then.

    Args:
        sources: Registered sources, which owe work.
        store: The job's ledger.
    """
    found = with_progress(sources, store)
    looked = {row.source.id: _looked_at(row.source) for row in found}
    times = {known: [file.changed_ns for file in source.members or (source,)] for known, source in looked.items()}
    before = store.file_times(list(times))
    changed = {row.source.id for row in found if len(row.applied) > 1 and _differ(row.source.id, before, times)}
    for known in sorted(changed):
        _log.warning("%s: written since parts of it were done, so nothing of it counts as done", looked[known].url)
    if changed:
        store.forget_sources(changed)
        found = with_progress(sources, store)
    store.note_file_times({known: now for known, now in times.items() if any(now) and before.get(known) != now})
    return [replace(row, source=looked.get(row.source.id, row.source)) for row in found]


def _differ(source: bytes, before: dict[bytes, list[int]], now: dict[bytes, list[int]]) -> bool:
    return source in before and any(now[source]) and before[source] != now[source]


def _looked_at(source: Source) -> Source:
    if source.members:
        return replace(source, members=tuple(map(_looked_at, source.members)))
    try:
        return replace(source, changed_ns=os.stat(source.url).st_ctime_ns) if is_local(source.url) else source
    except OSError:  # planning says what is wrong with it
        return source
