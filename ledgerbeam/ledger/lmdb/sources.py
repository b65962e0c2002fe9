"""Which sources a job has: entering them, replacing those that changed, forgetting them.

Every registered source owns its URLs alone: `urls` maps each of them to it. To register a source for a URL that
another one owns is to replace that one. A replaced source loses its rows and is remembered as retired, so that its
late leaves count for nothing. What it had published is superseded, late or not, and so are the outputs of a source that
was forgotten and those of a job that restarts; see `superseded`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import translate
from re import compile as compile_pattern
from typing import Any

from ledgerbeam.ledger.lmdb.accounts import drop_accounts
from ledgerbeam.ledger.lmdb.commit import PreparedLeaf, add_totals
from ledgerbeam.ledger.lmdb.decoding import read_retired, read_source_fields
from ledgerbeam.ledger.lmdb.environment import PAGE_ROWS, Environment, row_pages
from ledgerbeam.ledger.lmdb.errors import translated
from ledgerbeam.ledger.lmdb.failures import clear_failures
from ledgerbeam.ledger.lmdb.superseded import successors, supersede
from ledgerbeam.ledger.lmdb.tables import (
    APPLIED,
    ATTEMPTS,
    COMPLETED,
    COUNTED,
    COUNTS,
    FAILED,
    GONE,
    KEY_TOTALS,
    KEY_WITHDRAWN,
    META,
    OUTPUTS,
    PENDING,
    PENDING_ROW,
    RETIRED,
    SOURCES,
    STATISTICS,
    SUPERSEDED,
    URLS,
    WITHDRAWN,
    Transaction,
    unpack_completion,
)
from ledgerbeam.ledger.model.identity import ID_BYTES, url_key
from ledgerbeam.ledger.model.task import Source
from ledgerbeam.ledger.model.values import encode

_OF_A_JOB = (
    *(WITHDRAWN, COMPLETED, SOURCES, PENDING, APPLIED, FAILED, ATTEMPTS, OUTPUTS),
    *(COUNTS, STATISTICS, COUNTED, RETIRED, GONE),
)

_NOBODY = bytes(ID_BYTES)
"""The owner of a URL of which it is not known what its index was made of."""

_Keys = Mapping[bytes, list[bytes]]
"""By the id of a source, the keys of its URLs."""


def encode_source(source: Source, *, replaces: bool, number: int) -> bytes:
    """Make the row of a source that is not complete; `replaces` says that it took the place of another."""
    row: dict[str, Any] = {"url": source.url, "size": source.size, "version": source.version}
    if number:
        row["number"] = number
    if replaces:
        row["replaces"] = True
    if source.members:
        row["members"] = [[member.url, member.size, member.version] for member in source.members]
    return encode(row)


def file_times(txn: Transaction, ids: Sequence[bytes]) -> dict[bytes, list[int]]:
    """Return what `note_file_times` noted of sources, by id; those of which nothing is noted are left out."""
    rows = txn.get_many(SOURCES, ids)
    return {source: times for source, row in rows.items() if (times := read_source_fields(row).get("changed"))}


def note_file_times(txn: Transaction, times: Mapping[bytes, list[int]]) -> None:
    """Note when the files of registered sources were last changed; of others nothing is noted."""
    rows = txn.get_many(SOURCES, times)
    changed = [(source, encode({**read_source_fields(row), "changed": times[source]})) for source, row in rows.items()]
    txn.put_many(SOURCES, changed)


def numbers_of(fields: Mapping[str, Any]) -> list[int]:
    """Return the numbers of the registrations of a source that count, by its row, ascending; 0 in a local ledger."""
    return [fields.get("number", 0), *fields.get("again", ())]


def urls_of(row: bytes) -> list[str]:
    """Return the URLs of a row of `sources`: of each member, or its own."""
    fields = read_source_fields(row)
    return [member[0] for member in fields.get("members", ())] or [fields["url"]]


def register(
    txn: Transaction,
    sources: Sequence[Source],
    *,
    number: int = 0,
    before_retiring: Callable[[Iterable[bytes]], object] = tuple,
) -> None:
    """Enter sources that are not known yet, and retire those whose URLs they take over.

    Args:
        txn: Open for writing.
        sources: The later of two that name the same URL has it.
        number: Of the registration, in a remote ledger; there nobody has had their URLs.
        before_retiring: Called before anything is changed, with the ids of those that go, if there are any.
    """
    keys = {source.id: [url_key(url) for url in source.urls] for source in sources}
    urls, claiming = claims(sources, keys)
    owners = txn.get_many(URLS, urls)
    taken = [(url, owner) for url, owner in urls.items() if owners.get(url) != owner]
    outdated = []  # they changed while they were listed
    if len(claiming) < len(sources):
        outdated = [source for source in sources if source.id not in claiming]
    retiring = {owners[url] for url, _ in taken if url in owners}
    if retiring or outdated:
        before_retiring({*retiring, *(source.id for source in outdated)})
    for late in outdated:
        retire(txn, late.id, number)
        put_retired(txn, late.id, number, late.urls)
    for owner in retiring:
        retire(txn, owner, number)
    txn.put_many(URLS, taken)
    replacing = {owner for url, owner in taken if url in owners}
    rows = [
        (source, encode_source(row, replaces=source in replacing, number=number)) for source, row in claiming.items()
    ]
    txn.put_many(SOURCES, rows, overwrite=False)
    for table in (RETIRED, GONE):
        if txn.count(table):
            for source in claiming:
                txn.delete(table, source)


def claims(sources: Sequence[Source], keys: _Keys) -> tuple[dict[bytes, bytes], dict[bytes, Source]]:
    """Return which source each URL key goes to, and the sources that keep all of theirs.

    The last to name a URL has it.
    """
    last = {key: source.id for source in sources for key in keys[source.id]}
    claiming = {source.id: source for source in sources if all(last[key] == source.id for key in keys[source.id])}
    return {url: source for url, source in last.items() if source in claiming}, claiming


def retire(txn: Transaction, source: bytes, number: int) -> None:
    """Replace a source: its progress goes, its outputs are superseded."""
    row = _registered(txn, source)
    if row is None:
        return
    withdraw(txn, source, number)
    txn.delete(SOURCES, source)
    txn.delete(GONE, source)
    put_retired(txn, source, number, urls_of(row))


def _registered(txn: Transaction, source: bytes) -> bytes | None:
    """Return the row of a source; None for one that is not registered. Raises ValueError if only its row is lost."""
    row = txn.get(SOURCES, source)
    if row is None and any(txn.get(table, source) is not None for table in (COMPLETED, PENDING)):
        raise ValueError(f"expected a row of the source {source.hex()}, of which tasks are recorded, found none")
    return row


def put_retired(txn: Transaction, source: bytes, number: int, urls: Sequence[str]) -> None:
    """Note that a source is replaced, with a number or a greater one."""
    txn.delete(WITHDRAWN, source)
    txn.put(RETIRED, source, encode([max(number, number_of_retired(txn, source)), *urls]))


def number_of_retired(txn: Transaction, source: bytes) -> int:
    """Return the greatest number that a source was replaced with; 0 for one that is registered, or unknown."""
    row = txn.get(RETIRED, source)
    return 0 if row is None else read_retired(row)[0]


def urls_of_sources(txn: Transaction, sources: Iterable[bytes]) -> list[str]:
    """Return the URLs of those sources that are registered, sorted; of a pack that of its first member."""
    found = (txn.get(SOURCES, source) for source in sources)
    return sorted(read_source_fields(row)["url"] for row in found if row is not None)


def forget(txn: Transaction, sources: Iterable[bytes], *, failures_only: bool, number: int = 0) -> list[str]:
    """Make registered sources run again and return their URLs. See `store.LedgerStore.forget`."""
    urls = []
    for source in sources:
        row = _registered(txn, source)
        if row is None:
            continue  # replaced since it was looked up
        urls.append(read_source_fields(row)["url"])
        if failures_only:
            clear_failures(txn, source)
        else:
            withdraw(txn, source, number)
    return sorted(urls)


def supersede_late(txn: Transaction, by_source: Iterable[tuple[bytes, Sequence[PreparedLeaf]]]) -> None:
    """Supersede what was published of sources that were replaced meanwhile.

    It may have been written over what those have published that took their place, by the same names: they run again.

    Args:
        txn: Open for writing.
        by_source: Leaves that come in, from `commit.prepare`.
    """
    for source, leaves in by_source:
        retired = txn.get(RETIRED, source)  # there is none of a source that is registered
        keys = set() if retired is None else {url_key(url) for url in read_retired(retired)[1]}
        if not keys or len(txn.get_many(URLS, keys)) < len(keys):  # it changed while it was listed: it has no tasks
            continue
        rows = [row for leaf in leaves for row in leaf.outputs]
        supersede(txn, rows, 0)
        for owner in successors(txn, source):
            if any(txn.get(OUTPUTS, owner + key[ID_BYTES:]) is not None for key, _ in rows):
                withdraw(txn, owner, 0)


def withdraw(txn: Transaction, source: bytes, number: int) -> None:
    """Drop the progress of a source and supersede its outputs."""
    completed = txn.pop(COMPLETED, source)
    if completed is not None:
        add_totals(txn, unpack_completion(completed)[1], -1)
        count_withdrawal(txn)
    pending = txn.pop(PENDING, source)
    if pending is not None:
        add_totals(txn, PENDING_ROW.unpack(pending)[1:], -1)
        txn.delete_prefix(APPLIED, source)
    drop_accounts(txn, source)
    clear_failures(txn, source)
    supersede(txn, txn.delete_prefix(OUTPUTS, source), number)


def restart(txn: Transaction, number: int, *, supersedes: bool) -> None:
    """Drop the progress of every source, for another job. Outputs are superseded; runs are kept.

    A local ledger also keeps who owns a URL: the index beside a source that has changed by now was made of its former
    content. Hosts of a remote ledger do not all know this.

    Args:
        txn: Open for writing.
        number: Of the restart, in a remote ledger; here and below it is what supersedes outputs.
        supersedes: Whether the new job writes to the folder of the old one; else what that has written stays there.
    """
    start = b""
    if not supersedes:
        txn.clear(SUPERSEDED)
    while supersedes and (rows := txn.page(OUTPUTS, start, PAGE_ROWS)):
        supersede(txn, rows, number)
        start = rows[-1][0] + b"\0"
    if number:
        txn.clear(URLS)
    else:
        _disown_unread(txn)
    for table in _OF_A_JOB:
        txn.clear(table)
    txn.delete(META, KEY_TOTALS)
    count_withdrawal(txn)


def _disown_unread(txn: Transaction) -> None:
    """Take its URLs from each source that replaced another and of which nothing is done: its index may be as it was."""
    start = b""
    while rows := txn.page(SOURCES, start, PAGE_ROWS):
        for source, row in rows:
            is_read = txn.get(COMPLETED, source) is not None or txn.get(PENDING, source) is not None
            if read_source_fields(row).get("replaces") and not is_read:
                txn.put_many(URLS, [(url_key(url), _NOBODY) for url in urls_of(row)])
        start = rows[-1][0] + b"\0"


def count_withdrawal(txn: Transaction) -> None:
    """Record that a completion was withdrawn: a process that holds completed ids in memory must read them again."""
    withdrawals = int(txn.get(META, KEY_WITHDRAWN) or b"0") + 1
    txn.put(META, KEY_WITHDRAWN, str(withdrawals).encode())


def matching(environment: Environment, pattern: str) -> list[bytes]:
    """Return the ids of the registered sources of which a URL matches a shell pattern.

    Case counts, and ``*`` also matches ``/``.
    """
    match = compile_pattern(translate(pattern)).match
    found = []
    with translated(environment.path):
        for page in row_pages(environment, SOURCES):
            found += [source for source, row in page if any(match(url) for url in urls_of(row))]
    return found


def set_gone(txn: Transaction, ids: Iterable[bytes], number: int = 0) -> None:
    """Replace the set of sources that the last listing no longer had; unknown ids are ignored.

    Args:
        txn: Open for writing.
        ids: In order.
        number: Of the listing, in a remote ledger: what was listed with a greater number is not gone.
    """
    txn.clear(GONE)
    for source in ids:
        row = txn.get(SOURCES, source)
        if row is None:
            continue
        _require_urls(txn, source, row)
        if number:
            fields = read_source_fields(row)
            if max(*numbers_of(fields), fields.get("back", 0)) > number:
                continue
        txn.put(GONE, source, b"")


def _require_urls(txn: Transaction, source: bytes, row: bytes) -> None:
    """Check that a registered source owns its URLs: else it was to be replaced, and what owned them then is lost."""
    keys = [url_key(url) for url in urls_of(row)]
    if set(txn.get_many(URLS, keys).values()) != {source}:
        raise ValueError(f"expected that {urls_of(row)[0]} is of the source {source.hex()}, found it of another")


def come_back(txn: Transaction, source: bytes, number: int) -> None:
    """Note with which number a registered source was listed again after it was gone, in a remote ledger."""
    row = txn.get(SOURCES, source)
    fields = {} if row is None else read_source_fields(row)
    if row is not None and fields.get("back", 0) < number:
        txn.put(SOURCES, source, encode({**fields, "back": number}))
