"""Claims on an object store: seen with the listing of a refresh, no part of the ledger, removed by a compaction."""

from __future__ import annotations

import pytest

from ledgerbeam.ledger.model.claims import Claims, Span, encode_claims
from ledgerbeam.ledger.model.job import Job
from ledgerbeam.ledger.remote.compaction import compact
from ledgerbeam.ledger.remote.store import RemoteStore
from ledgerbeam.ledger.worker.sharing import ObjectClaims
from tests.ledger.builders import leaf_of, plain
from tests.ledger.conformance import finish
from tests.ledger.remote.test_store import Hosts
from tests.ledger.views import picture

JOB = Job("map", {"to": "jsonl"})


def claims_of(store: RemoteStore, host: str) -> ObjectClaims:
    return ObjectClaims(store, store.begin_run({}), host, lambda run: run == "000001")


@pytest.fixture
def pair(hosts: Hosts) -> tuple[RemoteStore, ObjectClaims, RemoteStore, ObjectClaims]:
    one, two = hosts.store(), hosts.store()
    one.open_job(JOB)
    two.open_job(JOB)
    return one, claims_of(one, "a host/1"), two, claims_of(two, "b")


def test_others_are_seen_once_the_ledger_is_refreshed(
    hosts: Hosts, pair: tuple[RemoteStore, ObjectClaims, RemoteStore, ObjectClaims]
) -> None:
    one, mine, two, others = pair
    assert mine.names() == others.names() == []
    mine.put(b"first")
    others.put(b"second")
    one.refresh()
    assert mine.names() == ["claims/000002/b.json"]
    assert mine.read(mine.names()) == [b"second"]
    two.refresh()
    assert others.names() == ["claims/000001/a-host-1.json"]
    mine.put(b"third")
    assert others.read(others.names()) == [b"third"]
    mine.remove()
    assert others.read(others.names()) == [None]
    two.refresh()
    assert others.names() == []
    assert not mine.has_died(Claims("000001", "", 1, 1.0))
    assert mine.has_died(Claims("000002", "", 1, 1.0))


@pytest.mark.parametrize(
    ("host", "part"), [("x" * 50, "x" * 40), ("h\u00f6st/of  one", "h-st-of-one"), ("a.B-9_z", "a.B-9-z"), ("", "")]
)
def test_a_host_of_any_name_has_a_claim_whose_name_is_short_and_plain(hosts: Hosts, host: str, part: str) -> None:
    store = hosts.store()
    mine = claims_of(store, host)
    mine.put(b"mine")
    assert hosts.objects.names("claims") == [f"claims/000001/{part}.json"]
    store.refresh()
    assert mine.names() == []


@pytest.mark.parametrize("data", [b"", b"damaged", encode_claims(Claims("1", "", 1, 9.0, [Span(b"s" * 16, 0, 1)]))])
def test_claims_are_no_part_of_the_ledger(hosts: Hosts, data: bytes) -> None:
    store = hosts.store()
    store.open_job(JOB)
    finish(store, plain("a"))
    before = picture(store)
    hosts.objects.replace("claims/000009/x.json", data)
    hosts.objects.replace("claims/odd", data)
    store.refresh()
    assert picture(store) == before == picture(hosts.store())


def test_a_compaction_removes_those_of_the_dead(hosts: Hosts) -> None:
    store = hosts.store()
    store.open_job(JOB)
    source = plain("a")
    store.register([source])
    store.commit([leaf_of(source)])
    hosts.objects.replace("claims/000009/x.json", b"old")
    assert compact(store).replaced
    assert hosts.objects.names("claims") == []
