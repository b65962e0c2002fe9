"""``dedup``: write all records without duplicates."""

from typing import TYPE_CHECKING, Annotated, Any, Unpack

from ledgerbeam.errors import UsageError
from ledgerbeam.io.exchange.order import By, key_fields
from ledgerbeam.pipelines.calls.call import Values, public, run_call
from ledgerbeam.pipelines.calls.call_spec import CallSpec, Option
from ledgerbeam.pipelines.calls.options import (
    FUNCTION_ERROR,
    KEYS,
    OUTPUT,
    PATTERNS,
    SOURCES,
    WORK,
    AnyJobOptions,
    IndexOptions,
    ListOptions,
    Places,
    ReadOptions,
    ShardOptions,
    Size,
    StageOptions,
    StoreOptions,
)

if TYPE_CHECKING:
    from ledgerbeam.pipelines.calls.exchange_values import OutputValues
    from ledgerbeam.pipelines.calls.result import Result
    from ledgerbeam.pipelines.exchange.partition import KeyChoice
    from ledgerbeam.pipelines.runners.stage_loop import PreparedCall


class DedupOptions(
    StoreOptions, ListOptions, IndexOptions, ReadOptions, ShardOptions, StageOptions, AnyJobOptions, total=False
):
    """Options of `dedup`."""

    by: Annotated[
        By | None,
        Option(
            KEYS,
            "key of which each value stays once: the name of a field, a.b for a nested value, several names with "
            "commas; or module:function that returns the key of a record. A record whose key is null stays",
            "KEY",
            more="Names may be a list, and the function may be the object itself.",
        ),
    ]
    content: Annotated[
        bool,
        Option(
            KEYS,
            "use the whole record as its key, in place of `by`",
            default=False,
            more="Two records are equal if they are the same JSON; the order of names does not matter.",
        ),
    ]
    near: Annotated[
        By | None,
        Option(
            KEYS,
            "text by which records are near, in place of `by`: the name of a field, or module:function of a record. "
            "Records are near if their signatures share a band; of each cluster one record stays",
            "FIELD",
            more="A cluster holds records that are near each other, also by way of others. Signatures stay below the "
            "output. It needs the extra `near`.",
        ),
    ]
    minhash: Annotated[
        str | None,
        Option(
            KEYS,
            "of `near`: bands of a signature, and hashes of a band",
            "BANDSxROWS",
            unset="14x8",
            more="Records that have the share s of their n-grams in common share a band with the probability "
            "1 - (1 - s^ROWS)^BANDS.",
        ),
    ]
    ngram: Annotated[int | str | None, Option(KEYS, "of `near`: words of an n-gram", "N", unset="5")]
    threshold: Annotated[
        float | str | None,
        Option(
            KEYS,
            "of `near`, in place of `minhash`: least share of n-grams in common, such as 0.8; it chooses the best "
            "bands and rows of at most 128 hashes",
            "SHARE",
            more="With `verify` both may be given.",
        ),
    ]
    verify: Annotated[
        bool,
        Option(
            KEYS,
            "of `near`, with `threshold`: compare the n-grams of texts that share a band; they are near only if they "
            "have at least this share in common; `minhash` may be given as well",
            default=False,
            more="Such records are read again.",
        ),
    ]
    against: Annotated[
        Places,
        Option(
            KEYS,
            "of `near`: ledger of an earlier deduplication; records near one of its records go, too. Its signatures "
            "are read, with `verify` also its records that share a band; may be repeated",
            "LEDGER",
            default=(),
            repeats=True,
            more="The earlier deduplication has the same `minhash` and `ngram`; nothing of it changes.",
        ),
    ]
    prefer: Annotated[
        By | None,
        Option(
            KEYS,
            "field or module:function; of the records of a key or a cluster the one with the greatest value stays",
            "KEY",
            unset="the first record stays",
            more="Of equal values the first record stays.",
        ),
    ]
    cluster_bytes: Annotated[
        Size | None,
        Option(
            KEYS,
            "of `near`: pairs that one process clusters; more pairs are clustered in rounds, with the same result",
            "BYTES",
            unset="1G",
        ),
    ]
    mark: Annotated[
        bool,
        Option(
            OUTPUT,
            "write the duplicates as JSON lines in place of the other records: source and number of each, with `near` "
            "also of the record that stays",
            default=False,
            more="The record that stays is the field `of`.",
        ),
    ]
    bucket_bytes: Annotated[Size, Option(WORK, "size of the sources whose hashes make a bucket", "BYTES", default="1G")]


DEDUP = CallSpec(
    "dedup",
    "write all records without duplicates",
    DedupOptions,
    (PATTERNS,),
    changes={
        "task_bytes": {"text": "size of a task; a task of the last stage makes one shard", "default": "64M"},
        "pack": {"group": SOURCES, "text": "pack small sources, so that a shard has about this size"},
    },
    raises=(FUNCTION_ERROR,),
)


def _build(values: Values) -> "PreparedCall":
    from ledgerbeam.pipelines.calls.exchange_values import key_choice, output_values
    from ledgerbeam.pipelines.calls.job_values import file_sources_of, folder, job_call, run_values_of
    from ledgerbeam.pipelines.calls.near_values import near_choice
    from ledgerbeam.pipelines.dedup.exact import DecideJob, DedupJob
    from ledgerbeam.pipelines.dedup.near import NearJob, marking_job

    files, written = file_sources_of(values), output_values(values)
    key = dedup_key(values.by, content=values.content, near=values.near)
    ledgers = [folder(one) for one in values.against]
    asked = (values.minhash, values.ngram, values.threshold, values.verify, ledgers, values.cluster_bytes)
    nearness = None
    if values.near is not None:
        nearness = near_choice(
            values.minhash,
            values.ngram,
            values.threshold,
            verify=values.verify,
            against=ledgers,
            cluster_bytes=values.cluster_bytes,
        )
    elif asked != (None, None, None, False, [], None):
        raise UsageError(
            "--minhash, --ngram, --threshold, --verify, --against and --cluster-bytes are about texts that are near: "
            "give --near FIELD"
        )
    shared: dict[str, Any] = {
        "files": files,
        "key": key,
        "prefer": None if values.prefer is None else key_choice(values.prefer, "key", descending=True, option="prefer"),
        "bucket_bytes": values.bucket_bytes,
        "max_slices": values.max_slices,
        **run_values_of(values),
    }
    if values.mark:
        marks: dict[str, Any] = {**shared, "output": written["output"], "to": require_marks(values.to, written)}
        decide = DecideJob(**marks) if nearness is None else marking_job(nearness, **marks)
        return job_call(decide, values)
    job = DedupJob(**shared, **written) if nearness is None else NearJob(near=nearness, **shared, **written)
    return job_call(job, values)


@public(DEDUP, _build)
def dedup(*patterns: Places, **options: Unpack[DedupOptions]) -> "Result":
    """Write all records but duplicates: of those with one key, or near each other, the first or the preferred stays."""
    return run_call(DEDUP, (patterns,), options)


def dedup_key(by: By | None, *, content: bool, near: By | None) -> "KeyChoice":
    """Return by what duplicates are found.

    Raises:
        UsageError: Not just one of a key, the content and a text is given; also as `key_choice`.
    """
    from ledgerbeam.pipelines.calls.exchange_values import key_choice
    from ledgerbeam.pipelines.exchange.partition import KeyChoice

    if (by is not None) + content + (near is not None) != 1:
        raise UsageError(
            "give what equal records have in common, --by KEY or --content, or the text by which they are near, --near "
            "FIELD (one of the three)"
        )
    if near is not None:
        if len(key_fields(near, "near")) > 1:
            raise UsageError(f"near: expected one field or function that gives a text, found {near!r:.80}")
        return key_choice(near, "digest", option="near")
    return KeyChoice("content") if by is None else key_choice(by, "digest")


def require_marks(to: str, written: "OutputValues") -> str:
    """Return the format of a list of duplicates.

    Raises:
        UsageError: It was to be another one, or compressed.
    """
    if to != "jsonl" or written["compression"] is not None:
        raise UsageError(f"--mark writes plain lines: give --to jsonl without --compress, found --to {to}")
    return to
