"""``dedup``: write all records without duplicates."""

import argparse
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from ledgerbeam._base.lazy import np
from ledgerbeam.errors import UsageError
from ledgerbeam.io.exchange.order import By, key_fields
from ledgerbeam.pipelines.calls.call import Runnable, Values, public, run_call
from ledgerbeam.pipelines.calls.call_spec import CallSpec, Option
from ledgerbeam.pipelines.calls.options import (
    FUNCTION_ERROR,
    KEYS,
    MARKED,
    PATTERNS,
    SOURCES,
    WORK,
    AnyJobOptions,
    MarkOptions,
    Places,
    RecordOptions,
    ShardOptions,
    Size,
    StageOptions,
)
from ledgerbeam.pipelines.calls.values import given, parse_count

if TYPE_CHECKING:
    from ledgerbeam.pipelines.calls.result import Result
    from ledgerbeam.pipelines.dedup.pairs import NearChoice
    from ledgerbeam.pipelines.exchange.partition import KeyChoice


class DedupOptions(RecordOptions, ShardOptions, MarkOptions, StageOptions, AnyJobOptions, total=False):
    """Options of `dedup`."""

    by: Annotated[
        By | None,
        "key: the name of a field, a.b for a nested value, several names with commas; or module:function that returns "
        "the key of a record. One of the records with the same key stays; all records with a null key stay",
        Option(KEYS, "KEY", more="Names may be a list, and the function may be the object itself."),
    ]
    content: Annotated[
        bool,
        "use the whole record as its key, in place of `by`",
        Option(
            KEYS,
            default=False,
            more="Two records are equal if they are the same JSON; the order of names does not matter.",
        ),
    ]
    near: Annotated[
        By | None,
        "text to compare for near duplicates, in place of `by`: the name of a field, or module:function of a record. "
        "Records are near if their signatures share a band; of each cluster one record stays",
        Option(
            KEYS,
            "FIELD",
            more="A cluster holds records that are near each other, directly or through others. Signatures are stored "
            "below the output. The option needs the extra `near`.",
        ),
    ]
    lines: Annotated[
        str | None,
        "field with text, in place of `by`: find lines that are equal to an earlier line of any record, and remove "
        "them from the texts; with `mark`, or without `to`, write the column `duplicate_lines` with their ranges",
        Option(KEYS, "FIELD", more="A range is the first character and the one after the last, from 0."),
    ]
    minhash: Annotated[
        str | None,
        "of `near`: number of bands in a signature, and of hashes in a band",
        Option(
            KEYS,
            "BANDSxROWS",
            unset="14x8",
            more="Records that have the share s of their n-grams in common share a band with the probability "
            "1 - (1 - s^ROWS)^BANDS.",
        ),
    ]
    ngram: Annotated[int | str | None, "of `near`: number of words in an n-gram", Option(KEYS, "N", unset="5")]
    threshold: Annotated[
        float | str | None,
        "of `near`, in place of `minhash`: smallest share of common n-grams of near texts, such as 0.8; it decides "
        "the numbers of bands and of hashes in a band, at most 128 hashes in all",
        Option(KEYS, "SHARE", more="With `verify`, `minhash` may be given, too."),
    ]
    verify: Annotated[
        bool,
        "of `near`, with `threshold`: compare the n-grams of texts that share a band; the texts are near only if "
        "they have at least the share `threshold` in common; `minhash` may be given, too",
        Option(KEYS, default=False, more="Records that share a band are read again."),
    ]
    against: Annotated[
        Places,
        "of `near`: ledger of an earlier deduplication; also remove records that are near one of its records. Its "
        "signatures are read, with `verify` also its records that share a band; may be repeated",
        Option(
            KEYS,
            "LEDGER",
            default=(),
            repeats=True,
            more="The earlier deduplication needs the same `minhash` and `ngram`; its files are not changed.",
        ),
    ]
    prefer: Annotated[
        By | None,
        "field or module:function; of each key or cluster, the record with the greatest value stays",
        Option(KEYS, "KEY", unset="the first record stays", more="Of equal values the first record stays."),
    ]
    cluster_bytes: Annotated[
        Size | None,
        "of `near`: most bytes of pairs that one process clusters; more pairs take rounds, with the same result",
        Option(KEYS, "BYTES", unset="1G"),
    ]
    bucket_bytes: Annotated[Size, "size of the sources whose hashes form a bucket", Option(WORK, "BYTES", default="1G")]


DEDUP = CallSpec(
    "dedup",
    "write all records without duplicates",
    DedupOptions,
    (PATTERNS,),
    changes={
        **MARKED,
        "mark": {
            "text": "write columns for each record, not the records that stay: `duplicate_of`, source and number of "
            "the record that stays in its place, and `cluster`, a name in common with its duplicates"
        },
        "task_bytes": {"text": "size of a task; a task of the last stage makes one shard", "default": "64M"},
        "pack": {"group": SOURCES, "text": "pack small sources, so that a shard has about this size"},
    },
    raises=(FUNCTION_ERROR,),
)


_BANDS, _ROWS, _NGRAM = 14, 8, 5  # defaults: with 68 % of their n-grams in common, half of the pairs are near
_THRESHOLD_HASHES = 128  # most hashes of a signature whose bands and rows a threshold chooses
_MOST_HASHES = 4096


def _build_dedup(values: Values) -> Runnable:
    from ledgerbeam.pipelines.calls.job_values import decision_values, file_sources_of, job_call, key_choice
    from ledgerbeam.pipelines.dedup.exact import DedupJob
    from ledgerbeam.pipelines.dedup.lines import LinesJob
    from ledgerbeam.pipelines.dedup.near import NearJob

    near, lines = _near_choice(values), values.lines is not None
    columns = "lines:line_columns" if lines else "marks:columns_of_marks"
    fields: dict[str, Any] = {
        **decision_values(values, f"ledgerbeam.transforms.dedup.{columns}", mark=lines and values.to is None),
        "files": file_sources_of(values),
        "key": _dedup_key(values),
        "prefer": None if values.prefer is None else key_choice(values.prefer, "key", descending=True, option="prefer"),
        "bucket_bytes": values.bucket_bytes,
        "max_slices": values.max_slices,
    }
    if near is None:
        return job_call(LinesJob if lines else DedupJob, values, **fields)
    return job_call(NearJob, values, near=near, **fields)


@public(DEDUP, _build_dedup)
def dedup(*patterns: Places, **options: Unpack[DedupOptions]) -> "Result":
    """Write all records except duplicates. Of equal or near records, one is written: the first, or the preferred."""
    return run_call(DEDUP, (patterns,), options)


def _dedup_key(values: Values) -> "KeyChoice":
    from ledgerbeam.pipelines.calls.job_values import key_choice
    from ledgerbeam.pipelines.exchange.partition import KeyChoice

    by, near, lines = values.by, values.near, values.lines
    if (by is not None) + values.content + (near is not None) + (lines is not None) != 1:
        raise UsageError(
            "dedup: expected one rule for duplicates; give one of --by KEY (equal keys), --content (equal records), "
            "--near FIELD (similar texts) and --lines FIELD (equal lines)"
        )
    if lines is not None:
        if values.prefer is not None:
            raise UsageError("--prefer chooses between records, and --lines between lines: leave one of them out")
        fields = key_fields(lines, "lines")
        if len(fields) != 1:
            raise UsageError(f"lines: expected the name of one field with text, found {lines!r:.80}")
        return KeyChoice("digest", fields)
    if near is not None:
        if len(key_fields(near, "near")) > 1:
            raise UsageError(f"near: expected one field, or a function that returns a text, found {near!r:.80}")
        return key_choice(near, "digest", option="near")
    return KeyChoice("content") if by is None else key_choice(by, "digest")


def _near_choice(values: Values) -> "NearChoice | None":
    """Return the rules by which records are near; None for exact duplicates."""
    from ledgerbeam.io.exchange.forest import require_scipy
    from ledgerbeam.pipelines.calls.job_values import folder
    from ledgerbeam.pipelines.dedup.pairs import CLUSTER_BYTES, NearChoice

    minhash, threshold, verify = values.minhash, values.threshold, values.verify
    against = tuple(folder(one) for one in values.against)
    if values.near is None:
        if not (verify or against) and minhash is values.ngram is threshold is values.cluster_bytes is None:
            return None
        raise UsageError(
            "--minhash, --ngram, --threshold, --verify, --against and --cluster-bytes need --near: give --near FIELD, "
            "or leave them out"
        )
    require_scipy()
    if twice := {one for one in against if against.count(one) > 1}:
        raise UsageError(f"--against {min(twice)}: the ledger is given twice; leave one out")
    most = CLUSTER_BYTES if values.cluster_bytes is None else values.cluster_bytes
    words = _NGRAM if values.ngram is None else given("ngram", values.ngram, parse_count)
    signed = None if minhash is None else given("minhash", minhash, _bands_and_rows)
    if threshold is None:
        if verify:
            raise UsageError(
                "--verify needs the share of common n-grams from which texts are near: give --threshold SHARE, such as "
                "0.8"
            )
        return NearChoice(*(signed or (_BANDS, _ROWS)), words, against=against, cluster_bytes=most)
    share = given("threshold", threshold, _share)
    if signed is not None and not verify:
        raise UsageError(
            "--threshold and --minhash both set the bands: leave one out, or add --verify. Then --minhash sets the "
            "bands, and --threshold is the share of common n-grams from which texts are near"
        )
    return NearChoice(*(signed or bands_for(share)), words, share if verify else None, against, most)


def bands_for(threshold: float) -> tuple[int, int]:
    """Return the number of bands, and of rows (hashes) in a band, that best separate near records at a threshold.

    Records with the share s of common n-grams have a common band with the probability p(s) = 1 - (1 - s^rows)^bands.
    The result minimizes the sum of two areas: under p(s) where s is below the threshold, and above p(s) elsewhere.
    Its number of hashes, bands times rows, is at most `_THRESHOLD_HASHES`.
    """
    shares = (np.arange(1000) + 0.5) / 1000
    below = shares < threshold

    def wrong(found: tuple[int, int]) -> float:
        near = 1 - (1 - shares ** found[1]) ** found[0]
        return float(np.where(below, near, 1 - near).sum())

    most = _THRESHOLD_HASHES
    return min(((bands, rows) for rows in range(1, most + 1) for bands in range(1, most // rows + 1)), key=wrong)


def _bands_and_rows(value: str) -> tuple[int, int]:
    bands, _, rows = str(value).lower().partition("x")
    found = [int(part) if part.isascii() and part.isdigit() else 0 for part in (bands, rows)]
    if min(found) < 1 or found[0] * found[1] > _MOST_HASHES:
        raise argparse.ArgumentTypeError(
            f"expected BANDSxROWS such as {_BANDS}x{_ROWS}, together at most {_MOST_HASHES:,} hashes, found "
            f"{value!r:.40}"
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
