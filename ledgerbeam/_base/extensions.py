"""Extensions: objects that the core finds by the name of a group and a name in it, without importing their module.

The datasets of this library are extensions. Other packages add theirs with entry points of the same groups.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

BUILT_IN: dict[str, dict[str, str]] = {
    "ledgerbeam.conversions": {
        "cut": "ledgerbeam.io.datasets.shar.format:to_cut",
        "document": "ledgerbeam.io.datasets.megatron.format:to_document",
    },
    "ledgerbeam.encoders": {
        "megatron": "ledgerbeam.io.datasets.megatron.format:MegatronFormat",
        "shar": "ledgerbeam.io.datasets.shar.format:SharFormat",
    },
    "ledgerbeam.folders": {"shar": "ledgerbeam.io.datasets.shar.format:SharFolder"},
    "ledgerbeam.products": {"megatron": "ledgerbeam.pipelines.datasets.megatron:MergedParts"},
    "ledgerbeam.publications": {
        "energon": "ledgerbeam.pipelines.datasets.publications:publish_energon",
        "lit": "ledgerbeam.pipelines.datasets.publications:publish_lit",
        "megatron": "ledgerbeam.pipelines.datasets.publications:publish_megatron",
        "shar": "ledgerbeam.pipelines.datasets.publications:publish_shar",
        "webdataset": "ledgerbeam.pipelines.datasets.publications:publish_wids",
    },
    "ledgerbeam.sources": {"shar": "ledgerbeam.sources.shar:SharSources"},
}
"""References `module:attribute` by group and name, as in entry points.

- `conversions`: functions from a record to a list of one record, see `io/conversion.py`
- `encoders`: classes of `ShardEncoder`, called with an option of the job
- `folders`: classes of `FolderKind`, see `io/any_source.py`
- `products`: classes of `Product`, called with the fields of `DatasetParts`
- `publications`: functions that write index files and metadata, see `pipelines/outputs/metadata.py`
- `sources`: classes of `Sources`, called with the location of indexes, `build_index` and storage options
"""


def extension_names(group: str) -> list[str]:
    """Return the names of a group: the built-in ones, then those of other packages in alphabetical order."""
    built_in = BUILT_IN.get(group, {})
    return [*built_in, *sorted(set(_entry_points(group)) - set(built_in))]


def load_extension(group: str, name: str) -> Any:
    """Import the object of a name. A built-in name takes precedence over an entry point.

    Raises:
        LookupError: The group has no such name.
    """
    reference = BUILT_IN.get(group, {}).get(name)
    if reference is not None:
        return load_reference(reference)
    found = _entry_points(group)
    if name not in found:
        raise LookupError(f"{group}: no entry point {name!r}; install the package that provides it")
    return found[name].load()


def load_reference(reference: str) -> Any:
    """Import the object of a reference ``module:attribute``."""
    module, _, attribute = reference.partition(":")
    return getattr(import_module(module), attribute)


def _entry_points(group: str) -> dict[str, Any]:
    from importlib.metadata import entry_points  # noqa: PLC0415 - searches all installed packages

    return {point.name: point for point in entry_points(group=group)}
