"""State that cannot be saved or restored exactly is refused, at saving and at restoring."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.errors import (
    ChangedSourceError,
    CheckpointError,
    CheckpointMismatchError,
    FunctionError,
    IndexNotFoundError,
    NotIndexableError,
    RecordError,
    UnsupportedShapeError,
    UsageError,
)
from ledgerbeam.iterators import (
    Batches,
    Buckets,
    Chain,
    Filter,
    Flatten,
    GlobalShuffle,
    IndexedManifest,
    IndexedShar,
    IndexedTar,
    IteratorNode,
    Jsonl,
    Manifest,
    Map,
    Mix,
    Mux,
    PackedManifest,
    Records,
    Repeat,
    Shar,
    Shuffle,
    Slice,
    Transform,
    merge_states,
)
from ledgerbeam.iterators.torch_data import GraphSequence
from tests.cases import each
from tests.iterators import data
from tests.iterators.data import after, numbers


class Forgetful(Transform):
    """A node that claims to rebuild items and gives them no tokens."""

    def pairs(self) -> Iterator[tuple[Any, Any]]:
        for _, item in self.source.pairs():
            yield None, item


BUFFERS: dict[str, Callable[[IteratorNode], IteratorNode]] = {
    "Shuffle": lambda source: Shuffle(source, 5),
    "Batches": lambda source: Batches(source, max_cost=11, cost=data.length),
    "Buckets": lambda source: Buckets(source, data.length, [5], max_records=2, buffer_size=9),
}


@pytest.mark.parametrize("over", BUFFERS)
def test_a_buffer_of_items_without_tokens_cannot_be_saved(over: str) -> None:
    graph = after(BUFFERS[over](Forgetful(numbers(40))), 2)
    with pytest.raises(CheckpointError, match="has no token"):
        graph.state_dict()


@pytest.mark.parametrize("over", [*BUFFERS, "Flatten"])
def test_a_buffer_over_a_stream_that_cannot_be_saved_is_refused(tmp_path: Path, over: str) -> None:
    lines = data.write_text(tmp_path / "a.jsonl", "1\n2\n3\n4\n5\n")
    makes = {**BUFFERS, "Flatten": lambda source: Flatten(Map(source, data.wrap))}
    graph = makes[over](Jsonl(lines))
    assert len(list(graph)) >= 2
    with pytest.raises(CheckpointError, match=r"Jsonl.*IndexedManifest"):
        graph.state_dict()
    with pytest.raises(CheckpointError, match=r"Jsonl.*IndexedManifest"):
        graph.load_state_dict({})


@pytest.mark.parametrize("over", [*BUFFERS, "Flatten"])
def test_a_buffer_over_a_stream_that_has_changed_is_refused(tmp_path: Path, over: str) -> None:
    lines = data.write_text(tmp_path / "a.jsonl", "1\n2\n3\n4\n5\n")
    makes = {**BUFFERS, "Flatten": lambda source: Flatten(Map(source, data.wrap))}
    state = after(makes[over](Manifest(lines)), 1).state_dict()
    data.write_text(tmp_path / "a.jsonl", "1\n2\n3\n4\n5\n6\n")
    with pytest.raises(CheckpointMismatchError, match=r"data\.size: was 10, is 12"):
        makes[over](Manifest(lines)).load_state_dict(state)


def test_a_stream_that_is_mixed_in_must_have_items_and_its_mixture_cannot_be_rebuilt(tmp_path: Path) -> None:
    graph = Mix(numbers(3), Manifest(data.write_text(tmp_path / "a.jsonl", "1\n")), data.mix)
    assert [other for _, other, _ in graph] == [1, 1, 1]
    assert not graph.has_constant_time_access
    with pytest.raises(CheckpointError, match="only iterate over them"):
        graph[0]
    with pytest.raises(UnsupportedShapeError, match="found none"):
        list(Mix(numbers(3), Manifest(data.write_text(tmp_path / "b.jsonl", "")), data.mix))


def test_a_stream_cannot_rebuild_items(tmp_path: Path) -> None:
    lines = data.write_text(tmp_path / "a.jsonl", "1\n2\n")
    for node in (Jsonl(lines), Manifest(lines)):
        assert not node.has_constant_time_access
        with pytest.raises(CheckpointError, match="only iterate over them"):
            node[0]
    with pytest.raises(CheckpointError, match="Jsonl"):
        Chain(numbers(3), Jsonl(lines)).state_dict()


def test_a_compressed_source_without_seek_points_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotIndexableError, match="bunzip2"):
        IndexedManifest(str(tmp_path / "a.jsonl.bz2"))
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"1\n"))
    with pytest.raises(IndexNotFoundError, match="ledgerbeam index"):
        IndexedManifest(str(tmp_path / "a.jsonl.gz"))


def test_other_data_is_refused_with_the_difference(tmp_path: Path) -> None:
    lines = data.write_lines(tmp_path / "a.jsonl", 20)
    state = after(Shuffle(IndexedManifest(lines), 5), 3).state_dict()
    data.write_lines(tmp_path / "a.jsonl", 20)
    later = os.stat(lines).st_mtime_ns + 1_000_000
    os.utime(lines, ns=(later, later))
    os.utime(f"{lines}.idx", ns=(later, later))
    graph = Shuffle(IndexedManifest(lines), 5)
    with pytest.raises(CheckpointMismatchError, match=rf"sources\[0\].data.version: was .*, is '{later}'"):
        graph.load_state_dict(state)
    graph.load_state_dict(state, trust_data=True)
    assert len(list(graph)) == 17
    data.write_lines(tmp_path / "a.jsonl", 21)
    with pytest.raises(CheckpointMismatchError, match=r"data\.size: was"):
        Shuffle(IndexedManifest(lines), 5).load_state_dict(state, trust_data=True)


LATE: dict[str, Callable[[Path], IteratorNode]] = {
    "IndexedManifest": lambda folder: IndexedManifest(f"{folder}/a.jsonl", shuffle=True),
    "Manifest": lambda folder: Manifest(f"{folder}/a.jsonl"),
    "GlobalShuffle": lambda folder: GlobalShuffle(IndexedManifest(f"{folder}/a.jsonl"), numbers(3)),
    "PackedManifest": lambda folder: PackedManifest(f"{folder}/a.idxpack"),
    "Shar": lambda folder: Shar(f"{folder}/shar"),
}


@pytest.mark.parametrize("over", LATE)
def test_a_state_names_the_data_that_was_read_not_what_took_its_place(tmp_path: Path, over: str) -> None:
    def write(second: int) -> None:
        shutil.rmtree(tmp_path / "shar", ignore_errors=True)
        folder = data.write_shar(tmp_path / "shar")
        source = data.write_lines(tmp_path / "a.jsonl", 20)
        data.write_pack(tmp_path / "a.idxpack", [source])
        for path in (*tmp_path.glob("a.*"), *Path(folder).iterdir()):
            os.utime(path, (second, second))

    write(1_000)
    graph = after(LATE[over](tmp_path), 5)
    write(2_000)
    with pytest.raises(CheckpointMismatchError, match="version: was '1000000000000', is '2000000000000'"):
        LATE[over](tmp_path).load_state_dict(graph.state_dict())


WRITTEN: dict[Callable[[str], IteratorNode], Callable[[Path], str]] = {
    IndexedManifest: lambda path: data.write_lines(path, 5),
    Manifest: lambda path: data.write_lines(path, 5),
    IndexedTar: lambda path: data.write_samples(path, 5),
    Shar: data.write_shar,
    IndexedShar: data.write_shar,
}


@pytest.mark.parametrize("node", WRITTEN)
def test_a_source_that_is_replaced_before_its_turn_is_not_read(
    tmp_path: Path, node: Callable[[str], IteratorNode]
) -> None:
    """The states of the pass name it as it was when the pass began."""
    first, second = (WRITTEN[node](tmp_path / place) for place in "ab")
    chain = pickle.loads(pickle.dumps(Chain(node(first), node(second))))  # as in a process that loads: nothing is open
    graph = iter(chain)
    next(graph)
    chain.state_dict()
    for path in (tmp_path / "b", *(tmp_path / "b").glob("*")):
        if path.is_file():
            replacement = path.with_name("replacement")
            replacement.write_bytes(path.read_bytes())
            os.utime(replacement, (1, 1))
            replacement.rename(path)
    with pytest.raises(ChangedSourceError, match=f"{second}.*: changed since it was listed"):
        list(graph)


@each(
    ("other", "difference"),
    [
        (lambda: Shuffle(numbers(40), 5), "node: was 'Batches', is 'Shuffle'"),
        (lambda: Batches(Shuffle(numbers(40), 5), 5), "max_records: was 4, is 5"),
        (lambda: Batches(Shuffle(numbers(40), 5, seed=1), 4), r"sources\[0\].seed: was 0, is 1"),
        (lambda: Batches(Shuffle(numbers(41), 5), 4), r"sources\[0\].sources\[0\].data.size: was 40, is 41"),
        (lambda: Batches(Shuffle(Map(numbers(40), data.double), 5), 4), "node: was 'Records', is 'Map'"),
    ],
)
def test_the_state_of_another_graph_is_refused_with_the_difference(
    other: Callable[[], IteratorNode], difference: str
) -> None:
    state = after(Batches(Shuffle(numbers(40), 5), 4), 2).state_dict()
    with pytest.raises(CheckpointMismatchError, match=difference):
        other().load_state_dict(state)


def test_another_function_is_refused() -> None:
    state = Map(numbers(9), data.double).state_dict()
    with pytest.raises(CheckpointMismatchError, match=r"function: was 'tests.*:double', is 'tests.*:triple'"):
        Map(numbers(9), data.triple).load_state_dict(state)


def test_another_shard_is_refused() -> None:
    graph = numbers(20)
    graph.partition(1, 2)
    state = after(graph, 3).state_dict()
    with pytest.raises(CheckpointMismatchError, match=r"shard 1 of 2.*partition\(1, 2\)"):
        numbers(20).load_state_dict(state)


def test_a_state_of_another_format_is_refused() -> None:
    with pytest.raises(CheckpointMismatchError, match="format 1, found 2"):
        numbers(5).load_state_dict({**numbers(5).state_dict(), "format": 2})


def test_states_that_are_not_of_all_shards_of_one_moment_are_not_merged() -> None:
    states = []
    for shard in range(3):
        graph = numbers(30)
        graph.partition(shard, 3)
        states.append(after(graph, 2).state_dict())
    graph = numbers(30)
    for wrong in ([], states[:2], [states[0], states[0], states[2]]):
        with pytest.raises(CheckpointError, match="expected"):
            merge_states(graph, wrong)
    with pytest.raises(CheckpointError, match=r"epochs \[0, 4\]"):
        merge_states(graph, [*states[:2], {**states[2], "epoch": 4}])
    with pytest.raises(CheckpointMismatchError, match="was 30, is 31"):
        merge_states(numbers(31), states)


def test_a_predicate_that_changes_its_mind_is_an_error() -> None:
    allowed = {1, 2, 3}
    graph = Filter(numbers(9), allowed.__contains__)
    assert graph[2] == 2
    allowed.remove(2)
    with pytest.raises(FunctionError, match="token 2"):
        graph[2]


@each(
    ("graph", "token"),
    [
        (Records([1], "one"), "x"),
        (Mux(numbers(3), numbers(3)), 4),
        (Mux(numbers(3), numbers(3)), ("a", 1)),
        (Chain(numbers(3)), [1, 2, 3]),
        (Repeat(numbers(3)), ("x", 1)),
        (Slice(numbers(3), 0, 2), ("sauce", 1)),
        (Flatten(Map(numbers(3), data.spread)), (1, "x")),
        (GlobalShuffle(numbers(3)), (0, 1)),
        (Batches(numbers(3), 2), 7),
    ],
)
def test_a_token_of_another_shape_is_refused(graph: IteratorNode, token: Any) -> None:
    with pytest.raises(UsageError, match="token"):
        graph[token]


@each(
    ("graph", "token"),
    [
        (Records([1], "one"), 1),
        (Mux(numbers(3), numbers(3)), (2, 0)),
        (Chain(numbers(3)), (0, 3)),
        (Repeat(numbers(3), 2), (2, 0)),
        (Flatten(Map(numbers(3), data.spread)), (1, 1)),
        (GlobalShuffle(numbers(3)), 3),
    ],
)
def test_a_token_of_no_item_is_refused(graph: IteratorNode, token: Any) -> None:
    with pytest.raises(IndexError):
        graph[token]


def test_nodes_that_cannot_mean_anything_are_refused(tmp_path: Path) -> None:
    stream = Jsonl(data.write_text(tmp_path / "a.jsonl", "1\n"))
    refused: list[tuple[Callable[[], Any], type[Exception]]] = [
        (lambda: Records([1]), UsageError),
        (lambda: Map([1], data.double), UsageError),
        (Chain, UsageError),
        (lambda: Mux(numbers(2), weights=[1, 2]), UsageError),
        (lambda: Mux(numbers(2), weights=[0]), UsageError),
        (lambda: Slice(numbers(3), 3, 3), UsageError),
        (lambda: Shuffle(numbers(3), 0), UsageError),
        (lambda: Repeat(numbers(3), 0), UsageError),
        (lambda: Batches(numbers(3)), UsageError),
        (lambda: Batches(numbers(3), max_cost=5), UsageError),
        (lambda: Buckets(numbers(3), data.length, [5, 3], max_records=2), UsageError),
        (lambda: numbers(3).partition(2, 2), UsageError),
        (lambda: numbers(3).read_span(1, 4), UsageError),
        (lambda: Mix(numbers(3), numbers(3), data.mix, probability=2), UsageError),
        (lambda: Mix(numbers(3), numbers(0), data.mix), UnsupportedShapeError),
        (lambda: GlobalShuffle(stream), UnsupportedShapeError),
        (lambda: GlobalShuffle(Shuffle(numbers(4))), UnsupportedShapeError),
        (lambda: Mux(numbers(3), stop_early=True).read_span(0, 1), UnsupportedShapeError),
        (lambda: GraphSequence(Filter(numbers(3), data.is_even)), UnsupportedShapeError),
    ]
    for make, error in refused:
        with pytest.raises(error):
            make()


def test_a_node_that_occurs_twice_in_a_graph_is_refused() -> None:
    leaf = numbers(5)
    graph = Mux(leaf, Map(leaf, data.double))
    with pytest.raises(UsageError, match="occurs twice"):
        list(graph)
    with pytest.raises(UsageError, match="occurs twice"):
        graph.state_dict()


def test_an_iterator_of_an_older_pass_is_refused() -> None:
    graph = numbers(9)
    older = iter(graph)
    next(older)
    newer = iter(graph)
    next(newer)
    with pytest.raises(UsageError, match="another pass"):
        next(older)


def test_a_line_that_is_no_json_is_an_error_that_names_it(tmp_path: Path) -> None:
    lines = data.write_text(tmp_path / "a.jsonl", "1\n\n{x\n4\n")
    for shuffle in (False, True):
        with pytest.raises(RecordError, match="record 2"):
            list(IndexedManifest(lines, shuffle=shuffle))


COUNT = 30


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    return [data.write_lines(tmp_path / f"s{number:02d}.jsonl", 3, first=3 * number) for number in range(COUNT)]


def chain(paths: list[str]) -> IteratorNode:
    return Chain(*map(IndexedManifest, paths))


def saved(graph: IteratorNode, steps: int = 40) -> Any:
    for _ in islice(graph, steps):
        pass
    return json.loads(json.dumps(graph.state_dict()))


@pytest.mark.slow
def test_a_state_of_five_thousand_sources_is_small_and_goes_on_where_it_was(tmp_path: Path) -> None:
    path = data.write_lines(tmp_path / "a.jsonl", 2)
    links = [str(tmp_path / f"{number:04d}.jsonl") for number in range(5_000)]
    for link in links:
        os.link(path, link)
        os.link(f"{path}.idx", f"{link}.idx")
    state = saved(chain(links), 7_001)
    assert len(json.dumps(state)) < 4_000
    graph = chain(links)
    graph.load_state_dict(state)
    assert len(list(graph)) == 10_000 - 7_001
    with pytest.raises(CheckpointMismatchError, match=r"sources\[4321\]: was another source, is .*/0000\.jsonl"):
        chain([*links[:4321], links[0], *links[4322:]]).load_state_dict(state)


def test_a_state_of_few_sources_describes_each(paths: list[str]) -> None:
    state = saved(chain(paths[:16]), 5)
    assert [one["data"]["url"] for one in state["graph"]["sources"]] == paths[:16]
    with pytest.raises(CheckpointMismatchError, match=rf"sources\[3\].data.url: was '{paths[3]}', is '{paths[20]}'"):
        chain([*paths[:3], paths[20], *paths[4:16]]).load_state_dict(state)


@pytest.mark.parametrize("number", [0, 5, 17, COUNT - 1])
def test_a_source_that_changed_is_named(paths: list[str], number: int) -> None:
    state = saved(chain(paths))
    os.utime(paths[number], ns=(1, 1))
    said = rf"sources\[{number}\]: was another source, is {paths[number]} \(\d+ bytes of version 1\)\. Restore"
    with pytest.raises(CheckpointMismatchError, match=said):
        chain(paths).load_state_dict(state)
    chain(paths).load_state_dict(state, trust_data=True)


def test_a_source_of_another_size_is_named_though_places_are_trusted(paths: list[str]) -> None:
    state = saved(chain(paths))
    data.write_lines(Path(paths[7]), 4, first=21)
    with pytest.raises(CheckpointMismatchError, match=r"sources\[7\]: was another source, is "):
        chain(paths).load_state_dict(state, trust_data=True)


def test_all_others_are_refused(paths: list[str], tmp_path: Path) -> None:
    state = saved(chain(paths))
    (tmp_path / "other").mkdir()
    others = [data.write_lines(tmp_path / "other" / Path(path).name, 3) for path in paths]
    with pytest.raises(CheckpointMismatchError, match=r"at least 6 of these were others: \[0\] .* and 25 more"):
        chain(others).load_state_dict(state)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (lambda paths: paths[:-1], "sources: 30 in the checkpoint, 29 now"),
        (lambda paths: [*paths, paths[0]], "sources: 30 in the checkpoint, 31 now"),
        (lambda paths: paths[:3], "sources: 30 in the checkpoint, 3 now"),
        (lambda paths: paths[::-1], "sources: at least 6 of these were others"),
        (
            lambda paths: [paths[0], paths[20], *paths[2:20], paths[1], *paths[21:]],
            r"sources: at least 2 of these were others: \[1\] .*, \[20\] ",
        ),
    ],
    ids=["one less", "one more", "few", "another order", "two changed places"],
)
def test_other_lists_are_refused(paths: list[str], wanted: Any, said: str) -> None:
    state = saved(chain(paths))
    with pytest.raises(CheckpointMismatchError, match=said):
        chain(wanted(paths)).load_state_dict(state)


def test_few_are_refused_where_there_are_many(paths: list[str]) -> None:
    with pytest.raises(CheckpointMismatchError, match="sources: 3 in the checkpoint, 30 now"):
        chain(paths).load_state_dict(saved(chain(paths[:3]), 2))


def test_a_chain_below_another_node_is_looked_at_too(paths: list[str]) -> None:
    def graph(names: list[str]) -> IteratorNode:
        return Mux(chain(names), IndexedManifest(paths[0]))

    state = saved(graph(paths), 5)
    graph(paths).load_state_dict(state)
    with pytest.raises(CheckpointMismatchError, match=r"sources\[0\]\.sources\[29\]: was another"):
        graph([*paths[:-1], paths[0]]).load_state_dict(state)


def test_a_damaged_digest_is_refused(paths: list[str]) -> None:
    state = saved(chain(paths))
    state["graph"]["sources"]["sources"] = {"all": "x"}
    with pytest.raises(CheckpointMismatchError, match="sources: at least 6 of these were other"):
        chain(paths).load_state_dict(state)


def test_states_of_shards_are_merged(paths: list[str]) -> None:
    states = []
    for shard in range(2):
        graph = chain(paths)
        graph.partition(shard, 2)
        states.append(saved(graph, 10))
    whole = chain(paths)
    whole.load_state_dict(merge_states(chain(paths), states))
    assert len(list(whole)) == 90 - 20
    with pytest.raises(CheckpointMismatchError, match=r"sources\[2\]: was another"):
        merge_states(chain([*paths[:2], paths[9], *paths[3:]]), states)
