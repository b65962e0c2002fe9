"""Mutants that no test can or should notice, each with the reason.

A key is what `make mutants` prints of a survivor: the module, the function, the text and what takes its place. An
entry that fits no mutant is an error, so that none outlives the code that it speaks of.
"""

from __future__ import annotations

_STRICT = "lists of one length are zipped"

EXPLAINED: dict[tuple[str, str, str, str], str] = {
    ("ledgerbeam/pipelines/owner.py", "", "1_000", "1001"): "how many names are held to tell a few of them",
    ("ledgerbeam/pipelines/owner.py", "OutputOwner._read_marks", "True", "False"): _STRICT,
    ("ledgerbeam/pipelines/recorded.py", "_refuse_changed", "True", "False"): _STRICT,
    ("ledgerbeam/pipelines/recorded.py", "_differing", "True", "False"): _STRICT,
    (
        "ledgerbeam/pipelines/recorded.py",
        "_differing",
        "found != page.sizes",
        "True",
    ): "a page of which nothing differs is passed over sooner",
    ("ledgerbeam/pipelines/recorded.py", "_size", "return -1", "return None"): "any other size of an index is gone",
    ("ledgerbeam/pipelines/recorded.py", "_size", "1", "2"): "any other size of an index is gone",
    ("ledgerbeam/pipelines/recorded.py", "_named", "1", "2"): "any size below zero is none",
    (
        "ledgerbeam/pipelines/recorded.py",
        "_differing_from_listing",
        "1",
        "2",
    ): "the greatest key is then looked for by its name, and found as it was recorded",
}
