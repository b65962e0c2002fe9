"""Mutants that no test can or should notice, each with the reason.

A key is what `make mutants` prints of a survivor: the module, the function, the text and what takes its place. An
entry that fits no mutant is an error, so that none outlives the code that it speaks of.
"""

from __future__ import annotations

EXPLAINED: dict[tuple[str, str, str, str], str] = {
    (
        "ledgerbeam/ledger/packing.py",
        "_ends_pack",
        "draw * target_bytes < member.size * _HASH_RANGE",
        "draw * target_bytes <= member.size * _HASH_RANGE",
    ): "they are equal for one hash in 2**64",
}
