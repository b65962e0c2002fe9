"""Sources of a job: registering them, replacing those that changed, forgetting them.

Each URL has one owner, a registered source, in the table `urls`. Registering a source for a URL that another source
owns replaces the other source. A replaced source loses its rows, and gets a row in `retired`: leaves of the source that
arrive later do not count. Its outputs are superseded, also outputs that arrive later. So are the outputs of a forgotten
source, and of a job that restarts; see `withdrawal`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import translate
from re import compile as compile_pattern
from typing import Any

from ledgerbeam.ledger.lmdb import tables
from ledgerbeam.ledger.lmdb.accounts import drop_accounts
from ledgerbeam.ledger.lmdb.commit import PreparedLeaf, add_totals
from ledgerbeam.ledger.lmdb.environment import Environment, row_pages
from ledgerbeam.ledger.lmdb.errors import translated
from ledgerbeam.ledger.lmdb.failures import clear_failures
from ledgerbeam.ledger.lmdb.tables import Transaction
from ledgerbeam.ledger.lmdb.withdrawal import read_retired, successors, supersede
from ledgerbeam.ledger.model.identity import ID_BYTES, url_key
from ledgerbeam.ledger.model.task import Source
from ledgerbeam.ledger.model.values import decode, encode, integer, mapping, rows, text

_NOBODY = bytes(ID_BYTES)  # the owner of a URL if the content that its index was made from is not known

_Keys = Mapping[bytes, list[bytes]]  # the keys of the URLs of each source, by the id of the source


def encode_source(source: Source, *, replaces: bool, number: int) -> bytes:
    """Encode the row of a source that is not complete. `replaces`: whether the source replaced another one."""
    row: dict[str, Any] = {"url": source.url, "size": source.size, "version": source.version}
    if number:
        row["number"] = number
    if replaces:
        row["replaces"] = True
    if source.members:
        row["members"] = [[member.url, member.size, member.version] for member in source.members]
    return encode(row)


def file_times(txn: Transaction, ids: Sequence[bytes]) -> dict[bytes, list[int]]:
    """Return the times recorded by `note_file_times`, by source id; sources without times are left out."""
    rows = txn.get_many(tables.SOURCES, ids)
    return {source: times for source, row in rows.items() if (times := read_source_fields(row).get("changed"))}


def note_file_times(txn: Transaction, times: Mapping[bytes, list[int]]) -> None:
    """Record when the files of registered sources were last changed; other sources are ignored."""
    rows = txn.get_many(tables.SOURCES, times)
    changed = [(source, encode({**read_source_fields(row), "changed": times[source]})) for source, row in rows.items()]
    txn.put_many(tables.SOURCES, changed)


def numbers_of(fields: Mapping[str, Any]) -> list[int]:
    """Return the numbers of the registrations that count, from a source's row, ascending; ``[0]`` in a local ledger."""
    return [fields.get("number", 0), *fields.get("again", ())]


def urls_of(row: bytes) -> list[str]:
    """Return the URLs in a row of `sources`: the URL of each member, or the source's own."""
    fields = read_source_fields(row)
    return [member[0] for member in fields.get("members", ())] or [fields["url"]]


def register(
    txn: Transaction,
    sources: Sequence[Source],
    *,
    number: int = 0,
    before_retiring: Callable[[Iterable[bytes]], object] = tuple,
) -> None:
    """Register sources that are not known yet, and retire the sources whose URLs they take over.

    The last source that names a URL owns it. `number` is the number of the registration in a remote ledger, where this
    function registers only URLs without an owner. `before_retiring` is called before any change with the ids of the
    sources that will be retired, if there are any.
    """
    keys = {source.id: [url_key(url) for url in source.urls] for source in sources}
    urls, claiming = claims(sources, keys)
    owners = txn.get_many(tables.URLS, urls)
    taken = [(url, owner) for url, owner in urls.items() if owners.get(url) != owner]
    outdated = []  # sources that changed while they were listed
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
    txn.put_many(tables.URLS, taken)
    replacing = {owner for url, owner in taken if url in owners}
    rows = [
        (source, encode_source(row, replaces=source in replacing, number=number)) for source, row in claiming.items()
    ]
    txn.put_many(tables.SOURCES, rows, overwrite=False)
    for table in (tables.RETIRED, tables.GONE):
        if txn.count(table):
            for source in claiming:
                txn.delete(table, source)


def claims(sources: Sequence[Source], keys: _Keys) -> tuple[dict[bytes, bytes], dict[bytes, Source]]:
    """Return the source that owns each URL key, and the sources, by id, that own all of their URLs.

    The last source that names a URL owns it.
    """
    last = {key: source.id for source in sources for key in keys[source.id]}
    claiming = {source.id: source for source in sources if all(last[key] == source.id for key in keys[source.id])}
    return {url: source for url, source in last.items() if source in claiming}, claiming


def retire(txn: Transaction, source: bytes, number: int) -> None:
    """Replace a source: remove its progress and supersede its outputs."""
    row = _registered(txn, source)
    if row is None:
        return
    withdraw(txn, source, number)
    txn.delete(tables.SOURCES, source)
    txn.delete(tables.GONE, source)
    put_retired(txn, source, number, urls_of(row))


def _registered(txn: Transaction, source: bytes) -> bytes | None:
    """Return the row of a source; None for a source that is not registered.

    Raises ValueError if the row is lost: another table has a row of the source.
    """
    row = txn.get(tables.SOURCES, source)
    if row is None and any(txn.get(table, source) is not None for table in (tables.COMPLETED, tables.PENDING)):
        raise ValueError(f"the source {source.hex()} has recorded tasks, but no row in the table {tables.SOURCES}")
    return row


def put_retired(txn: Transaction, source: bytes, number: int, urls: Sequence[str]) -> None:
    """Record that a source is replaced, with the greater of `number` and its recorded number (0 in a local ledger)."""
    txn.delete(tables.WITHDRAWN, source)
    txn.put(tables.RETIRED, source, encode([max(number, number_of_retired(txn, source)), *urls]))


def number_of_retired(txn: Transaction, source: bytes) -> int:
    """Return the greatest number with which a source was replaced; 0 for a registered or unknown source."""
    row = txn.get(tables.RETIRED, source)
    return 0 if row is None else read_retired(row)[0]


def urls_of_sources(txn: Transaction, sources: Iterable[bytes]) -> list[str]:
    """Return the URLs of those sources that are registered, sorted; for a pack the URL of its first member."""
    found = (txn.get(tables.SOURCES, source) for source in sources)
    return sorted(read_source_fields(row)["url"] for row in found if row is not None)


def forget(txn: Transaction, sources: Iterable[bytes], *, failures_only: bool, number: int = 0) -> list[str]:
    """Make registered sources run again and return their URLs. See `store.LedgerStore.forget`."""
    urls = []
    for source in sources:
        row = _registered(txn, source)
        if row is None:
            continue  # replaced since the look-up
        urls.append(read_source_fields(row)["url"])
        if failures_only:
            clear_failures(txn, source)
        else:
            withdraw(txn, source, number)
    return sorted(urls)


def supersede_late(txn: Transaction, by_source: Iterable[tuple[bytes, Sequence[PreparedLeaf]]]) -> None:
    """Supersede the outputs of leaves whose sources were replaced before this commit.

    Such an output may have overwritten an output of the replacing source. Then the replacing source runs again.
    """
    for source, leaves in by_source:
        retired = txn.get(tables.RETIRED, source)  # None for a registered source
        keys = set() if retired is None else {url_key(url) for url in read_retired(retired)[1]}
        if not keys or len(txn.get_many(tables.URLS, keys)) < len(
            keys
        ):  # it changed while it was listed and has no tasks
            continue
        rows = [row for leaf in leaves for row in leaf.outputs]
        supersede(txn, rows, 0)
        for owner in successors(txn, source):
            if any(txn.get(tables.OUTPUTS, owner + key[ID_BYTES:]) is not None for key, _ in rows):
                withdraw(txn, owner, 0)


def withdraw(txn: Transaction, source: bytes, number: int) -> None:
    """Remove the progress of a source and supersede its outputs."""
    completed = txn.pop(tables.COMPLETED, source)
    if completed is not None:
        add_totals(txn, tables.unpack_completion(completed)[1], -1)
        count_withdrawal(txn)
    pending = txn.pop(tables.PENDING, source)
    if pending is not None:
        add_totals(txn, tables.PENDING_ROW.unpack(pending)[1:], -1)
        txn.delete_prefix(tables.APPLIED, source)
    drop_accounts(txn, source)
    clear_failures(txn, source)
    supersede(txn, txn.delete_prefix(tables.OUTPUTS, source), number)


def restart(txn: Transaction, number: int, *, supersedes: bool) -> None:
    """Remove the progress of every source, for another job. Outputs are superseded; runs are kept.

    A local ledger also keeps the owners of URLs. They show that a source has changed, and that its index was made from
    its former content. In a remote ledger, not all hosts know the owners.

    In a remote ledger, `number` is the number of the restart. Without `supersedes`, outputs are not superseded, because
    the new job writes to another folder.
    """
    if not supersedes:
        txn.clear(tables.SUPERSEDED)
    for page in txn.pages(tables.OUTPUTS) if supersedes else ():
        supersede(txn, page, number)
    if number:
        txn.clear(tables.URLS)
    for page in () if number else txn.pages(tables.SOURCES):
        for source, row in page:  # the index of a source that replaced another and has no finished task may be outdated
            is_read = txn.get(tables.COMPLETED, source) is not None or txn.get(tables.PENDING, source) is not None
            if read_source_fields(row).get("replaces") and not is_read:
                txn.put_many(tables.URLS, [(url_key(url), _NOBODY) for url in urls_of(row)])
    for table in tables.OF_A_JOB:
        txn.clear(table)
    txn.delete(tables.META, tables.KEY_TOTALS)
    count_withdrawal(txn)


def count_withdrawal(txn: Transaction) -> None:
    """Record that a completion was withdrawn: processes that cache completed ids must read them again."""
    withdrawals = int(txn.get(tables.META, tables.KEY_WITHDRAWN) or b"0") + 1
    txn.put(tables.META, tables.KEY_WITHDRAWN, str(withdrawals).encode())


def matching(environment: Environment, pattern: str) -> list[bytes]:
    """Return the ids of the registered sources with a URL that matches a shell pattern.

    The pattern is case-sensitive, and ``*`` also matches ``/``.
    """
    match = compile_pattern(translate(pattern)).match
    found = []
    with translated(environment.path):
        for page in row_pages(environment, tables.SOURCES):
            found += [source for source, row in page if any(match(url) for url in urls_of(row))]
    return found


def set_gone(txn: Transaction, ids: Iterable[bytes], number: int = 0) -> None:
    """Replace the set of sources missing from the last listing; unknown ids are ignored.

    In a remote ledger, `number` is the number of the listing. A source with a greater number was found by a later
    listing, and is not gone.
    """
    txn.clear(tables.GONE)
    for source in ids:
        row = txn.get(tables.SOURCES, source)
        if row is None:
            continue
        keys = [url_key(url) for url in urls_of(row)]
        if set(txn.get_many(tables.URLS, keys).values()) != {source}:  # the row of the replacing source is lost
            url = urls_of(row)[0]
            raise ValueError(f"{url}: expected the source {source.hex()} at this URL, found another source")
        if number:
            fields = read_source_fields(row)
            if max(*numbers_of(fields), fields.get("back", 0)) > number:
                continue
        txn.put(tables.GONE, source, b"")


def come_back(txn: Transaction, source: bytes, number: int) -> None:
    """Record the number with which a registered source was listed again after it was gone, in a remote ledger."""
    row = txn.get(tables.SOURCES, source)
    fields = {} if row is None else read_source_fields(row)
    if row is not None and fields.get("back", 0) < number:
        txn.put(tables.SOURCES, source, encode({**fields, "back": number}))


def read_source_fields(row: bytes) -> dict[str, Any]:
    """Decode a row of `sources`: ``url``, ``size``, ``version``; optionally ``members``, ``changed`` and numbers."""
    fields = mapping(decode(row))
    text(fields.get("url"))
    integer(fields.get("size"))
    text(fields.get("version"))
    for name in ("number", "replaced", "back"):
        integer(fields.get(name, 0))
    for several in ("again", "changed"):
        for one in rows(fields.get(several, [])):
            integer(one)
    for member in rows(fields.get("members", [])):
        url, size, version = rows(member)
        text(url)
        integer(size)
        text(version)
    return fields
