"""``publish``: make a dataset of the outputs of a job, or upload it."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from glob import escape
from typing import TYPE_CHECKING, Annotated, Literal, Unpack

from ledgerbeam.errors import UsageError
from ledgerbeam.pipelines.calls.call import Values, begin, public
from ledgerbeam.pipelines.calls.call_spec import Argument, CallSpec, Option
from ledgerbeam.pipelines.calls.options import OUTPUT, ConsoleOptions, Place, StoreOptions
from ledgerbeam.pipelines.calls.values import parse_parts, path

if TYPE_CHECKING:
    from ledgerbeam.ledger import LedgerStore, OutputShard
    from ledgerbeam.pipelines.calls.result import Result


class PublishOptions(StoreOptions, ConsoleOptions, total=False):
    """Options of `publish`."""

    as_: Annotated[
        Literal["energon", "hf", "idxpack", "lit", "megatron", "shar", "webdataset"] | None,
        "write the index files and metadata of this format",
        Option(OUTPUT),
    ]
    to: Annotated[
        str | None,
        "upload shards, indexes and metadata to hf://datasets/OWNER/NAME[@BRANCH][/FOLDER], in one commit",
        Option(OUTPUT, "URL"),
    ]
    overwrite: Annotated[
        bool, "with `to`: also replace files that this ledger did not upload", Option(OUTPUT, default=False)
    ]
    route: Annotated[
        str,
        "publish this route; by default, the routes of a job that wrote only to routes form one hf dataset",
        Option(OUTPUT, "NAME", default="", unset="the main dataset"),
    ]
    output: Annotated[Place | None, "URL of the file for idxpack or shar; prefix for megatron", Option(OUTPUT, "URL")]
    name: Annotated[str | None, "name of the dataset", Option(OUTPUT, "NAME", unset="last part of the job's output")]
    part: Annotated[
        Mapping[str, str] | Sequence[str],
        "for energon, hf or lit: name of a part, and a shell pattern of its shards; the first part that matches gets "
        "a shard. For hf, each route of a job that wrote only to routes, such as split, is a part",
        Option(
            OUTPUT,
            "NAME=PATTERN",
            default=(),
            unset="train=*",
            repeats=True,
            parse=parse_parts,
            more='Also a mapping: `{"val": "b*", "train": "*"}`.',
        ),
    ]


PUBLISH = CallSpec(
    "publish",
    "make a dataset of the outputs of a job, or upload it",
    PublishOptions,
    (Argument("url", Place, "LEDGER", "URL of the job's ledger", path),),
    is_job=False,
    changes={"storage_options": {"group": OUTPUT}},
)

# Formats whose metadata has the places of shards, or that write the shards again elsewhere.
_WITH_PLACES = ("idxpack", "megatron", "shar")


@public(PUBLISH)
def publish(url: Place, **options: Unpack[PublishOptions]) -> "Result":
    """Make a dataset of the outputs of a job, or upload it.

    Returns:
        The result. `Result.sources` is the number of shards, and `Result.outputs` has a row with the ``name`` of each
        file of metadata. `Result.summary` describes the upload.

    Raises:
        LedgerError: The job is not complete, or another run changes it meanwhile.
        PublicationError: Commits of others to the dataset of the Hub prevented every attempt.
        StorageError: A shard is missing or has another size than recorded, or a store refuses a request.
        UsageError: There are no shards of the format; `as_` and `to` are missing; or foreign files would be replaced.
    """
    values, console = begin(PUBLISH, (url,), options)
    from ledgerbeam.io.storage.urls import canonical_url
    from ledgerbeam.ledger import dataset_manifest
    from ledgerbeam.ledger.model.accounts import RecordCounts
    from ledgerbeam.ledger.opening import open_store
    from ledgerbeam.pipelines.calls.result import ListedRows, Result
    from ledgerbeam.pipelines.outputs.hub import files_of, publish_to_hub
    from ledgerbeam.pipelines.outputs.metadata import publish_shards, require_shards
    from ledgerbeam.pipelines.outputs.published import forget_published
    from ledgerbeam.pipelines.outputs.recorded import routes_of

    started, place, parts, stores = time.monotonic(), values.url, values.part, values.storage_options
    as_, to, route = values.as_, values.to, values.route
    _check(values, is_made=bool(values.output or values.name or parts))
    store = open_store(place, stores, create=False, read_only=True)
    manifest = dataset_manifest(store, route=route)
    if manifest.root is None:
        raise UsageError(f"ledger {place}: its job has written no shards; there is nothing to publish")
    shards, routes = list(manifest), routes_of(store)
    if not shards and not route and routes and as_ in (None, "hf"):  # such as the parts of a split
        shards = [_below(name, shard) for name in routes for shard in dataset_manifest(store, route=name)]
        parts = parts or [(name, f"{escape(name)}/*") for name in routes]
    if not shards and (route or routes):
        what = f"to route {route!r}" if route else "without a route"
        known = ", ".join(map(repr, routes_of(store))) or "none"
        raise UsageError(f"ledger {place}: its job has written no shards {what}; --route NAME takes: {known}")
    require_shards(shards, manifest.root, stores, ledger=place)
    made = None
    facts: dict[str, object] = {"shards": len(shards)}
    if as_ is not None:
        forget_published(store.url, as_, route, stores)
        made = publish_shards(
            shards,
            manifest.root,
            as_,
            stores,
            ledger=place,
            parts=parts,
            output=None if values.output is None else canonical_url(values.output).rstrip("/"),
            name=values.name,
            suffixes=_suffixes_of(store),
        )
        facts |= {"format": made.format, "records": made.records, "published": made.urls}
        facts |= {"keys": made.keys} if made.keys else {}
    if to is not None:
        files = files_of(shards, manifest.root, [] if made is None else made.urls, stores)
        ledger_id = "-".join(filter(None, [store.ledger_id(), route]))
        with console.counting("file") as advance:
            sent = publish_to_hub(
                to, files, ledger_id=ledger_id, options=stores, overwrite=values.overwrite, on_file=advance
            )
        uploaded = asdict(sent)
        facts |= {"to": uploaded.pop("url"), **uploaded}
    return Result(
        "publish",
        sources=len(shards),
        records=RecordCounts.plain(sum(shard.records for shard in shards)),
        seconds=time.monotonic() - started,
        ledger=store.url,
        output=to or (manifest.root if made is None or not made.urls else made.urls[-1]),
        outputs=ListedRows({"name": file} for file in (made.urls if made is not None else ())),
        summary=facts,
    )


def _suffixes_of(store: "LedgerStore") -> list[str]:
    """Return the suffix of each Megatron dataset whose parts a job writes; one empty suffix if the job has none."""
    job = store.job()
    found = None if job is None else job.parameters.get("suffixes")
    return [str(suffix) for suffix in found] if isinstance(found, list) else [""]


def _below(folder: str, shard: "OutputShard") -> "OutputShard":
    """Return a shard in the folder of a route, with names relative to the parent of this folder."""
    index = None if shard.index is None else f"{folder}/{shard.index}"
    return replace(shard, name=f"{folder}/{shard.name}", index=index)


def _check(values: Values, *, is_made: bool) -> None:
    """Raise `UsageError` for options that exclude or need each other."""
    as_, to = values.as_, values.to
    if as_ is None and to is None:
        raise UsageError("publish: nothing to do; give --as FORMAT to write metadata, --to hf://... to upload, or both")
    if as_ is None and is_made:
        raise UsageError("publish: --output, --name and --part need --as FORMAT; add it, or leave them out")
    if to is not None and as_ in _WITH_PLACES:
        raise UsageError(f"publish: --as {as_} describes shards at this place only; leave --as out: --to {to}")
    if to is not None and values.output is not None:
        raise UsageError(f"publish: --to {to} uploads only files that are beside the shards; leave --output out")
    if values.overwrite and to is None:
        raise UsageError("publish: --overwrite needs --to hf://datasets/...; add it, or leave --overwrite out")
