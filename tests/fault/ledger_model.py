"""What a ledger must hold, from what its writers were seen to record: sorted by number, then counted as sets.

Written apart from the ledger's own code: nothing here folds, and completeness is a comparison of two sets.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from ledgerbeam.ledger.model.accounts import RecordCounts, Statistic
from ledgerbeam.ledger.model.identity import Lineage
from ledgerbeam.ledger.model.rows import Leaf, Output
from ledgerbeam.ledger.model.task import Source

MAX_LEAVES = 5
FILTERED = 4


@cache
def tree_of(source: Source) -> Mapping[Lineage, Leaf]:
    """Return the leaves of a source, by lineage: a random tree that its identity decides."""
    choice = random.Random(source.id)
    left = choice.randint(1, MAX_LEAVES)
    lineages: list[Lineage] = []
    waiting: list[tuple[Lineage, int]] = [((), left)]
    while waiting:
        here, leaves = waiting.pop()
        if leaves == 1 and (len(here) > 2 or choice.random() < 0.5):
            lineages.append(here)
            continue
        children = [1] * choice.randint(1, leaves)
        for _ in range(leaves - len(children)):
            children[choice.randrange(len(children))] += 1
        waiting += [((*here, (ordinal, len(children))), share) for ordinal, share in enumerate(children)]
    return {lineage: _leaf(source, lineage) for lineage in lineages}


def _leaf(source: Source, lineage: Lineage) -> Leaf:
    choice = random.Random(f"{source.id.hex()}{lineage}")
    filtered = choice.randrange(FILTERED) == 0
    dropped, rejected = choice.randrange(3), choice.choice([0, 0, 1, 3])
    written = {} if filtered else {choice.choice(["", "de", "fr"]): 1}
    counts = RecordCounts(
        dropped + rejected + len(written),
        len(written),
        {choice.choice(["short", "seen"]): dropped} if dropped else {},
        {choice.choice(["bad", "worse"]): rejected} if rejected else {},
        written,
    )
    statistics = {"length": Statistic("count", choice.randbytes(4))} if choice.randrange(2) else {}
    counted = counts if choice.randrange(3) else None
    if filtered:
        return Leaf(source.id, lineage, "filtered", (), 0, 10, 0.25, counted, statistics)
    place = "-".join(str(ordinal) for ordinal, _ in lineage)
    name = f"{source.url.removeprefix('/')}-{place}"
    output = Output(name, 10, source.id.hex(), 1)
    return Leaf(source.id, lineage, "published", (output,), 1, 10, 0.25, counted, statistics)


def staying(source: Source, lineages: Collection[Lineage], withdrawn: Collection[Lineage]) -> set[Lineage]:
    """Return the finished tasks of a source that stay finished when some of them are withdrawn."""
    leaves = tree_of(source)
    told_apart = all(len(lineage) == 1 for lineage in lineages) and all(leaves[one].counts for one in withdrawn)
    if set(lineages) >= leaves.keys():
        told_apart &= all(leaves[one].outputs or leaves[one].special_counts() for one in lineages)
    plain = [leaves[one] for one in lineages if leaves[one].special_counts() is None]
    # What those without counts have added to the sum is divided among those that published.
    told_apart &= any(one.outputs for one in plain) or not any(one.bytes for one in plain)
    return set(lineages) - set(withdrawn) if told_apart else set()


class Delivery(NamedTuple):
    """A leaf that was recorded, by whom it was recorded for: the number of the run, and the job."""

    number: int
    source_id: bytes
    lineage: Lineage
    job: str


class Forgotten(NamedTuple):
    """Sources that were forgotten as a number."""

    number: int
    sources: Collection[bytes]


class Taken(NamedTuple):
    """Another job took the ledger as a number; it began anew if `restarts`."""

    number: int
    job: str
    restarts: bool


class Registered(NamedTuple):
    """A source that was entered by the writer of a number."""

    number: int
    source: Source


class Deleted(NamedTuple):
    """Names of outputs that were deleted as a number, since they were out of date."""

    number: int
    names: Collection[str]


@dataclass
class Expected:
    """What a ledger holds.

    Attributes:
        owners: The source that each URL is.
        leaves: The lineages that count, by registered source.
        retired: The ids of the sources that were replaced since the job has begun.
        superseded: Of each leaf that does not count, its source and the names of its outputs that were not deleted.
    """

    owners: dict[str, Source]
    leaves: dict[Source, set[Lineage]]
    retired: set[bytes]
    superseded: list[tuple[Source, set[str]]]

    @property
    def complete(self) -> set[bytes]:
        """Ids of the sources of which every leaf counts."""
        return {source.id for source, lineages in self.leaves.items() if lineages >= tree_of(source).keys()}

    @property
    def stale(self) -> list[str]:
        """Names of the outputs that are to be deleted: what took the place of their sources is complete."""
        complete = self.complete
        names: set[str] = set()
        for source, outputs in self.superseded:
            owners = {self.owners[url].id for url in source.urls if url in self.owners}
            is_known = source in self.leaves or source.id in self.retired
            if not is_known or (owners and complete >= owners):
                names |= outputs
        for source, lineages in self.leaves.items():
            names -= {output.name for lineage in lineages for output in tree_of(source)[lineage].outputs}
        return sorted(names)


@dataclass
class LedgerModel:
    """Everything that was recorded, in the order in which it was."""

    job: str
    deliveries: list[Delivery] = field(default_factory=list)
    forgotten: list[Forgotten] = field(default_factory=list)
    taken: list[Taken] = field(default_factory=list)
    registered: list[Registered] = field(default_factory=list)
    deleted: list[Deleted] = field(default_factory=list)

    def expected(self, highest: int = 2**62) -> Expected:
        """Return what the ledger holds for who has seen the numbers up to `highest`."""
        steps: list[tuple[int, int, Forgotten | Taken | Registered]] = []
        for kind, found in enumerate[Sequence[Forgotten | Taken | Registered]](
            (self.forgotten, self.taken, self.registered)
        ):
            steps += [(step.number, kind, step) for step in found if step.number <= highest or kind == 2]
        job, start = self.job, 0
        cutoffs: dict[bytes, int] = defaultdict(int)
        retired: set[bytes] = set()
        owners: dict[str, Source] = {}
        for number, _, step in sorted(steps, key=lambda item: item[:2]):
            if isinstance(step, Forgotten):
                cutoffs.update(dict.fromkeys(step.sources, number))
            elif isinstance(step, Taken):
                if step.restarts and step.job != job:
                    owners, retired, start = {}, set(), number
                job = step.job
            elif number >= start:
                source = step.source
                if source.id in retired:
                    retired.discard(source.id)
                    cutoffs[source.id] = number
                for owner in {owners[url] for url in source.urls if url in owners} - {source}:
                    retired.add(owner.id)
                    owners = {url: other for url, other in owners.items() if other != owner}
                owners.update(dict.fromkeys(source.urls, source))
        leaves: dict[Source, set[Lineage]] = {source: set() for source in owners.values()}
        by_id = {source.id: source for source in leaves}
        for delivery in self.deliveries:
            source_id = delivery.source_id
            if source_id in by_id and delivery.number >= max(start, cutoffs[source_id]):
                leaves[by_id[source_id]].add(delivery.lineage)
        known = {step.source.id: step.source for step in self.registered}
        superseded = [
            (known[late.source_id], self._not_deleted(known[late.source_id], late))
            for late in self.deliveries
            if late.source_id not in by_id or late.number < max(start, cutoffs[late.source_id])
        ]
        return Expected(owners, leaves, retired, superseded)

    def _not_deleted(self, source: Source, delivery: Delivery) -> set[str]:
        names = {output.name for output in tree_of(source)[delivery.lineage].outputs}
        return names.difference(*(step.names for step in self.deleted if step.number >= delivery.number))
