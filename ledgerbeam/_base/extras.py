"""Modules of extras, and commands that install them, from the place that ledgerbeam was installed from."""

from __future__ import annotations

import importlib
import json
import os
import shlex
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any
from urllib.parse import unquote, urlsplit

from ledgerbeam.errors import UsageError

_NAME = "ledgerbeam"
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def import_extra(module: str, extra: str, need: str) -> Any:
    """Import a module of an extra; a UsageError names the need, such as ``images need Pillow``, and the remedy."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(f"{need}: {install_command(extra)}") from error


def install_command(extra: str) -> str:
    """Return the command that installs an extra for the running version.

    A package index may not have this version. So the command names the checkout or the URL that it was installed from.

    Args:
        extra: Name of the extra, such as ``torch``.
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
    try:
        noted = distribution(_NAME).read_text("direct_url.json")
        found = json.loads(noted) if noted else {}
    except (PackageNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
