"""``ledgerbeam ledger report``: an HTML report of a job on one page, without network access or scripts."""

from __future__ import annotations

import argparse
import importlib.util
import re

from ledgerbeam._base.extras import install_command
from ledgerbeam._base.redaction import without_secrets
from ledgerbeam.errors import UsageError
from ledgerbeam.io import publish_bytes
from ledgerbeam.io.storage.overwrite import refuse_foreign
from ledgerbeam.io.storage.urls import canonical_url
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.pipelines.console.reporter import print_json
from ledgerbeam.pipelines.report.data import report_data

EXTRA = ("jinja2", "vl_convert")
"""Packages of the extra ``report``."""

_LOOKS = re.compile(rb"\Z|<!doctype html>(?s:.*)<footer>Made by ledgerbeam ")


def report(store: LedgerStore, args: argparse.Namespace) -> int:
    """Write the report of a ledger. Returns 0.

    Raises:
        UsageError: The extra ``report`` is not installed, the output is a folder, or it is an existing file that is not
            an earlier report.
    """
    missing = [name for name in EXTRA if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"the report needs {' and '.join(missing)}, which is not installed; install it with: "
            f"{install_command('report')}"
        )
    from ledgerbeam.pipelines.report.page import render_page

    refuse_foreign({args.output: _LOOKS}, args.storage_options, kind="an earlier report")
    page = render_page(report_data(store, args.storage_options))
    publish_bytes(args.output, page, args.storage_options)
    where = without_secrets(canonical_url(args.output))
    if args.json:
        print_json({"output": where, "bytes": len(page)})
    else:
        print(f"report: {where} ({len(page):,} bytes)")
    return 0
