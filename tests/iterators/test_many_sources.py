"""States of graphs with thousands of sources: small, and still refused for any other source, by its name."""

from __future__ import annotations

import json
import os
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.errors import CheckpointMismatchError
from ledgerbeam.iterators import Chain, IndexedManifest, IteratorNode, Mux, merge_states
from tests.iterators import data

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
    with pytest.raises(CheckpointMismatchError, match=r"sources\[4321\]: was another, is .*/0000\.jsonl"):
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
    said = rf"sources\[{number}\]: was another, is {paths[number]} \(\d+ bytes of version 1\)\. Restore"
    with pytest.raises(CheckpointMismatchError, match=said):
        chain(paths).load_state_dict(state)
    chain(paths).load_state_dict(state, trust_data=True)


def test_a_source_of_another_size_is_named_though_places_are_trusted(paths: list[str]) -> None:
    state = saved(chain(paths))
    data.write_lines(Path(paths[7]), 4, first=21)
    with pytest.raises(CheckpointMismatchError, match=r"sources\[7\]: was another, is "):
        chain(paths).load_state_dict(state, trust_data=True)


def test_two_that_changed_places_are_among_those_named(paths: list[str]) -> None:
    state = saved(chain(paths))
    swapped = [*paths]
    swapped[1], swapped[20] = swapped[20], swapped[1]
    with pytest.raises(CheckpointMismatchError, match=r"sources: at least 2 were others among \[1\] .*, \[20\] "):
        chain(swapped).load_state_dict(state)


def test_all_others_are_refused(paths: list[str], tmp_path: Path) -> None:
    state = saved(chain(paths))
    (tmp_path / "other").mkdir()
    others = [data.write_lines(tmp_path / "other" / Path(path).name, 3) for path in paths]
    with pytest.raises(CheckpointMismatchError, match=r"sources: at least 6 were others among \[0\] .* and 25 more"):
        chain(others).load_state_dict(state)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (lambda paths: paths[:-1], "sources: were 30, are 29"),
        (lambda paths: [*paths, paths[0]], "sources: were 30, are 31"),
        (lambda paths: paths[:3], "sources: were 30, are 3"),
        (lambda paths: paths[::-1], "sources: at least 6 were others"),
    ],
    ids=["one less", "one more", "few", "another order"],
)
def test_other_lists_are_refused(paths: list[str], wanted: Any, said: str) -> None:
    state = saved(chain(paths))
    with pytest.raises(CheckpointMismatchError, match=said):
        chain(wanted(paths)).load_state_dict(state)


def test_few_are_refused_where_there_are_many(paths: list[str]) -> None:
    with pytest.raises(CheckpointMismatchError, match="sources: were 3, are 30"):
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
    with pytest.raises(CheckpointMismatchError, match="sources: at least 6 were others"):
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
