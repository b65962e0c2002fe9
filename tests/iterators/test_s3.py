"""Graphs over an object store: how many requests a pass and a restored buffer take."""

from __future__ import annotations

import json
from itertools import islice

import pytest

from ledgerbeam.io import encode_jsonl, publish_bytes, write_index
from ledgerbeam.iterators import Chain, IndexedManifest, IteratorNode, Repeat, Shuffle
from tests.conftest import S3Requests, S3Server

pytestmark = pytest.mark.s3

FILES = 4
RECORDS = 6_000


@pytest.fixture(scope="module")
def urls(s3: S3Server) -> list[str]:
    bucket, found = s3.bucket(), []
    for number in range(FILES):
        data, offsets = encode_jsonl([{"n": n, "text": "x" * 80} for n in range(RECORDS)])
        found.append(f"s3://{bucket}/lines-{number}.jsonl")
        publish_bytes(found[-1], data, s3.options)
        write_index(f"{found[-1]}.idx", offsets, s3.options)
    return found


def shuffled(urls: list[str], s3: S3Server) -> IteratorNode:
    return Shuffle(Repeat(Chain(*(IndexedManifest(url, options=s3.options) for url in urls)), 2), 10_000)


def test_a_buffer_of_10_000_is_read_again_with_few_requests(
    urls: list[str], s3: S3Server, s3_requests: S3Requests
) -> None:
    graph = shuffled(urls, s3)
    expected = list(islice(graph, 2_000))
    state = json.loads(json.dumps(graph.state_dict()))
    assert len(state["state"]["buffer"]) == 10_000
    expected = list(islice(graph_rest(graph, state), 500))
    other = shuffled(urls, s3)
    s3_requests.take()
    other.load_state_dict(state)
    assert len(s3_requests.take()) <= FILES * 2  # who the data is
    found = list(islice(other, 500))
    requests = s3_requests.take()
    assert found == expected
    assert requests.count("get_object") <= 20, requests


def graph_rest(graph: IteratorNode, state: dict[str, object]) -> IteratorNode:
    graph.load_state_dict(state)
    return graph


def test_a_pass_in_order_reads_blocks(urls: list[str], s3: S3Server, s3_requests: S3Requests) -> None:
    leaf = IndexedManifest(urls[0], options=s3.options)
    s3_requests.take()
    assert len(list(leaf)) == RECORDS
    assert s3_requests.take().count("get_object") <= 12


def test_a_shuffled_pass_reads_neighbours_together(urls: list[str], s3: S3Server, s3_requests: S3Requests) -> None:
    leaf = IndexedManifest(urls[0], options=s3.options, shuffle=True)
    s3_requests.take()
    assert len(list(leaf)) == RECORDS
    assert s3_requests.take().count("get_object") <= 40
