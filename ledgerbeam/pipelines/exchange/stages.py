"""Earlier stages of each command. Each has a ledger, in a folder of this name in the ledger of the last stage.

    sort, shuffle, repartition, group    scatter
    dedup, dedup --lines                 decide/scatter, decide
    dedup --near                         cluster/pairs/scatter, cluster/pairs, cluster
    dedup --near --verify                the stages of dedup --near, then texts, verify
    dedup --near, many pairs             cluster/stars, cluster/round-1 and so on, cluster/labels before cluster
    join                                 right, left

Stages merge-1, merge-2 and so on may follow stages that write run files, in the ledger of the stage that reads them.
"""

from __future__ import annotations

from ledgerbeam.ledger import Job

GATHER = "gather"  # the last stage of a job that is an exchange
SCATTER = "scatter"  # writes the records, or hashes of them, by bucket
DECIDE = "decide"  # finds records with the key of an earlier record
PAIRS = "pairs"  # connects records that share a band
STARS, ROUND, LABELS = "stars", "round", "labels"  # find connected records, for more pairs than one process can join
CLUSTER = "cluster"  # joins all pairs
TEXTS = "texts"  # reads the texts of candidates
VERIFY = "verify"  # compares candidates; also the parameter of a job with the minimum similarity of near documents
RIGHT, LEFT = "right", "left"  # write the records of a side by bucket
MERGE = "merge"  # merge run files, where an exchange takes several rounds
NUMBERED = "-*"  # suffix of a stage name with as many instances as needed: -1, -2 and so on
MERGES, ROUNDS = f"{MERGE}{NUMBERED}", f"{ROUND}{NUMBERED}"

_NEAR = (f"{PAIRS}/{SCATTER}", f"{PAIRS}/{MERGES}", PAIRS, STARS, ROUNDS, LABELS)
_CLUSTERED = (*(f"{CLUSTER}/{name}" for name in _NEAR), CLUSTER)

_STAGES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("group", "repartition", "shuffle", "sort"), (SCATTER, MERGES)),
    **dict.fromkeys(("dedup", "lines"), (f"{DECIDE}/{SCATTER}", f"{DECIDE}/{MERGES}", DECIDE)),
    "join": (RIGHT, LEFT, MERGES),
    "near": _CLUSTERED,
}


def stages_of(job: Job) -> tuple[str, ...]:
    """Return the earlier stages of a job, in order, as folders of their ledgers in its own ledger; see `NUMBERED`."""
    if job.pipeline == "near" and VERIFY in job.parameters:
        return (*_CLUSTERED, TEXTS, f"{VERIFY}/{MERGES}", VERIFY)
    return _STAGES.get(job.pipeline, ())


def is_optional(stage: str) -> bool:
    """Return whether a job may run without a stage. Then its ledger has no sources or is missing."""
    return stage.rpartition("/")[2] in (MERGES, STARS, ROUNDS, LABELS)


def stage_ledger(ledger: str, stage: str) -> str:
    """Return the ledger of an earlier stage of a job with a ledger; empty for an empty `ledger`."""
    return f"{ledger}/{stage}" if ledger else ""


def merge_stage(ordinal: int) -> str:
    """Return the name of a stage that merges."""
    return f"{MERGE}-{ordinal}"
