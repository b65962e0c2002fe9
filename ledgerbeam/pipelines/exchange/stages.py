"""The stages of jobs that have several, each with a ledger in the folder of that of the last one.

    sort, shuffle, repartition, group    scatter
    dedup                                decide/scatter, decide
    dedup --near                         cluster/pairs/scatter, cluster/pairs, cluster
    dedup --near --verify                the same, then texts, verify
    dedup --near, of many pairs          before cluster also cluster/stars, cluster/round-1 and so on, cluster/labels
    join                                 right, left

Behind the stages that write what an exchange reads, merge-1, merge-2 and so on may come, in the folder of that of the
job that reads it. With ``--mark`` what decides is the last stage, so the ledgers of those before it lie in its own.
"""

from __future__ import annotations

from ledgerbeam.ledger import Job

GATHER = "gather"
"""The last stage of a job that is an exchange."""

SCATTER = "scatter"
"""Writes the records, or hashes of them, by bucket."""

DECIDE = "decide"
"""Finds which records have a key that an earlier one has."""

PAIRS = "pairs"
"""Connects records that share a band."""

STARS, ROUND, LABELS = "stars", "round", "labels"
"""Find what is connected, of more pairs than one process can join."""

CLUSTER = "cluster"
"""Joins all pairs."""

TEXTS = "texts"
"""Reads the texts of candidates."""

VERIFY = "verify"
"""Compares candidates; also the parameter of a job that says what near ones have in common at least."""

RIGHT, LEFT = "right", "left"
"""Write the records of a side by bucket."""

MERGE = "merge"
"""Merge run files, where an exchange takes several rounds."""

NUMBERED = "-*"
"""Ends the name of a stage of which there are as many as it takes: -1, -2 and so on."""

MERGES, ROUNDS = f"{MERGE}{NUMBERED}", f"{ROUND}{NUMBERED}"

_NEAR = (f"{PAIRS}/{SCATTER}", f"{PAIRS}/{MERGES}", PAIRS, STARS, ROUNDS, LABELS)
_CLUSTERED = (*(f"{CLUSTER}/{name}" for name in _NEAR), CLUSTER)

_STAGES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys((DECIDE, "group", "repartition", "shuffle", "sort"), (SCATTER, MERGES)),
    "dedup": (f"{DECIDE}/{SCATTER}", f"{DECIDE}/{MERGES}", DECIDE),
    "join": (RIGHT, LEFT, MERGES),
    "cluster": _NEAR,
    "near": _CLUSTERED,
    "verify": (*_CLUSTERED, TEXTS, MERGES),
}


def stages_of(job: Job) -> tuple[str, ...]:
    """Return the earlier stages of a job, in order: the folders of their ledgers in that of its own; see `NUMBERED`.

    Args:
        job: Of the last stage, as its ledger has it.
    """
    if job.pipeline == "near" and VERIFY in job.parameters:
        return (*_CLUSTERED, TEXTS, f"{VERIFY}/{MERGES}", VERIFY)
    return _STAGES.get(job.pipeline, ())


def is_optional(stage: str) -> bool:
    """Return whether a job may do without a stage; all sources of its ledger are gone then, or there is none."""
    return stage.rpartition("/")[2] in (MERGES, STARS, ROUNDS, LABELS)


def merge_stage(ordinal: int) -> str:
    """Return the name of a stage that merges.

    Args:
        ordinal: Which of them it is, from 1.
    """
    return f"{MERGE}-{ordinal}"
