"""Commands that install the extras of this package, and extensions.

An extension is an object with a name in a group. The library looks it up by group and name, and imports its module at
the first look-up. The dataset formats of this library are extensions. Other packages add extensions by entry points.
"""

from __future__ import annotations

import json
import os
import shlex
from importlib import import_module
from typing import Any
from urllib.parse import unquote, urlsplit

from ledgerbeam.errors import UsageError

_NAME = "ledgerbeam"
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

BUILT_IN: dict[str, dict[str, str]] = {
    "ledgerbeam.adapters": {
        "datasets": "ledgerbeam.adapters.datasets:DatasetsStyle",
        "datatrove": "ledgerbeam.adapters.datatrove:DatatroveAdapter",
    },
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
        "packs": "ledgerbeam.pipelines.datasets.publications:publish_packs",
        "shar": "ledgerbeam.pipelines.datasets.publications:publish_shar",
        "webdataset": "ledgerbeam.pipelines.datasets.publications:publish_wids",
    },
    "ledgerbeam.sources": {"shar": "ledgerbeam.sources.shar:SharSources"},
}
"""References `module:attribute` by group and name, as in entry points.

- `adapters`: classes of `Adapter`, see `user_code/adapters.py`
- `conversions`: functions from a record to a list of one record, see `io/conversion.py`
- `encoders`: classes of `ShardEncoder`, called with an option of the job
- `folders`: classes of `FolderKind`, see `io/any_source.py`
- `products`: classes of `Product`, called with the fields of `DatasetParts`
- `publications`: functions that write index files and metadata, see `pipelines/outputs/metadata.py`
- `sources`: classes of `Sources`, called with the location of indexes, `build_index` and storage options
"""


def extension_names(group: str) -> list[str]:
    """Return the names of a group: first the built-in names, then the names of other packages, sorted."""
    built_in = BUILT_IN.get(group, {})
    return [*built_in, *sorted(set(_entry_points(group)) - set(built_in))]


def load_extension(group: str, name: str) -> Any:
    """Import the object of a name, or raise LookupError. A built-in name takes precedence over an entry point."""
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
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow to import, and most jobs need none

    return {point.name: point for point in entry_points(group=group)}


def import_extra(module: str, extra: str, need: str) -> Any:
    """Import a module of an extra. UsageError if it is missing; `need` gives the reason: ``images need Pillow``."""
    try:
        return import_module(module)
    except ImportError as error:
        raise UsageError(f"{need}: {install_command(extra)}") from error


def install_command(extra: str) -> str:
    """Return the command that installs an extra for the running version.

    A package index may not have this version. So the command names the checkout or the URL of the installed package.
    """
    checkout = os.path.dirname(_PACKAGE)
    origin = _origin()
    url = str(origin.get("url", ""))
    if not origin and os.path.exists(os.path.join(checkout, "pyproject.toml")):
        return f"pip install -e {shlex.quote(f'{checkout}[{extra}]')}"
    if "dir_info" in origin and url.startswith("file:"):
        option = "-e " if origin["dir_info"].get("editable") else ""
        return f"pip install {option}{shlex.quote(f'{unquote(urlsplit(url).path)}[{extra}]')}"
    if "vcs_info" in origin:
        url = f"{origin['vcs_info']['vcs']}+{url}@{origin['vcs_info']['commit_id']}"
    needed = f"{_NAME}[{extra}] @ {url}" if url else f"{_NAME}[{extra}]"
    return f"pip install {shlex.quote(needed)}"


def _origin() -> dict[str, Any]:
    """Return pip's record of the URL that ledgerbeam was installed from; empty for a package index."""
    from importlib.metadata import PackageNotFoundError, distribution  # noqa: PLC0415 - slow to import, for errors only

    try:
        noted = distribution(_NAME).read_text("direct_url.json")
        found = json.loads(noted) if noted else {}
    except (PackageNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
