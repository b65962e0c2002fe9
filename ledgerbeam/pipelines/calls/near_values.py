"""From the options of near duplicates to what their jobs do."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from ledgerbeam.errors import UsageError
from ledgerbeam.io.exchange.forest import require_scipy
from ledgerbeam.pipelines.calls.values import given, parse_count
from ledgerbeam.pipelines.dedup.pairs import CLUSTER_BYTES, NearChoice

BANDS, ROWS, NGRAM = 14, 8, 5
"""If nothing else is asked for: documents of which 68 of 100 n-grams are in common become near as often as not."""

THRESHOLD_HASHES = 128
"""Hashes of a signature, at most, whose bands and rows a threshold chooses."""

MOST_HASHES = 4096


def near_choice(
    minhash: str | None,
    ngram: int | str | None,
    threshold: float | str | None,
    *,
    verify: bool,
    against: Sequence[str] = (),
    cluster_bytes: int | None = None,
) -> NearChoice:
    """Return when documents are near.

    Args:
        minhash: ``BANDSxROWS``; None for those of the threshold, or `BANDS` and `ROWS`.
        ngram: Words of an n-gram; None for `NGRAM`.
        threshold: Share of n-grams in common from which on two documents are to be near; see `bands_for`.
        verify: Whether documents that share a band are near only if they have this share in common.
        against: Canonical URLs of the ledgers of earlier deduplications.
        cluster_bytes: Pairs that one process clusters; None for `CLUSTER_BYTES`.

    Raises:
        UsageError: The options cannot mean anything together, or SciPy is not installed.
    """
    require_scipy()
    if twice := {one for one in against if against.count(one) > 1}:
        raise UsageError(f"--against {min(twice)}: it is given twice; leave one of them out")
    most = CLUSTER_BYTES if cluster_bytes is None else cluster_bytes
    words = NGRAM if ngram is None else given("ngram", ngram, parse_count)
    signed = None if minhash is None else given("minhash", minhash, _bands_and_rows)
    if threshold is None:
        if verify:
            raise UsageError(
                "--verify compares what texts have in common with --threshold, and none is given: give --threshold "
                "SHARE, such as 0.8"
            )
        return NearChoice(*(signed or (BANDS, ROWS)), words, against=tuple(against), cluster_bytes=most)
    share = given("threshold", threshold, _share)
    if signed is not None and not verify:
        raise UsageError(
            "--threshold chooses the bands and rows that --minhash gives: leave one of them out, or give --verify, "
            "which compares with the threshold what shares a band"
        )
    return NearChoice(*(signed or bands_for(share)), words, share if verify else None, tuple(against), most)


def bands_for(threshold: float) -> tuple[int, int]:
    """Return the bands and rows that tell best whether two documents have a share of their n-grams in common.

    Those of a share s become near with the probability 1 - (1 - s^rows)^bands. Of all bands and rows of at most
    `THRESHOLD_HASHES` hashes those are taken for which the area is least in which that is wrong: below the threshold
    under this curve, from there on above it.
    """
    shares = (np.arange(1000) + 0.5) / 1000
    below = shares < threshold

    def wrong(found: tuple[int, int]) -> float:
        near = 1 - (1 - shares ** found[1]) ** found[0]
        return float(np.where(below, near, 1 - near).sum())

    most = THRESHOLD_HASHES
    return min(((bands, rows) for rows in range(1, most + 1) for bands in range(1, most // rows + 1)), key=wrong)


def _bands_and_rows(value: str) -> tuple[int, int]:
    bands, _, rows = str(value).lower().partition("x")
    found = [int(part) if part.isascii() and part.isdigit() else 0 for part in (bands, rows)]
    if min(found) < 1 or found[0] * found[1] > MOST_HASHES:
        raise argparse.ArgumentTypeError(
            f"expected BANDSxROWS such as {BANDS}x{ROWS}, together at most {MOST_HASHES:,} hashes, found {value!r:.40}"
        )
    return found[0], found[1]


def _share(value: float | str) -> float:
    try:
        share = float(value)
    except (TypeError, ValueError):
        share = 0.0
    if not 0 < share < 1:
        raise argparse.ArgumentTypeError(f"expected a share between 0 and 1 such as 0.8, found {value!r:.40}")
    return share
