"""What Google's launcher of a Flex Template runs: `ledgerbeam map`, its options the parameters of the template.

The launcher adds Beam options: with ``--template_location`` the pipeline is staged and not waited for.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import ledgerbeam


def main(argv: Sequence[str]) -> int:
    """Stage the job; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--function", required=True, help="MODULE:OBJECT, which the worker image has")
    parser.add_argument("--sources", required=True, help="patterns of the sources, separated by spaces")
    parser.add_argument("--output", required=True, help="folder of the outputs")
    parser.add_argument("--to", default="jsonl", help="format of the outputs")
    parser.add_argument("--ledger", required=True, help="where progress is kept")
    parser.add_argument("--task_bytes", default="16M", help="size of a task")
    parser.add_argument("--on_error", default="fail", help="fail, or reject with a limit")
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
    # A thread of gRPC that Beam leaves behind may hold a lock which the interpreter waits for as it ends, for ever.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
