"""The stages of jobs that have several, each with a ledger in the folder of that of the last one.

    sort, shuffle, repartition, group    scatter
    dedup                                decide/scatter, decide
    dedup --near                         cluster/pairs/scatter, cluster/pairs, cluster
    dedup --near --verify                the same, then texts, verify
    dedup --near, of many pairs          before cluster also cluster/stars, cluster/round-1 and so on, cluster/labels
    join                                 right, left

With ``--mark`` what decides is the last stage, so the ledgers of those before it lie in its own.
"""

from __future__ import annotations

from ledgerbeam.ledger import Job

__all__ = [
    "CLUSTER",
    "DECIDE",
    "LABELS",
    "LEFT",
    "NUMBERED",
    "PAIRS",
    "RIGHT",
    "ROUND",
    "SCATTER",
    "STARS",
    "TEXTS",
    "VERIFY",
    "is_optional",
    "stages_of",
]

SCATTER = "scatter"
"""Writes the records, or hashes of them, by bucket."""

DECIDE = "decide"
"""Finds which records have a key that an earlier one has."""

PAIRS = "pairs"
"""Connects records that share a band."""

STARS, ROUND, LABELS = "stars", "round", "labels"
"""Find what is connected, of more pairs than one process can join."""

NUMBERED = "-*"
"""Ends the name of a stage of which there are as many as it takes: -1, -2 and so on."""

CLUSTER = "cluster"
"""Joins all pairs."""

TEXTS = "texts"
"""Reads the texts of candidates."""

VERIFY = "verify"
"""Compares candidates; also the parameter of a job that says what near ones have in common at least."""

RIGHT, LEFT = "right", "left"
"""Write the records of a side by bucket."""

_NEAR = (f"{PAIRS}/{SCATTER}", PAIRS, STARS, f"{ROUND}{NUMBERED}", LABELS)
_CLUSTERED = (*(f"{CLUSTER}/{name}" for name in _NEAR), CLUSTER)

_STAGES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys((DECIDE, "group", "repartition", "shuffle", "sort"), (SCATTER,)),
    "dedup": (f"{DECIDE}/{SCATTER}", DECIDE),
    "join": (RIGHT, LEFT),
    "cluster": _NEAR,
    "near": _CLUSTERED,
    "verify": (*_CLUSTERED, TEXTS),
}


def stages_of(job: Job) -> tuple[str, ...]:
    """Return the earlier stages of a job, in order: the folders of their ledgers in that of its own; see `NUMBERED`.

    Args:
        job: Of the last stage, as its ledger has it.
    """
    if job.pipeline == "near" and VERIFY in job.parameters:
        return (*_STAGES["verify"], VERIFY)
    return _STAGES.get(job.pipeline, ())


def is_optional(stage: str) -> bool:
    """Return whether a job may do without a stage; all sources of its ledger are gone then, or there is none."""
    return stage.rpartition("/")[2] in (STARS, f"{ROUND}{NUMBERED}", LABELS)
