"""``pack``: sequences of one length as ranges of the documents of Megatron datasets."""

import argparse
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal, Required, Unpack

from ledgerbeam.errors import UsageError
from ledgerbeam.pipelines.calls.call import Runnable, Values, public, run_call
from ledgerbeam.pipelines.calls.call_spec import Argument, CallSpec, Option
from ledgerbeam.pipelines.calls.options import (
    AnyJobOptions,
    BaseOptions,
    FolderOptions,
    LimitOptions,
    Places,
    StoreOptions,
)
from ledgerbeam.pipelines.calls.values import parse_count, paths

if TYPE_CHECKING:
    from ledgerbeam.pipelines.calls.result import Result

PACKS = "packs"  # heading in the help of the command
_MOST_TIMES = 1_000


def _parse_weight(value: float | str) -> float:
    try:
        weight = float(value)
    except ValueError:
        weight = -1.0
    if not 0 < weight <= _MOST_TIMES:
        raise argparse.ArgumentTypeError(f"expected a number above 0, up to {_MOST_TIMES:,}, found {value!r:.40}")
    return weight


class PackOptions(StoreOptions, FolderOptions, BaseOptions, LimitOptions, AnyJobOptions, total=False):
    """Options of `pack`."""

    length: Annotated[Required[int], "number of tokens of a pack", Option(PACKS, "N")]
    strategy: Annotated[
        Literal["best-fit", "concat"],
        "`best-fit` divides only documents longer than a pack; `concat` cuts the documents, one after the other, into "
        "packs without padding",
        Option(PACKS, default="best-fit"),
    ]
    eod: Annotated[
        int | None,
        "ID of a token to add after each document, for datasets without one",
        Option(PACKS, "ID", parse=partial(parse_count, least=0), unset="no token is added"),
    ]
    longest: Annotated[
        Literal["split", "cut"],
        "with best-fit, treatment of a document longer than a pack: `split` it into pieces, or `cut` off its rest",
        Option(PACKS, default="split"),
    ]
    weight: Annotated[
        float,
        "how often each document is taken: 0.1 takes a tenth of the documents, 2.5 takes each twice and half of them "
        "once more; a hash of dataset and number chooses them",
        Option(PACKS, "NUMBER", default=1.0, parse=_parse_weight),
    ]


PACK = CallSpec(
    "pack",
    "pack documents of Megatron datasets into sequences of one length",
    PackOptions,
    (
        Argument(
            "patterns", Places, "PREFIX", "prefixes of Megatron datasets, with *, ? and {a,b}", paths, several=True
        ),
    ),
    changes={
        "output": {"text": "folder of packs to write: Arrow files, and their catalog"},
        "task_bytes": {"text": "size of a task in tokens; documents of two tasks share no pack", "default": "64M"},
        "storage_options": {"group": PACKS},
    },
)


def _build_pack(values: Values) -> Runnable:
    from ledgerbeam.io.datasets.megatron.layout import dataset_prefix
    from ledgerbeam.pipelines.calls.job_values import file_sources, folder, job_call
    from ledgerbeam.pipelines.datasets.packs import PackJob

    if values.strategy == "concat" and values.longest == "cut":
        raise UsageError("--longest cut: concat cuts documents at the ends of packs only; leave --longest out")
    if values.length >= 2**31:
        raise UsageError(f"--length {values.length}: expected at most 2,147,483,647 tokens; give a smaller number")
    if values.eod is not None and values.eod >= 2**31:
        raise UsageError(f"--eod {values.eod}: expected the ID of a token, at most 2,147,483,647")
    files = file_sources(
        [f"{dataset_prefix(prefix)}.bin" for prefix in values.patterns],
        None,
        group="auto",
        index_root=None,
        index_rule="scheme",
        task_bytes=values.task_bytes,
        base=values.base,
    )
    chosen = {name: getattr(values, name) for name in ("length", "strategy", "eod", "longest", "weight")}
    return job_call(PackJob, values, files=files, output=folder(values.output), **chosen)


@public(PACK, _build_pack)
def pack(*patterns: Places, **options: Unpack[PackOptions]) -> "Result":
    """Pack documents of Megatron datasets into sequences of one length, as an index: no token is read or copied.

    `ledgerbeam.iterators.Packed` reads the sequences.
    """
    return run_call(PACK, (patterns,), options)
