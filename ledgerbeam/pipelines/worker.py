"""A worker process of a local job, forked by `fork_server` when FnApiRunner wants one."""

from __future__ import annotations

from ledgerbeam.ledger import InflightMarks

__all__ = ["main"]


def main(run_dir: str) -> None:
    """Serves the runner until it closes the channel. The process shows at once that it lives, before any task."""
    marks = InflightMarks(run_dir)
    marks.register()
    from apache_beam.runners.worker import sdk_worker_main  # noqa: PLC0415 - after logging is set up

    sdk_worker_main.main([])
    marks.close()
