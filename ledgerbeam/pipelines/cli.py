"""The entry of the command line: parse, run, and turn every outcome into one line and an exit status.

Exit status: 0 done; 1 error; 2 usage; 3 done, but some tasks failed; 130 interrupted, state saved.
"""

from __future__ import annotations

import argparse
import codecs
import importlib
import io
import os
import signal
import sys
import traceback
from collections.abc import Sequence

from ledgerbeam.descriptors import hold_standard_descriptors
from ledgerbeam.errors import LedgerbeamError, UsageError
from ledgerbeam.pipelines.arguments import build_parser

__all__ = ["INTERRUPTED", "main", "run"]

INTERRUPTED = 130

_AS_THEY_ARE = "ledgerbeam-as-they-are"
"""Names need not be UTF-8: their bytes are printed as they are. Other surrogates, which are no text, are escaped."""

# Imported on use: Beam takes a second to import, and --help must not wait for it.
_COMMANDS = {
    "index": "ledgerbeam.pipelines.jobs",
    "map": "ledgerbeam.pipelines.jobs",
    "convert": "ledgerbeam.pipelines.jobs",
    "tokenize": "ledgerbeam.pipelines.jobs",
    "materialize": "ledgerbeam.pipelines.jobs",
    "merge": "ledgerbeam.pipelines.merge",
    "publish": "ledgerbeam.pipelines.publish",
    "verify": "ledgerbeam.pipelines.verify",
    "show": "ledgerbeam.pipelines.show",
    "ledger": "ledgerbeam.pipelines.inspect",
}


def _print_surrogates(error: UnicodeError) -> tuple[str | bytes, int]:
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeEncodeError as refused:
        return codecs.backslashreplace_errors(refused)


codecs.register_error(_AS_THEY_ARE, _print_surrogates)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: Arguments without the program's name; those of the process if None. Beam options follow ``--``.

    Returns:
        The exit status.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    try:
        args, beam_args = _parse(arguments)
        command = importlib.import_module(_COMMANDS[args.command])
        status: int = command.main(args, beam_args)
        sys.stdout.flush()
    except LedgerbeamError as error:
        return _fail(f"{error}", error.exit_status, debug)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED, debug)
    except BrokenPipeError:
        # The reader of our output has gone, as `head` does; what was asked for has been given.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status


def run() -> None:
    """Entry point of the ``ledgerbeam`` script. SIGTERM ends a run as Ctrl-C does: with its state saved."""
    hold_standard_descriptors()
    _take_signals()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_AS_THEY_ARE)
    status = main()
    if "grpc" in sys.modules:
        # A channel that Beam has left open may hold a lock for which the interpreter waits as it ends, for ever.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def _take_signals() -> None:
    """Makes the signals work that a command needs, however its parent had set them.

    An ignored SIGINT stays so: it belongs to a job in the background, and Ctrl-C to the one in front.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it takes away how a process has ended
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGCHLD))


def _parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    beam_args: list[str] = []
    if "--" in arguments:
        cut = arguments.index("--")
        arguments, beam_args = arguments[:cut], arguments[cut + 1 :]
    args, rest = build_parser().parse_known_args(arguments)
    # argparse takes a list of positionals from one place only; patterns may stand on both sides of options.
    if rest and (any(word.startswith("-") for word in rest) or not hasattr(args, "patterns")):
        raise UsageError(f"unrecognized arguments: {' '.join(rest)}; see: ledgerbeam {args.command} --help")
    if rest:
        args.patterns += rest
    if beam_args and _COMMANDS[args.command] != _COMMANDS["map"]:
        raise UsageError(f"ledgerbeam {args.command} runs no Beam pipeline: nothing may follow '--'")
    return args, beam_args


def _fail(message: str, status: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print(
        f"ledgerbeam: error: {message}" if status != INTERRUPTED else f"ledgerbeam: {message}",
        file=sys.stderr,
    )
    return status


if __name__ == "__main__":
    run()
