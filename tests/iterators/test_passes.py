"""Passes: reads and requests, orders of epochs, sharing, and the cost of restoring."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ledgerbeam.errors import RecordError, UsageError
from ledgerbeam.io import encode_jsonl, publish_bytes, write_index
from ledgerbeam.iterators import (
    Batches,
    Buckets,
    Chain,
    Filter,
    GlobalShuffle,
    IndexedManifest,
    IndexedTar,
    IteratorNode,
    Jsonl,
    Map,
    Mix,
    Mux,
    PackedManifest,
    Records,
    Repeat,
    Shuffle,
    Slice,
    Tar,
    attach_graph_origin,
    get_graph_origin,
    maybe_attach_graph_origin,
    normalize_graph_token,
    supports_graph_restore,
)
from ledgerbeam.iterators.torch_data import GraphSequence
from tests.conftest import S3Requests, S3Server
from tests.iterators import data
from tests.iterators.data import CountingReader, numbers

LARGE = 1_000_000


def counted(graph_of: Any, position: int) -> tuple[CountingReader, IteratorNode]:
    """Return a graph restored at a position of a large source, and a reader that counts later reads."""
    first = graph_of(CountingReader(LARGE))
    leaf = first
    while leaf.children:
        leaf = leaf.children[0]
    first.begin(0)
    leaf._done = position
    after = first.pairs()
    next(after)
    state = json.loads(
        json.dumps({"format": 1, "graph": first.identity(), "epoch": 0, "shard": [0, 1], "state": first.save()})
    )
    reader = CountingReader(LARGE)
    restored = graph_of(reader)
    restored.load_state_dict(state)
    return reader, restored


@pytest.mark.parametrize("position", [1_000, 900_000])
@pytest.mark.parametrize("shuffle", [False, True])
def test_going_on_reads_nothing_of_what_was_done(position: int, shuffle: bool) -> None:
    reader, graph = counted(lambda source: Records(source, "large", shuffle=shuffle), position)
    assert reader.records == 0
    next(iter(graph))
    assert reader.records == 1


@pytest.mark.parametrize("position", [1_000, 900_000])
def test_a_buffer_is_read_again_at_once_and_nothing_else(position: int) -> None:
    def graph_of(source: CountingReader) -> IteratorNode:
        return Batches(
            Shuffle(Map(Filter(Records(source, "large", shuffle=True), data.is_not_third), data.double), 500), 8
        )

    reader, graph = counted(graph_of, position)
    assert reader.records == 0
    next(iter(graph))
    assert len(reader.calls[0]) == 500
    assert reader.records < 500 + 32


def test_blocks_grow_from_one_record_to_many() -> None:
    reader = CountingReader(10_000)
    assert list(Records(reader, "large")) == list(range(10_000))
    assert [len(call) for call in reader.calls[:13]] == [*(2**n for n in range(12)), 2048]


def test_blocks_of_large_records_are_bounded_by_bytes(tmp_path: Path) -> None:
    lines = data.write_text(tmp_path / "large.jsonl", "".join(f'"{"x" * 99_990}{n:05d}"\n' for n in range(60)))
    pack = data.write_pack(tmp_path / "large.idxpack", [lines])
    shuffled = GlobalShuffle(Map(IndexedManifest(lines), data.wrap), IndexedManifest(lines))
    for graph in (IndexedManifest(lines), PackedManifest(pack), shuffled):
        assert graph.record_bytes == pytest.approx(100_000, rel=0.01)


def test_a_block_has_no_more_than_its_bytes() -> None:
    class Large(Records):
        record_bytes = 300_000.0

    reader = CountingReader(100)
    assert list(Large(reader, "large")) == list(range(100))
    assert max(len(call) for call in reader.calls) == 13


def test_what_a_derived_class_reads_or_yields_is_what_batches_hold(tmp_path: Path) -> None:
    class Negative(IndexedManifest):
        def read_numbers(self, numbers: Any, epoch: int | None = None) -> list[Any]:
            return [-item for item in super().read_numbers(numbers, epoch)]

    class Samples(IndexedTar):
        def read_numbers(self, numbers: Any, epoch: int | None = None) -> list[Any]:
            return [sample.key for sample in super().read_numbers(numbers, epoch)]

    class Tagged(Records):
        def pairs(self) -> Iterator[tuple[Any, Any]]:
            return ((token, ("tag", item)) for token, item in super().pairs())

    lines = data.write_text(tmp_path / "a.jsonl", "".join(f"{number}\n" for number in range(50)))
    samples = data.write_samples(tmp_path / "a.tar", 50)
    for leaf in (
        Negative(lines, shuffle=True),
        Negative(lines),
        Samples(samples, shuffle=True),
        Tagged(list(range(50)), "numbers"),
    ):
        items = [item for _, item in leaf.pairs()]
        assert len(items) == 50
        leaf.set_epoch(0)
        assert list(chain.from_iterable(Batches(leaf, 8))) == items
        assert isinstance(items[0], (str, tuple)) or sum(items) == -1225


def test_items_before_a_line_that_cannot_be_read_are_given(tmp_path: Path) -> None:
    lines = [f"{number}\n" for number in range(300)]
    lines[250] = "{\n"
    graph = IndexedManifest(data.write_text(tmp_path / "bad.jsonl", "".join(lines)), shuffle=True)
    order = graph.tokens(np.arange(300))
    place = order.index(250)
    given: list[int] = []
    with pytest.raises(RecordError, match="record 250"):
        given.extend(chain.from_iterable(Batches(graph, 4)))
    assert given == order[: place - place % 4]
    assert graph.save()["position"] == place


def test_lines_between_which_some_are_blank_are_given_in_their_order(tmp_path: Path) -> None:
    text = "".join("\n" if number % 50 == 7 else f"{number}\n" for number in range(300))
    graph = IndexedManifest(data.write_text(tmp_path / "blank.jsonl", text), shuffle=True)
    order = [token for token in graph.tokens(np.arange(300)) if token % 50 != 7]
    assert list(chain.from_iterable(Batches(graph, 4))) == order


def test_a_reader_that_returns_fewer_items_is_told() -> None:
    class Short(CountingReader):
        def read_many(self, indices: list[int]) -> list[int]:
            return super().read_many(indices)[:-1]

    graph = Records(Short(100), "short")
    with pytest.raises(UsageError, match=r"expected an item for each number \(1\), found 0"):
        list(graph)


def test_the_size_of_a_state_does_not_depend_on_the_position() -> None:
    sizes = []
    for steps in (10, 9_000):
        graph = GlobalShuffle(*(numbers(1_000, 1_000 * n) for n in range(10)))
        for _ in islice(graph, steps):
            pass
        sizes.append(len(json.dumps(graph.state_dict()["state"])))
    assert max(sizes) < 60


def test_each_epoch_has_its_own_order() -> None:
    shuffled = [
        numbers(40, shuffle=True),
        GlobalShuffle(numbers(40)),
        Shuffle(numbers(40), 10),
        Mux(numbers(20), numbers(20, 100)),
        Chain(*(numbers(3, n * 10) for n in range(12)), shuffle=True),
        Map(numbers(40), data.add_noise, seed=0),
        Mix(numbers(40), numbers(9, 100), data.mix),
        Buckets(numbers(40), data.length, [5], max_records=4, buffer_size=20),
    ]
    for graph in shuffled:
        epochs = [list(graph) for _ in range(3)]
        assert len({repr(epoch) for epoch in epochs}) == 3, graph
        graph.set_epoch(1)
        assert list(graph) == epochs[1]


def test_repeating_is_a_new_epoch_each_time() -> None:
    leaf = numbers(30, shuffle=True)
    alone = [list(leaf) for _ in range(3)]
    assert list(Repeat(numbers(30, shuffle=True), 3)) == list(chain(*alone))
    twice = Repeat(Repeat(numbers(30, shuffle=True), 2), 2)
    assert len({tuple(twice.read_span(start, start + 30)) for start in (0, 30, 60, 90)}) == 4


def test_many_short_sources_are_shared_out_evenly() -> None:
    sizes = []
    for shard in range(8):
        graph = Chain(*(numbers(3, 10 * n) for n in range(200)))
        graph.partition(shard, 8)
        sizes.append(len(list(graph)))
    assert sizes == [75] * 8


def test_a_slice_of_what_has_no_fixed_order_counts() -> None:
    assert list(Slice(Filter(numbers(40), data.is_even), 2, 3)) == [4, 10, 16, 22, 28, 34]


def test_a_slice_reads_only_what_it_gives() -> None:
    reader = CountingReader(1_000)
    assert list(Slice(Records(reader, "some"), 3, 100)) == list(range(3, 1_000, 100))
    assert reader.records == 10


def test_weights_and_temperature_shape_a_mixture() -> None:
    def share(temperature: float) -> float:
        parts = Repeat(numbers(50)), Repeat(numbers(50, 1000))
        drawn = Counter(item < 1000 for item in islice(Mux(*parts, weights=[9, 1], temperature=temperature), 4000))
        return drawn[True] / 4000

    assert share(1) == pytest.approx(0.9, abs=0.02)
    assert share(2) == pytest.approx(0.75, abs=0.03)
    assert share(100) == pytest.approx(0.5, abs=0.03)


def test_batches_keep_their_limits() -> None:
    padded = list(Batches(numbers(200, shuffle=True), 7, max_cost=40, cost=data.length, padded=True))
    costs = [[data.length(item) for item in batch] for batch in padded]
    assert all(len(batch) <= 7 and len(batch) * max(batch) <= 40 for batch in costs)
    assert sorted(chain(*padded)) == list(range(200))
    assert [len(batch) for batch in Batches(numbers(10), 4)] == [4, 4, 2]
    assert [len(batch) for batch in Batches(numbers(10), 4, drop_last=True)] == [4, 4]
    assert list(Batches(numbers(4), max_cost=1, cost=data.length)) == [[0], [1], [2], [3]]


def test_buckets_make_batches_of_like_length() -> None:
    graph = Buckets(numbers(2000, shuffle=True), data.length, [3, 6, 8], max_cost=64, buffer_size=300, seed=2)
    batches = list(graph)
    assert sorted(chain(*batches)) == list(range(2000))
    for batch in batches:
        lengths = [data.length(item) for item in batch]
        assert len({sum(length > bound for bound in (3, 6, 8)) for length in lengths}) == 1
        assert max(lengths) * len(batch) <= 64
    full = [batch for batch in batches if len(batch) * max(map(data.length, batch)) > 54]
    assert len(full) > 0.9 * len(batches)


def test_blank_lines_have_a_place_and_no_item(tmp_path: Path) -> None:
    lines = data.write_text(tmp_path / "a.jsonl", "0\n\n2\n \n4\n5\n")
    leaf = IndexedManifest(lines)
    assert (len(leaf), list(leaf), leaf.read_span(1, 5)) == (6, [0, 2, 4, 5], [2, 4])
    assert sorted(IndexedManifest(lines, shuffle=True)) == [0, 2, 4, 5]
    assert [token for token, _ in leaf.pairs()] == []
    leaf.begin(0)
    assert [token for token, _ in leaf.pairs()] == [0, 2, 4, 5]


def test_tokens_can_be_attached_to_items(tmp_path: Path) -> None:
    lines = data.write_lines(tmp_path / "a.jsonl", 10)
    graph = Mux(IndexedManifest(lines), IndexedManifest(data.write_lines(tmp_path / "b.jsonl", 10, 100)))
    for item in graph.with_origins():
        assert graph[get_graph_origin(item)] == item
        assert "_graph_origin" not in json.dumps(item)
    assert get_graph_origin(graph[(0, 3)]) is None

    class Plain:
        pass

    assert get_graph_origin(attach_graph_origin(Plain(), (1, 2))) == (1, 2)


def test_a_graph_of_fixed_order_is_a_sequence() -> None:
    graph = GlobalShuffle(numbers(30), numbers(12, 100))
    places = GraphSequence(graph)
    assert len(places) == 42
    assert [places[place] for place in range(42)] == list(GlobalShuffle(numbers(30), numbers(12, 100)))
    assert places.__getitems__([41, 0]) == [places[41], places[0]]
    with pytest.raises(IndexError):
        places[42]


@pytest.mark.slow
def test_a_state_written_as_json_is_gone_on_with_by_a_fresh_interpreter(tmp_path: Path) -> None:
    lines = data.write_lines(tmp_path / "a.jsonl", 60)
    program = (
        "import sys, json, itertools\n"
        "from ledgerbeam.iterators import *\n"
        "from tests.iterators.data import record_length\n"
        "path, state, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])\n"
        "leaf = IndexedManifest(path, shuffle=True)\n"
        "graph = Buckets(Shuffle(Repeat(leaf, 2), 9), record_length, [4, 7], max_cost=20, buffer_size=15)\n"
        "if state != 'none': graph.load_state_dict(json.load(open(state)))\n"
        "for batch in itertools.islice(graph, steps or None): print([record['n'] for record in batch])\n"
        "json.dump(graph.state_dict(), open(path + '.state', 'w'))\n"
    )

    def run(state: str, steps: int) -> list[str]:
        command = [sys.executable, "-c", program, lines, state, str(steps)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()

    whole = run("none", 0)
    assert len(whole) > 20
    assert run("none", 7) + run(f"{lines}.state", 9) + run(f"{lines}.state", 0) == whole


def test_a_chain_that_shuffles_keeps_its_order_within_another() -> None:
    def shuffled() -> IteratorNode:
        return Chain(*(numbers(2, 10 * n) for n in range(12)), shuffle=True, seed=3)

    alone = list(shuffled())
    assert alone != sorted(alone)
    assert list(Chain(shuffled(), numbers(3, 500))) == [*alone, *numbers(3, 500)]


@pytest.mark.parametrize("name", ["s.tar", "s.tar.gz", "pipe"])
def test_a_tar_is_streamed_plain_and_compressed_and_from_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    url = data.write_samples(tmp_path / "s.tar", 40)
    samples = list(IndexedTar(url))
    (tmp_path / "s.tar.gz").write_bytes(gzip.compress(Path(url).read_bytes()))
    Path(f"{url}.idx").unlink()
    monkeypatch.setenv("LEDGERBEAM_ALLOW_PIPES", "1")
    source = f"pipe:zcat {url}.gz" if name == "pipe" else f"{tmp_path}/{name}"
    assert list(Tar(source)) == samples
    assert [len(sample) for sample in Tar(source, group="key")] == [2] * 40
    graph = Tar(source)
    assert graph.is_checkpointable == (name != "pipe")


def test_a_node_of_lhotse_finds_its_helpers() -> None:
    leaf = numbers(3)
    assert supports_graph_restore(leaf)
    assert not supports_graph_restore(Jsonl("a.jsonl"))
    assert normalize_graph_token([1, [2, "a"]]) == (1, (2, "a"))
    item = {"id": 1}
    assert maybe_attach_graph_origin(item, None) is item
    assert get_graph_origin(maybe_attach_graph_origin(item, (1, 2))) == (1, 2)


S3_FILES = 4
S3_RECORDS = 6_000


@pytest.fixture(scope="module")
def urls(s3: S3Server) -> list[str]:
    bucket, found = s3.bucket(), []
    for number in range(S3_FILES):
        data, offsets = encode_jsonl([{"n": n, "text": "x" * 80} for n in range(S3_RECORDS)])
        found.append(f"s3://{bucket}/lines-{number}.jsonl")
        publish_bytes(found[-1], data, s3.options)
        write_index(f"{found[-1]}.idx", offsets, s3.options)
    return found


def shuffled(urls: list[str], s3: S3Server) -> IteratorNode:
    return Shuffle(Repeat(Chain(*(IndexedManifest(url, options=s3.options) for url in urls)), 2), 10_000)


@pytest.mark.s3
def test_a_buffer_of_10_000_is_read_again_with_few_requests(
    urls: list[str], s3: S3Server, s3_requests: S3Requests
) -> None:
    graph = shuffled(urls, s3)
    expected = list(islice(graph, 2_000))
    state = json.loads(json.dumps(graph.state_dict()))
    assert len(state["state"]["buffer"]) == 10_000
    graph.load_state_dict(state)
    expected = list(islice(graph, 500))
    other = shuffled(urls, s3)
    s3_requests.take()
    other.load_state_dict(state)
    assert len(s3_requests.take()) <= S3_FILES * 2  # who the data is
    found = list(islice(other, 500))
    requests = s3_requests.take()
    assert found == expected
    assert requests.count("get_object") <= 20, requests


@pytest.mark.s3
@pytest.mark.parametrize(("shuffle", "most"), [(False, 12), (True, 40)])
def test_a_pass_reads_blocks_or_neighbours_together(
    urls: list[str], s3: S3Server, s3_requests: S3Requests, shuffle: bool, most: int
) -> None:
    leaf = IndexedManifest(urls[0], options=s3.options, shuffle=shuffle)
    s3_requests.take()
    assert len(list(leaf)) == S3_RECORDS
    assert s3_requests.take().count("get_object") <= most
