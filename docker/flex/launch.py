"""Program of the Flex Template: runs `ledgerbeam map` with the parameters of the template as options.

Google's launcher starts it, and adds options of Beam. One of them is ``--template_location``: with it, the program
stages the pipeline and ends without waiting for it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import ledgerbeam


def main(argv: Sequence[str]) -> int:
    """Stage the job and return the exit status: 0, or that of the error."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--function", required=True, help="MODULE:OBJECT in the worker image")
    parser.add_argument("--sources", required=True, help="patterns of the sources, separated by spaces")
    parser.add_argument("--output", required=True, help="folder of the outputs")
    parser.add_argument("--to", default="jsonl", help="format of the outputs")
    parser.add_argument("--ledger", required=True, help="URL of the ledger, which records the progress")
    parser.add_argument("--task_bytes", default="16M", help="approximate size of a task, in bytes or as 16M")
    parser.add_argument("--on_error", default="fail", help="fail, or reject with a limit, such as reject:0.1%%")
    args, options = parser.parse_known_args(argv)
    chosen = vars(args)
    function, sources = chosen.pop("function"), chosen.pop("sources").split()
    try:
        ledgerbeam.map(function, sources, **chosen, options=options)
    except ledgerbeam.LedgerbeamError as error:
        print(f"launch: {error}", file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1:])
    # Beam leaves a thread of gRPC, which may hold a lock forever. The interpreter would wait for the lock at its end.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
