"""``python -m ledgerbeam`` is the command line."""

from __future__ import annotations

from ledgerbeam.pipelines.cli import run

run()
