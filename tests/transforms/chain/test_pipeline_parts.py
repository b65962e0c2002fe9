"""A pipeline is cut at the end of its chain into two that run alone."""

from __future__ import annotations

from typing import Any

import apache_beam as beam
import pytest
from apache_beam.portability.api import beam_runner_api_pb2

from ledgerbeam.transforms.chain.shape import chain_alone, rest_alone

Proto = beam_runner_api_pb2.Pipeline
Described = dict[str, tuple[list[str], list[str], list[str]]]

LABELS = ("Chain/Start/Begin", "Chain/Start/Between", "Chain/Commit")


class Start(beam.PTransform[Any, Any]):
    def expand(self, begin: Any) -> Any:
        return begin | "Begin" >> beam.Impulse() | "Between" >> beam.Map(str)


class Chain(beam.PTransform[Any, Any]):
    def expand(self, begin: Any) -> Any:
        return begin | "Start" >> Start() | "Commit" >> beam.Map(len)


class GivesOn(beam.PTransform[Any, Any]):
    """As Beam's own that act on some runners alone."""

    def expand(self, taken: Any) -> Any:
        return taken


class Rest(beam.PTransform[Any, Any]):
    def expand(self, committed: Any) -> Any:
        return committed | "GivesOn" >> GivesOn() | "Show" >> beam.Map(print)


@pytest.fixture(scope="module")
def whole() -> Proto:
    pipeline = beam.Pipeline()
    committed = pipeline | "Chain" >> Chain()
    committed | "Rest" >> Rest()
    committed | "End" >> beam.ParDo(print).with_outputs("odd", main="even")
    return pipeline.to_runner_api()


def described(proto: Proto) -> Described:
    """Return of each transform by its label what gives its inputs, its outputs, and its parts."""
    transforms = proto.components.transforms
    held = {name: one.unique_name for name, one in proto.components.pcollections.items()}

    def names(ends: Any) -> list[str]:
        return sorted(held[name] for name in ends.values())

    return {
        "" if name in proto.root_transform_ids else one.unique_name: (
            names(one.inputs),
            names(one.outputs),
            [transforms[part].unique_name for part in one.subtransforms],
        )
        for name, one in transforms.items()
    }


def collections(proto: Proto) -> set[str]:
    return {one.unique_name for one in proto.components.pcollections.values()}


def test_the_chain_alone_is_all_of_it_and_nothing_behind_it(whole: Proto) -> None:
    every = described(whole)
    found = chain_alone(whole, LABELS)
    assert described(found) == {
        "": ([], [], ["Chain"]),
        **{label: every[label] for label in every if label.startswith("Chain")},
    }
    assert collections(found) == {name for label in LABELS for name in every[label][1]}


def test_what_comes_behind_is_begun_by_the_commits(whole: Proto) -> None:
    every = described(whole)
    (begun,), (committed,) = every["Chain/Start/Begin"][1], every["Chain/Commit"][1]
    found = rest_alone(whole, LABELS)
    assert described(found) == {
        "": ([], [], ["Chain", "Rest", "End"]),
        "Chain": ([], [committed], ["Chain/Start", "Chain/Commit"]),
        "Chain/Start": ([], [], ["Chain/Start/Begin"]),
        "Chain/Start/Begin": ([], [begun], []),
        "Chain/Commit": ([begun], [committed], []),
        "Rest": ([committed], every["Rest"][1], ["Rest/Show"]),
        "Rest/Show": every["Rest/Show"],
        **{label: every[label] for label in every if label.startswith("End")},
    }
    assert collections(found) == {begun, committed, *every["Rest/Show"][1], *every["End"][1]}


def test_what_gives_nothing_is_kept(whole: Proto) -> None:
    changed = Proto()
    changed.CopyFrom(whole)
    (show,) = (one for one in changed.components.transforms.values() if one.unique_name == "Rest/Show")
    show.outputs.clear()
    assert described(rest_alone(changed, LABELS))["Rest/Show"] == (described(whole)["Rest/Show"][0], [], [])


def test_a_pipeline_is_not_changed_by_what_is_cut_from_it(whole: Proto) -> None:
    before = whole.SerializeToString(deterministic=True)
    chain_alone(whole, LABELS)
    rest_alone(whole, LABELS)
    assert whole.SerializeToString(deterministic=True) == before
