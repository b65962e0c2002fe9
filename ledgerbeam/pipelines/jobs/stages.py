"""The stages of jobs that have several, each with a ledger in the folder of that of the last one.

    sort, shuffle, repartition, group    scatter
    dedup                                decide/scatter, decide
    dedup --near                         cluster/pairs/scatter, cluster/pairs, cluster
    dedup --near --verify                the same, then texts, verify
    join                                 right, left

Behind the stages that write what an exchange reads, merge-1, merge-2 and so on may come, in the folder of that of the
job that reads it. With ``--mark`` what decides is the last stage, so the ledgers of those before it lie in its own.
"""

from __future__ import annotations

from ledgerbeam.ledger import Job

__all__ = [
    "CLUSTER",
    "DECIDE",
    "LEFT",
    "MERGE",
    "PAIRS",
    "RIGHT",
    "SCATTER",
    "TEXTS",
    "VERIFY",
    "merge_stage",
    "stages_of",
    "with_merges",
]

SCATTER = "scatter"
"""Writes the records, or hashes of them, by bucket."""

DECIDE = "decide"
"""Finds which records have a key that an earlier one has."""

PAIRS = "pairs"
"""Connects records that share a band."""

CLUSTER = "cluster"
"""Joins all pairs."""

TEXTS = "texts"
"""Reads the texts of candidates."""

VERIFY = "verify"
"""Compares candidates; also the parameter of a job that says what near ones have in common at least."""

RIGHT, LEFT = "right", "left"
"""Write the records of a side by bucket."""

MERGE = "merge"
"""Merge run files, where an exchange takes several rounds; among the stages of a job it stands for all of them."""

_NEAR = (f"{PAIRS}/{SCATTER}", f"{PAIRS}/{MERGE}", PAIRS)
_CLUSTERED = (*(f"{CLUSTER}/{name}" for name in _NEAR), CLUSTER)

_STAGES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys((DECIDE, "group", "repartition", "shuffle", "sort"), (SCATTER, MERGE)),
    "dedup": (f"{DECIDE}/{SCATTER}", f"{DECIDE}/{MERGE}", DECIDE),
    "join": (RIGHT, LEFT, MERGE),
    "cluster": _NEAR,
    "near": _CLUSTERED,
    "verify": (*_CLUSTERED, TEXTS, MERGE),
}


def stages_of(job: Job) -> tuple[str, ...]:
    """Return the earlier stages of a job, in order: the folders of their ledgers in that of its own; see `MERGE`.

    Args:
        job: Of the last stage, as its ledger has it.
    """
    if job.pipeline == "near" and VERIFY in job.parameters:
        return (*_CLUSTERED, TEXTS, f"{VERIFY}/{MERGE}", VERIFY)
    return _STAGES.get(job.pipeline, ())


def merge_stage(ordinal: int) -> str:
    """Return the name of a stage that merges.

    Args:
        ordinal: Which of them it is, from 1.
    """
    return f"{MERGE}-{ordinal}"


def with_merges(name: str, merges: int) -> list[str]:
    """Return the stages that a name of `stages_of` stands for.

    Args:
        name: The name.
        merges: How many merges there are, if it stands for them.
    """
    folder, slash, last = name.rpartition("/")
    return [f"{folder}{slash}{merge_stage(place)}" for place in range(1, merges + 1)] if last == MERGE else [name]
