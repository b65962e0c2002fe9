"""Which sources a job has: entering them, replacing those that changed, forgetting them, and what that supersedes.

Every registered source owns its URLs alone: `urls` maps each of them to it. To register a source for a URL that
another one owns is to replace that one. A replaced source loses its rows and is remembered as retired, so that its
late leaves are ignored. What it had published is superseded, and so are the outputs of a source that was forgotten
and those of a job that restarts.

A superseded output is stale, its object to be deleted, once whatever took its source's place is complete:

- the source itself, if it is registered (it was forgotten, or its job restarted);
- else every source that owns a URL of the retired source now (several, when a pack was cut anew). URLs that nobody
  took over have left the listing and do not count;
- nothing, if the source is unknown to the job that restarted.

Its name must also not be the name of an output that any source has now.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import translate
from re import compile as compile_pattern
from typing import Any

from ledgerbeam.ledger.identity import ID_BYTES, name_key, url_key
from ledgerbeam.ledger.lmdb_commit import add_totals, clear_failures, decode_output
from ledgerbeam.ledger.lmdb_environment import Environment
from ledgerbeam.ledger.lmdb_pages import PAGE_ROWS, key_pages, row_pages
from ledgerbeam.ledger.lmdb_rows import (
    APPLIED,
    ATTEMPTS,
    COMPLETED,
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
    SUPERSEDED,
    URLS,
    Transaction,
    decode,
    encode,
)
from ledgerbeam.ledger.task import Source


def encode_source(source: Source, *, replaces: bool = False) -> bytes:
    """Make the row of a source that is not complete; `replaces` says that it took the place of another."""
    row: dict[str, Any] = {"url": source.url, "size": source.size, "version": source.version}
    if replaces:
        row["replaces"] = True
    if source.members:
        row["members"] = [[member.url, member.size, member.version] for member in source.members]
    return encode(row)


def urls_of(row: bytes) -> list[str]:
    """The URLs of a row of `sources`: of each member, or its own."""
    fields = decode(row)
    return [member[0] for member in fields.get("members", ())] or [fields["url"]]


def register(txn: Transaction, sources: Sequence[Source]) -> None:
    """Enter sources that are not known yet, and retire those whose URLs they take over."""
    claims, claiming = _claims(sources)
    for late in sources:
        if late.id not in claiming and txn.get(SOURCES, late.id) is None:
            txn.put(RETIRED, late.id, encode(list(late.urls)))  # it changed while it was listed
    owners = txn.get_many(URLS, sorted(claims))
    taken = [(url, owner) for url, owner in sorted(claims.items()) if owners.get(url) != owner]
    for owner in sorted({owners[url] for url, _ in taken if url in owners}):
        retire(txn, owner)
    txn.put_many(URLS, taken)
    replacing = {owner for url, owner in taken if url in owners}
    ids = sorted(claiming)
    rows = [(source, encode_source(claiming[source], replaces=source in replacing)) for source in ids]
    txn.put_many(SOURCES, rows, overwrite=False)
    for table in (RETIRED, GONE):
        if txn.count(table):
            for source in ids:
                txn.delete(table, source)


def _claims(sources: Sequence[Source]) -> tuple[dict[bytes, bytes], dict[bytes, Source]]:
    """Which source each URL key goes to, and the sources that keep all of theirs: the last to name a URL has it."""
    last = {url_key(url): source.id for source in sources for url in source.urls}
    claiming = {source.id: source for source in sources if all(last[url_key(url)] == source.id for url in source.urls)}
    return {url: source for url, source in last.items() if source in claiming}, claiming


def retire(txn: Transaction, source: bytes) -> None:
    """Replace a source: its progress goes, its outputs are superseded."""
    row = txn.get(SOURCES, source)
    if row is None:
        return
    _withdraw(txn, source, row)
    txn.delete(SOURCES, source)
    txn.delete(GONE, source)
    txn.put(RETIRED, source, encode(urls_of(row)))


def forget(txn: Transaction, sources: Iterable[bytes], *, failures_only: bool) -> list[str]:
    """Make registered sources run again; gives their URLs. See `store.LedgerStore.forget`."""
    urls = []
    for source in sources:
        row = txn.get(SOURCES, source)
        if row is None:
            continue  # replaced since it was looked up
        fields = decode(row)
        urls.append(fields["url"])
        if failures_only:
            clear_failures(txn, source)
        else:
            _withdraw(txn, source, row)
            if fields.pop("tally", None):
                txn.put(SOURCES, source, encode(fields))
    return sorted(urls)


def _withdraw(txn: Transaction, source: bytes, row: bytes) -> None:
    """Drop the progress of a source and supersede its outputs."""
    if txn.delete(COMPLETED, source):
        add_totals(txn, decode(row)["tally"], -1)
        withdrawals = int(txn.get(META, KEY_WITHDRAWN) or b"0") + 1
        txn.put(META, KEY_WITHDRAWN, str(withdrawals).encode())
    pending = txn.pop(PENDING, source)
    if pending is not None:
        add_totals(txn, PENDING_ROW.unpack(pending)[1:], -1)
        txn.delete_prefix(APPLIED, source)
    clear_failures(txn, source)
    supersede(txn, txn.delete_prefix(OUTPUTS, source))


def supersede(txn: Transaction, rows: Iterable[tuple[bytes, bytes]]) -> None:
    """Take rows of `outputs` over into `superseded`."""
    txn.put_many(
        SUPERSEDED, [(key, decode_output(row)[0].name.encode("utf-8", "surrogateescape")) for key, row in rows]
    )


def restart(txn: Transaction) -> None:
    """Drop the progress of every source, for another job. Outputs are superseded; runs are kept."""
    start = b""
    while rows := txn.page(OUTPUTS, start, PAGE_ROWS):
        supersede(txn, rows)
        start = rows[-1][0] + b"\0"
    for table in (COMPLETED, SOURCES, URLS, PENDING, APPLIED, FAILED, ATTEMPTS, OUTPUTS, RETIRED, GONE):
        txn.clear(table)
    txn.delete(META, KEY_TOTALS)
    withdrawals = int(txn.get(META, KEY_WITHDRAWN) or b"0") + 1
    txn.put(META, KEY_WITHDRAWN, str(withdrawals).encode())


def matching(environment: Environment, pattern: str) -> list[bytes]:
    """Ids of the registered sources of which a URL matches a shell pattern (case counts, ``*`` matches ``/``)."""
    match = compile_pattern(translate(pattern)).match
    found = []
    for page in row_pages(environment, SOURCES):
        found += [source for source, row in page if any(match(url) for url in urls_of(row))]
    return found


def set_gone(txn: Transaction, ids: Iterable[bytes]) -> None:
    """Replace the set of sources that the last listing no longer had; unknown ids are ignored."""
    txn.clear(GONE)
    for source in ids:
        if txn.get(SOURCES, source) is not None:
            txn.put(GONE, source, b"")


def stale_outputs(environment: Environment) -> list[str]:
    """Names of superseded outputs whose objects may be deleted, sorted."""
    with environment.read() as txn:
        if not txn.count(SUPERSEDED):
            return []
        stale = {
            key[ID_BYTES:]: name.decode("utf-8", "surrogateescape")
            for source in txn.prefixes(SUPERSEDED, ID_BYTES)
            if _is_replaced(txn, source)
            for key, name in txn.scan(SUPERSEDED, source)
        }
    if stale:
        for page in key_pages(environment, OUTPUTS):
            for key in page:
                stale.pop(key[ID_BYTES:], None)
    return sorted(stale.values())


def drop_stale(txn: Transaction, names: Iterable[str]) -> None:
    """Forget superseded outputs of replaced sources: those named, and those that were written again in place."""
    dropped = {name_key(name) for name in names}
    for source in list(txn.prefixes(SUPERSEDED, ID_BYTES)):
        if not _is_replaced(txn, source):
            continue
        owners = _successors(txn, source) or {source}
        for key, _ in txn.scan(SUPERSEDED, source):
            name = key[ID_BYTES:]
            if name in dropped or any(txn.get(OUTPUTS, owner + name) is not None for owner in owners):
                txn.delete(SUPERSEDED, key)


def _is_replaced(txn: Transaction, source: bytes) -> bool:
    """Tell whether what took a source's place is complete; see the module's rule."""
    if txn.get(SOURCES, source) is not None:
        return txn.get(COMPLETED, source) is not None
    if txn.get(RETIRED, source) is None:
        return True
    successors = _successors(txn, source)
    return bool(successors) and all(txn.get(COMPLETED, successor) is not None for successor in successors)


def _successors(txn: Transaction, source: bytes) -> set[bytes]:
    """The registered sources that own a URL of a retired source now."""
    row = txn.get(RETIRED, source)
    owners = {txn.get(URLS, url_key(url)) for url in ([] if row is None else decode(row))}
    return {owner for owner in owners if owner is not None and txn.get(SOURCES, owner) is not None}
