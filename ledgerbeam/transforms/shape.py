"""Required shape of a restartable pipeline: `find_chain` finds the chain in a pipeline or refuses the pipeline.

`ReadTasks` to `CommitTasks` must be one fused stage in which each element is a task that the ledger tracks. A barrier
would keep tasks from the ledger until all work is done. A branch would miss records after a crash, or see them twice.
Without a crash, neither fault is visible, so such a pipeline is refused before it starts. `chain_alone` and
`rest_alone` divide the protobuf form of an accepted pipeline.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast, get_args

import apache_beam as beam
from apache_beam.pipeline import AppliedPTransform, PipelineVisitor
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.pvalue import PCollection
from apache_beam.runners.common import DoFnSignature
from apache_beam.transforms.util import ReshufflePerKey
from apache_beam.typehints import typehints

from ledgerbeam.errors import UnsupportedShapeError
from ledgerbeam.transforms.chain.base import TASKS
from ledgerbeam.transforms.on_beam import (
    ChainDoFn,
    ChainTransform,
    CommitTasks,
    MatchSources,
    PlanTasks,
    ProcessBatch,
    ProcessTask,
    ReadTasks,
    SkipCompleted,
    WriteColumns,
    WriteTasks,
)

# The transforms of a chain, in order. Each occurs once.
_ORDER: tuple[type[ChainTransform], ...] = (MatchSources, SkipCompleted, PlanTasks, ReadTasks, WriteTasks, CommitTasks)
_WHY = {
    MatchSources: 'start the chain with it: pipeline | MatchSources("texts/*.jsonl")',
    SkipCompleted: "put it after MatchSources: without it a rerun would repeat completed sources",
    PlanTasks: "put it after SkipCompleted: it divides sources into tasks, which the ledger counts",
    ReadTasks: "put it after PlanTasks: it reads the records of the tasks",
    WriteTasks: "put it before CommitTasks: only published outputs may be recorded",
    CommitTasks: "end the chain with it: it records published outputs in the ledger",
}
_COMBINES = (beam.CombineGlobally, beam.CombinePerKey, beam.CombineValues)
_AFTER = (
    "put it after CommitTasks, where it sees the tasks of this run, or into a second job over the outputs that the "
    "ledger records"
)
_BARRIER = f"the next stage starts only when all work before it is done, so a crash would lose everything; {_AFTER}"
_STATE = f"state is a barrier on batch runners, and a crash would lose it; keep state within a task, or {_AFTER}"
_SIDE = (
    "the tasks would wait until the whole side input is computed; pass the values to the function with "
    "functools.partial, or read them from a file"
)
_COUNT = f"it would see only the tasks of this run; count with ledgerbeam.stats, or {_AFTER}"
Proto = beam_runner_api_pb2.Pipeline


@dataclass(frozen=True)
class FoundChain:
    """The chain that `find_chain` has found in a pipeline."""

    match: MatchSources
    plan: PlanTasks  # the transform that divides sources into tasks
    write: WriteTasks  # the transform that publishes
    steps: tuple[str, ...]  # labels of the user's transforms between reading and writing, in order
    # The user's functions between reading and writing (functions of `beam.Map` with arguments as `functools.partial`),
    # the encoder of shards if it is an object, and the user's classes derived from the transforms of the chain
    functions: tuple[Any, ...]
    labels: tuple[str, ...]  # labels of the primitive transforms of the chain, in order
    has_downstream: bool  # whether the pipeline has transforms after the chain


def find_chain(pipeline: beam.Pipeline) -> FoundChain:
    """Return the chain of a complete pipeline that has not run yet.

    Raises UnsupportedShapeError for a shape that the ledger cannot protect. Its message lists the faults and remedies.
    """
    applied = _Applied()
    pipeline.visit(applied)
    ends, refused = _ends(applied)
    _raise_all([*refused, *_not_one_stage(applied, ends)])
    path = list(_path(applied, ends))
    _raise_all(list(_misplaced(applied, path)))
    labels = tuple(node.full_label for node in path)
    match, plan, write = (cast(Any, ends[kind].transform) for kind in (MatchSources, PlanTasks, WriteTasks))
    between = [leaf for leaf in path if applied.unit(leaf) is not ends[WriteTasks]]
    derived = [type(ends[kind].transform) for kind in _ORDER]
    functions = (*_functions(between, write), *(kind for kind in derived if not _is_of_library(kind)))
    steps = dict.fromkeys(unit.full_label for unit in map(applied.unit, between) if _kind(unit) not in _ORDER)
    return FoundChain(match, plan, write, tuple(steps), functions, labels, len(applied.leaves) > len(path))


def chain_alone(proto: Proto, labels: Sequence[str]) -> Proto:
    """Return a pipeline with the chain only. `labels` names its primitive transforms in order."""
    names = _names(proto)
    return _only(proto, {names[label] for label in labels})


def rest_alone(proto: Proto, labels: Sequence[str]) -> Proto:
    """Return a pipeline with the transforms after the chain only. `labels` names the chain's transforms in order.

    The result starts with `CommitTasks`, which emits tasks that are already committed. The first label names the
    impulse, Beam's transform at the start of a pipeline.
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


def _raise_all(refused: Sequence[str]) -> None:
    reasons = list(dict.fromkeys(refused))
    if len(reasons) > 1:
        lines = "".join(f"\n  {number}. {line}" for number, line in enumerate(reasons, 1))
        raise UnsupportedShapeError(f"a ledger cannot protect this pipeline, for {len(reasons)} reasons:{lines}")
    if reasons:
        raise UnsupportedShapeError(reasons[0])


def _ends(applied: _Applied) -> tuple[dict[Any, AppliedPTransform], list[str]]:
    """Return the applied transforms of the chain by kind, and messages about missing and repeated transforms."""
    ends: dict[Any, AppliedPTransform] = {}
    refused = []
    for kind in _ORDER:
        found = applied.ours[kind]
        if not found:
            refused.append(f"the pipeline has no {kind.__name__}; {_WHY[kind]}")
        else:
            ends[kind] = found[0]
        if len(found) > 1:
            labels = " and ".join(repr(node.full_label) for node in found)
            refused.append(
                f"the pipeline has {len(found)} transforms {kind.__name__}, {labels}: expected one chain with one "
                "ledger; make a pipeline of each chain, with a ledger of its own"
            )
    return ends, refused


class _Applied(PipelineVisitor):
    """The primitive transforms of a pipeline, and their consumers."""

    def __init__(self) -> None:
        self.leaves: list[AppliedPTransform] = []
        self.takers: dict[Any, list[AppliedPTransform]] = defaultdict(list)
        self.ours: dict[type, list[AppliedPTransform]] = defaultdict(list)  # transforms of the chain, by kind
        self._above: set[int] = set()  # composites that contain transforms of the chain

    def enter_composite_transform(self, transform_node: AppliedPTransform) -> None:
        if isinstance(transform_node.transform, ChainTransform):
            self.ours[_kind(transform_node)].append(transform_node)
            self._above |= {id(node) for node in _upwards(transform_node.parent)}

    def visit_transform(self, transform_node: AppliedPTransform) -> None:
        self.leaves.append(transform_node)
        for taken in (*transform_node.inputs, *(side.pvalue for side in transform_node.side_inputs)):
            if isinstance(taken, PCollection):
                self.takers[taken].append(transform_node)

    def next(self, node: AppliedPTransform) -> list[AppliedPTransform]:
        """Return the consumers of a primitive transform."""
        return [taker for output in node.outputs.values() for taker in self.takers.get(output, ())]

    def unit(self, leaf: AppliedPTransform) -> AppliedPTransform:
        """Return the transform that the user applied and that contains a primitive transform.

        This is the transform of the chain around it, or else the largest composite around it that has no transform of
        the chain.
        """
        around = list(_upwards(leaf))
        ours = [node for node in around if isinstance(node.transform, ChainTransform)]
        return ours[-1] if ours else [node for node in around if id(node) not in self._above][-1]


def _upwards(node: AppliedPTransform | None) -> Iterator[AppliedPTransform]:
    while node is not None:
        yield node
        node = node.parent


def _below(node: AppliedPTransform) -> Iterator[AppliedPTransform]:
    yield node
    for part in node.parts:
        yield from _below(part)


def _kind(node: AppliedPTransform) -> type:
    """Return the kind of a transform of the chain, also for a class that the user derived from it."""
    found = type(node.transform)
    return next((kind for kind in _ORDER if issubclass(found, kind)), found)


def _not_one_stage(applied: _Applied, ends: dict[Any, AppliedPTransform]) -> Iterator[str]:
    """Yield a message for each refused transform of the user in the chain. Nothing if an end of the chain is missing.

    Before `ReadTasks`, all except Reshuffle are refused; after it, barriers and transforms that may not emit tasks.
    """
    first = ends.get(SkipCompleted) or ends.get(MatchSources)
    last = ends.get(CommitTasks) or ends.get(WriteTasks)
    if first is None or last is None or ReadTasks not in ends:
        return
    read = {id(leaf) for leaf in _reached(applied, ends[ReadTasks])}
    to_last = _leading_to(applied, last)
    seen: set[int] = set()
    for leaf in _reached(applied, first):
        unit = applied.unit(leaf)
        if id(leaf) not in to_last or isinstance(unit.transform, ChainTransform) or id(unit) in seen:
            continue
        seen.add(id(unit))
        if id(leaf) in read:
            kind = next(filter(None, map(_barrier, _below(unit))), None)
            if kind is not None:
                yield _refusal(unit, *kind)
            else:
                yield from _not_tasks(unit, [leaf for leaf in _below(unit) if not leaf.parts])
        elif not isinstance(unit.transform, beam.Reshuffle):
            yield _refusal(
                unit,
                "a transform of sources, or of tasks without their records,",
                "only a Reshuffle is allowed there; choose sources by the patterns of MatchSources, and process "
                "records after ReadTasks",
            )


def _barrier(node: AppliedPTransform) -> tuple[str, str] | None:
    """Return the kind of a transform that ends a stage, such as GroupByKey, and a remedy; None for other transforms."""
    transform = node.transform
    if isinstance(transform, beam.Reshuffle | ReshufflePerKey):
        return "a Reshuffle", f"leave it out, PlanTasks spreads the work; {_BARRIER}"
    if isinstance(transform, _COMBINES):
        return "a combine", _COUNT
    if isinstance(transform, beam.GroupByKey):
        return "a GroupByKey", f"end this pipeline with Scatter and start another one with Gather; {_BARRIER}"
    if isinstance(transform, beam.Flatten):
        return "a Flatten", f"write one ProcessTask that does the work of both branches; {_BARRIER}"
    if node.side_inputs:
        return "a side input", _SIDE
    if isinstance(transform, beam.WindowInto):
        return "a window", f"tasks have no timestamps; {_AFTER}"
    if isinstance(transform, beam.ParDo):
        if getattr(getattr(transform.fn, "_fn", None), "__qualname__", "").startswith("Filter."):
            return "a Filter", (
                "the source of a task that it drops would never be complete; to drop records use "
                "ProcessTask(FilterRecords(predicate)), and to drop whole tasks return None from a function of "
                "ProcessTask"
            )
        signature = DoFnSignature(transform.fn)
        if signature.has_timers():
            return "a timer", _STATE
        if signature.is_stateful_dofn():
            return "state", _STATE
        if signature.is_splittable_dofn():
            return "a splittable DoFn", f"a runner would divide a task among workers; {_AFTER}"
        return None
    if not node.parts and any(output not in node.inputs for output in node.outputs.values()):
        return f"a {type(transform).__name__}", f"only element-wise transforms of tasks are allowed there; {_AFTER}"
    return None


def _refusal(unit: AppliedPTransform, what: str, remedy: str) -> str:
    return f"{unit.full_label!r} is {what} inside of the chain from SkipCompleted to CommitTasks: {remedy}"


def _reached(applied: _Applied, start: AppliedPTransform) -> list[AppliedPTransform]:
    """Return the primitive transforms downstream of a transform of the chain, in order."""
    waiting = [taker for output in start.outputs.values() for taker in applied.takers.get(output, ())]
    found: dict[int, AppliedPTransform] = {}
    while waiting:
        node = waiting.pop(0)
        if id(node) not in found:
            found[id(node)] = node
            waiting += applied.next(node)
    return [leaf for leaf in applied.leaves if id(leaf) in found]


def _leading_to(applied: _Applied, end: AppliedPTransform) -> set[int]:
    """Return the IDs of a transform of the chain and of the primitive transforms upstream of it."""
    found: set[int] = {id(node) for node in _below(end)}
    for leaf in reversed(applied.leaves):  # inputs come before their consumers
        if any(id(taker) in found for taker in applied.next(leaf)):
            found.add(id(leaf))
    return found


def _path(applied: _Applied, ends: dict[Any, AppliedPTransform]) -> Iterator[AppliedPTransform]:
    """Yield the primitive transforms of the chain. Each must have the next one as its only consumer."""
    last = {id(node) for node in _below(ends[CommitTasks])}
    to_last = _leading_to(applied, ends[CommitTasks])
    node = next(leaf for leaf in applied.leaves if applied.unit(leaf) is ends[MatchSources])
    while True:
        yield node
        if id(node) in last:
            return
        takers = applied.next(node)
        if len(takers) > 1:
            aside = next((taker for taker in takers if id(taker) not in to_last), takers[1])
            raise UnsupportedShapeError(
                f"{applied.unit(aside).full_label!r} is a branch that leaves the chain after "
                f"{applied.unit(node).full_label!r}: {_COUNT}"
            )
        if not takers:
            raise UnsupportedShapeError(
                f"{applied.unit(node).full_label!r} does not lead to CommitTasks: expected one chain from MatchSources "
                "to CommitTasks; apply each transform to the output of the previous one"
            )
        (node,) = takers


def _misplaced(applied: _Applied, path: list[AppliedPTransform]) -> Iterator[str]:
    """Yield a message for each transform that is out of order."""
    units = list(dict.fromkeys(applied.unit(leaf) for leaf in path))
    for step, kind in zip([unit for unit in units if _kind(unit) in _ORDER], _ORDER, strict=False):
        if _kind(step) is not kind:
            yield (
                f"{step.full_label!r} is in the place of {kind.__name__}; the order is "
                f"{', '.join(kind.__name__ for kind in _ORDER)}"
            )
            return
    after: list[type] = []
    for unit in units:
        if _kind(unit) in _ORDER:
            after.append(_kind(unit))
        elif after[-1] is WriteTasks or after[-1] is MatchSources:
            yield (
                f"{unit.full_label!r} is directly after {after[-1].__name__}, where no transform is allowed; process "
                "records between ReadTasks and WriteTasks, and put other transforms after CommitTasks"
            )
        elif isinstance(unit.transform, ProcessTask | ProcessBatch) and after[-1] is not ReadTasks:
            yield f"{unit.full_label!r} is before ReadTasks; put it after ReadTasks, where tasks have their records"
        elif after[-1] is ReadTasks and any(isinstance(one.transform, WriteColumns) for one in units):
            yield (
                f"{unit.full_label!r} is before WriteColumns, which needs a row for each record of ReadTasks; give its "
                "function to WriteColumns, as the first of a list of functions"
            )


def _not_tasks(unit: AppliedPTransform, leaves: Sequence[AppliedPTransform]) -> Iterator[str]:
    """Yield a message about a user's transform if a part of it does not declare that it emits tasks."""
    tasks = set(get_args(TASKS))
    for given in (output.element_type for leaf in leaves for output in leaf.outputs.values()):
        if not set(given.union_types if isinstance(given, typehints.UnionConstraint) else [given]) <= tasks:
            kind = given.__name__ if isinstance(given, type) else str(given)
            yield (
                f"{unit.full_label!r} emits elements of the type {kind}: expected tasks, because the ledger "
                "tracks only tasks; for a function of one record use ProcessTask(EachRecord(function)) or "
                "ProcessTask(FilterRecords(predicate)) instead. If it emits tasks, declare them: "
                ".with_output_types(ledgerbeam.ledger.Task)"
            )
            return


def _functions(path: list[AppliedPTransform], write: WriteTasks) -> Iterator[Any]:
    for leaf in path:
        transform = leaf.transform
        if not isinstance(transform, beam.ParDo):
            continue
        work = transform.fn.step if isinstance(transform.fn, ChainDoFn) else None
        if isinstance(work, ProcessTask | ProcessBatch):
            yield work.function
        elif work is None and not type(transform.fn).__module__.startswith("apache_beam."):
            yield _bound(transform.fn.process, transform)
        elif (function := getattr(transform.fn, "_fn", None)) is not None:
            original = getattr(function, "_argspec_fn", function)  # beam.Map wraps it
            if not getattr(original, "__module__", "").startswith("apache_beam."):
                yield _bound(original, transform)
    if isinstance(write, WriteColumns):
        yield write.function
    if not isinstance(write.to, str) and not _is_of_library(type(write.to)):
        yield write.to.encode


def _is_of_library(kind: type) -> bool:
    return kind.__module__.startswith("ledgerbeam.")


def _bound(function: Callable[..., Any], transform: beam.ParDo) -> Callable[..., Any]:
    if not transform.args and not transform.kwargs:
        return function
    return functools.partial(function, *transform.args, **transform.kwargs)


def _names(proto: Proto) -> dict[str, str]:
    """Return the IDs of the primitive transforms of a pipeline, by label."""
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
