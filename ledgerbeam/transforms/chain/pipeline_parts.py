"""The chain of a pipeline and the rest after it, as two pipelines in Beam's protobuf form."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from apache_beam.portability.api import beam_runner_api_pb2

Proto = beam_runner_api_pb2.Pipeline


def chain_alone(proto: Proto, labels: Sequence[str]) -> Proto:
    """Return a pipeline with the chain only.

    Args:
        proto: The whole pipeline.
        labels: Labels of the primitive transforms of the chain, in order.
    """
    names = _names(proto)
    return _only(proto, {names[label] for label in labels})


def rest_alone(proto: Proto, labels: Sequence[str]) -> Proto:
    """Return a pipeline with the transforms after the chain only.

    It starts with `CommitTasks`, which emits the tasks that are already committed.

    Args:
        proto: The whole pipeline.
        labels: Labels of the primitive transforms of the chain, in order. The first one is the impulse.
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
    """Return the IDs of the primitive transforms by label."""
    transforms = proto.components.transforms
    return {transforms[name].unique_name: name for name in _primitive(proto)}


def _primitive(proto: Proto) -> set[str]:
    return {name for name, transform in proto.components.transforms.items() if _does_something(transform)}


def _does_something(transform: beam_runner_api_pb2.PTransform) -> bool:
    """Return whether a transform is primitive and does more than pass on its input."""
    taken = set(transform.inputs.values())
    return not transform.subtransforms and not (transform.outputs and taken.issuperset(transform.outputs.values()))


def _only(proto: Proto, kept: Collection[str]) -> Proto:
    """Return a pipeline with the given primitive transforms and the composites that contain them."""
    result = Proto()
    result.CopyFrom(proto)
    transforms, collections = result.components.transforms, result.components.pcollections

    def keep(name: str) -> bool:
        transform = transforms[name]
        if not transform.subtransforms:
            return name in kept  # a transform that only passes on its input is left out
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
    held = {value for name in kept for value in transforms[name].outputs.values()}  # every input is an output
    for name in set(collections) - held:
        del collections[name]
    for transform in transforms.values():
        for ends in (transform.inputs, transform.outputs):
            for tag in [tag for tag, name in ends.items() if name not in held]:
                del ends[tag]
    return result
