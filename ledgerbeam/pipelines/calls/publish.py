"""``publish``: makes the outputs of a complete job a dataset of a format, or sends it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from glob import escape
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

from ledgerbeam.errors import UsageError
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.pipelines.calls.beginning import begin_call, call
from ledgerbeam.pipelines.calls.result import ListedRows, Result
from ledgerbeam.pipelines.calls.values import given, parse_options, parse_parts, path
from ledgerbeam.pipelines.console.run_console import RunConsole

if TYPE_CHECKING:
    from ledgerbeam.ledger import OutputShard
    from ledgerbeam.pipelines.outputs.hub import HubPublication
    from ledgerbeam.pipelines.outputs.metadata import Publication


_WITH_PLACES = ("idxpack", "megatron", "shar")
"""Formats whose metadata names shards by where they lie, or that write them anew elsewhere."""


@call
def publish(
    url: str | PathLike[str],
    *,
    as_: Literal["energon", "hf", "idxpack", "lit", "megatron", "shar", "webdataset"] | None = None,
    to: str | None = None,
    overwrite: bool = False,
    route: str = "",
    output: str | PathLike[str] | None = None,
    name: str | None = None,
    part: Mapping[str, str] | Sequence[str] = (),
    storage_options: Mapping[str, Any] | str | None = None,
    progress: bool | RunConsole | None = None,
    debug: bool = False,  # noqa: ARG001 - every call has it
) -> Result:
    """Make a dataset of what a job has written, or send it.

    Args:
        url: The job's ledger.
        as_: Whose index files and metadata to write.
        to: ``hf://datasets/OWNER/NAME[@BRANCH][/FOLDER]``: send shards, indexes and metadata there, in one commit.
        overwrite: With `to`: also replace files that this ledger has not put there.
        route: The dataset of a route; the empty name stands for the main dataset, and of a job that has written to
            routes alone for one dataset of all of them, for hf or to be sent as it lies.
        output: URL of the file for idxpack or shar; prefix for megatron.
        name: Name of the dataset; None for the last part of the job's output.
        part: Parts of energon, hf or lit and the shards in each, shell patterns, of which the first that matches
            counts: ``{"val": "b*", "train": "*"}``, or ``NAME=PATTERN`` each; none for all in train, and of a job
            that has written to routes alone, such as `split`, for each route as a part of hf.
        storage_options: Passed to fsspec unchanged.
        progress: Whether progress is shown on standard error; None shows it on a terminal and in a notebook.
        debug: Whether the error of a worker carries its whole traceback.

    Returns:
        What was published: `Result.sources` shards; `Result.outputs` has a row for each file of metadata, with its
        ``name``; `Result.summary` what was sent.

    Raises:
        LedgerError: The job is not complete, or another run changes it meanwhile.
        PublicationError: Others commit to the dataset of the Hub all the time.
        StorageError: A shard is gone or has another size than when it was written; or a store refuses.
        UsageError: The job wrote no shards, or not of this format; neither `as_` nor `to` is given, or files of others
            would be replaced.
    """
    options = given("storage_options", storage_options, parse_options)
    console = begin_call(progress, options, url=url, output=output)
    from ledgerbeam.io.storage.urls import canonical_url
    from ledgerbeam.ledger import dataset_manifest
    from ledgerbeam.ledger.opening import open_store
    from ledgerbeam.pipelines.datasets.megatron_parts import suffixes_of
    from ledgerbeam.pipelines.jobs.claim import routes_of
    from ledgerbeam.pipelines.outputs.hub import files_of, publish_to_hub
    from ledgerbeam.pipelines.outputs.metadata import publish_shards, require_shards
    from ledgerbeam.pipelines.outputs.published import forget_published

    started, place, parts = time.monotonic(), path(url), given("part", part, parse_parts)
    _check(as_, to, output, overwrite=overwrite, is_made=bool(output or name or parts))
    store = open_store(place, options, create=False, read_only=True)
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
    require_shards(shards, manifest.root, options, ledger=place)
    made = sent = None
    if as_ is not None:
        forget_published(store.url, as_, route, options)
        made = publish_shards(
            shards,
            manifest.root,
            as_,
            options,
            ledger=place,
            parts=parts,
            output=None if output is None else canonical_url(path(output)).rstrip("/"),
            name=name,
            suffixes=suffixes_of(store),
        )
    if to is not None:
        files = files_of(shards, manifest.root, [] if made is None else made.urls, options)
        ledger_id = "-".join(filter(None, [store.ledger_id(), route]))
        with console.counting("file") as advance:
            sent = publish_to_hub(to, files, ledger_id=ledger_id, options=options, overwrite=overwrite, on_file=advance)
    return Result(
        "publish",
        sources=len(shards),
        records=RecordCounts.plain(sum(shard.records for shard in shards)),
        seconds=time.monotonic() - started,
        ledger=store.url,
        output=to or (manifest.root if made is None or not made.urls else made.urls[-1]),
        outputs=ListedRows({"name": file} for file in (made.urls if made is not None else ())),
        summary={"shards": len(shards), **_made_facts(made), **_sent_facts(sent)},
    )


def _below(folder: str, shard: OutputShard) -> OutputShard:
    """Return a shard whose names are relative to the folder above the one that they are relative to."""
    index = None if shard.index is None else f"{folder}/{shard.index}"
    return replace(shard, name=f"{folder}/{shard.name}", index=index)


def _check(
    as_: str | None, to: str | None, output: str | PathLike[str] | None, *, overwrite: bool, is_made: bool
) -> None:
    """Refuse options that say nothing together."""
    if as_ is None and to is None:
        raise UsageError("publish: say what to make, --as FORMAT, or where to send it, --to hf://datasets/..., or both")
    if as_ is None and is_made:
        raise UsageError("publish: --output, --name and --part belong to --as FORMAT")
    if to is not None and as_ in _WITH_PLACES:
        raise UsageError(f"publish: --as {as_} names shards by where they lie here; send them without it: --to {to}")
    if to is not None and output is not None:
        raise UsageError(f"publish: --to {to} sends what lies with the shards; leave --output out")
    if overwrite and to is None:
        raise UsageError("publish: --overwrite belongs to --to hf://datasets/...")


def _made_facts(made: Publication | None) -> dict[str, object]:
    if made is None:
        return {}
    keys = {"keys": made.keys} if made.keys else {}
    return {"format": made.format, "records": made.records, "published": made.urls, **keys}


def _sent_facts(sent: HubPublication | None) -> dict[str, object]:
    if sent is None:
        return {}
    return {
        "to": sent.url,
        "commit": sent.commit,
        "added": sent.added,
        "replaced": sent.replaced,
        "removed": sent.removed,
        "same": sent.same,
        "kept": sent.kept,
    }
