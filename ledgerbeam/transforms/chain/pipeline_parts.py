"""The parts of a pipeline that a ledger protects: the chain, and what comes behind it, each in Beam's own form."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from apache_beam.portability.api import beam_runner_api_pb2

Proto = beam_runner_api_pb2.Pipeline


def chain_alone(proto: Proto, labels: Sequence[str]) -> Proto:
    """Return the chain, alone.

    Args:
        proto: The whole pipeline, in Beam's own form.
        labels: Of the primitive transforms of the chain, in order.
    """
    names = _names(proto)
    return _only(proto, {names[label] for label in labels})


def rest_alone(proto: Proto, labels: Sequence[str]) -> Proto:
    """Return what comes behind the chain, alone.

    `CommitTasks` begins it in the place of the chain: it is given what was committed.

    Args:
        proto: As for `chain_alone`.
        labels: Likewise; the first begins the pipeline.
    """
    names = _names(proto)
    first, *between, commit = (names[label] for label in labels)
    rest = Proto()
    rest.CopyFrom(proto)
    (beginning,) = rest.components.transforms[first].outputs.values()
    inputs = rest.components.transforms[commit].inputs
    for tag in list(inputs):
        inputs[tag] = beginning
    return _only(rest, _primitive(rest) - set(between))


def _names(proto: Proto) -> dict[str, str]:
    """Return the ids of the primitive transforms by their labels."""
    transforms = proto.components.transforms
    return {transforms[name].unique_name: name for name in _primitive(proto)}


def _primitive(proto: Proto) -> set[str]:
    return {name for name, transform in proto.components.transforms.items() if _does_something(transform)}


def _does_something(transform: beam_runner_api_pb2.PTransform) -> bool:
    """Return whether a transform is primitive, and not one that only gives on what it takes."""
    taken = set(transform.inputs.values())
    return not transform.subtransforms and not (transform.outputs and taken.issuperset(transform.outputs.values()))


def _only(proto: Proto, kept: Collection[str]) -> Proto:
    """Return a pipeline with only some of its primitive transforms, and the transforms that these are parts of."""
    result = Proto()
    result.CopyFrom(proto)
    transforms, collections = result.components.transforms, result.components.pcollections

    def keep(name: str) -> bool:
        transform = transforms[name]
        if not transform.subtransforms:
            return name in kept  # one that only gives on is left out
        parts = [part for part in transform.subtransforms if keep(part)]
        del transform.subtransforms[:]
        transform.subtransforms.extend(parts)
        return bool(parts)

    (root,) = proto.root_transform_ids
    keep(root)
    reached = {root}
    waiting = [root]
    while waiting:
        parts = transforms[waiting.pop()].subtransforms
        reached.update(parts)
        waiting += parts
    for name in set(transforms) - reached:
        del transforms[name]
    held = {value for name in kept for value in transforms[name].outputs.values()}  # what is taken is given, too
    for name in set(collections) - held:
        del collections[name]
    for transform in transforms.values():
        for ends in (transform.inputs, transform.outputs):
            for tag in [tag for tag, name in ends.items() if name not in held]:
                del ends[tag]
    return result
