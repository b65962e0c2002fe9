"""Entry point of the command line: parse, run, and report every outcome as one line and an exit status.

Exit status: 0 done; 1 error; 2 usage error; 3 done, but some tasks failed; 130 interrupted, state saved.
"""

from __future__ import annotations

import argparse
import codecs
import contextlib
import io
import itertools
import json
import os
import signal
import sys
import traceback
from collections.abc import Sequence

from ledgerbeam._base import redaction
from ledgerbeam._base.interrupts import INTERRUPTED, end_when_interrupted, raise_when_interrupted
from ledgerbeam._base.process import hold_standard_descriptors, show_log
from ledgerbeam._base.redaction import redact_streams, without_secrets
from ledgerbeam.errors import LedgerbeamError
from ledgerbeam.io.native import enable_crash_message
from ledgerbeam.pipelines.calls.call import check_urls
from ledgerbeam.pipelines.cli.parser import parse_words

# Error handler of the standard streams: bytes of names that are not UTF-8 stay, other surrogates are escaped.
_AS_THEY_ARE = "ledgerbeam-as-they-are"


def _print_surrogates(error: UnicodeError) -> tuple[str | bytes, int]:
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeEncodeError as refused:
        return codecs.backslashreplace_errors(refused)


codecs.register_error(_AS_THEY_ARE, _print_surrogates)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, and return the exit status.

    Args:
        argv: Arguments without the program's name; None for the arguments of the process.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    args: argparse.Namespace | None = None
    _register_secrets(arguments)
    try:
        args, behind = parse_words(arguments)
        check_urls(vars(args))
        if getattr(args, "dry_run", False) or getattr(args, "sample", None):
            sys.dont_write_bytecode = True  # no bytecode of the user's modules: these modes write nothing
        status: int = args.run(args, behind)
        sys.stdout.flush()
    except LedgerbeamError as error:
        # Notes are for Python, which prints them with the error. Here they would hide the message.
        advice = "" if debug or not hasattr(error, "__notes__") else "; to see the traceback, use --debug"
        return _fail(f"{error}{advice}", error.exit_status, debug)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED, debug)
    except BrokenPipeError:
        _drop_output()
        only_prints = ("only_prints", "dry_run", "sample")  # arguments of commands that only print, as help does
        if args is None or any(getattr(args, name, None) for name in only_prints):
            return 0  # the reader, such as `head`, has closed the pipe: it has all the output that it needs
        why = "standard output: its reader has ended (broken pipe); send it elsewhere, and run the same command again"
        return _fail(why, 1, debug)
    except OSError as error:
        if error.filename is not None:
            raise
        # Errors of files and stores have a name. This error is of the working folder or of standard output.
        if isinstance(error, FileNotFoundError):
            return _fail("the working folder was removed; go to another folder, and run the same command", 1, debug)
        _drop_output()
        why = f"standard output: {error.strerror}; free some space or send it elsewhere, and run the same command again"
        return _fail(why, 1, debug)
    return status


def _drop_output() -> None:
    """Discard output that could not be written. Python would try again at exit, and raise the same error again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run() -> None:
    """Entry point of the ``ledgerbeam`` script. SIGTERM ends a run like Ctrl-C, with its state saved."""
    end_when_interrupted()
    hold_standard_descriptors()
    # The parent process may have changed the signals that a command needs.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if ignored, exit statuses of processes are lost
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGCHLD))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_AS_THEY_ARE)
    redact_streams()
    show_log()
    if "--debug" not in sys.argv:  # --debug keeps the signal and a core file
        enable_crash_message()
    status = _run_interruptibly()
    if "grpc" in sys.modules:
        # A channel that Beam leaves open may hold a lock, and the interpreter would wait for it forever at exit.
        from ledgerbeam.pipelines.runners.beam import stop_servers

        stop_servers()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def _run_interruptibly() -> int:
    """Run the command of the process. Handle Ctrl-C at any time, also while the command reports its outcome."""
    try:
        try:
            raise_when_interrupted()
            return main()
        finally:
            end_when_interrupted()
    except KeyboardInterrupt:  # a second interrupt
        return _fail("interrupted", INTERRUPTED, debug=False)


def _register_secrets(arguments: Sequence[str]) -> None:
    """Register the secrets in the environment and in JSON arguments, also of misspelt options. Messages hide them."""
    redaction.register_environment()
    for before, word in itertools.pairwise(["", *arguments]):
        with contextlib.suppress(ValueError):
            value = json.loads(word[word.find("{") :]) if "{" in word else None
            if isinstance(value, dict):
                of_stores = any(one.startswith("--storage") for one in (before, word))
                (redaction.register_secrets if of_stores else redaction.register_credentials)(value)


def _fail(message: str, status: int, debug: bool) -> int:
    if debug:
        print(without_secrets(traceback.format_exc()), end="", file=sys.stderr)
    message = without_secrets(message)
    print(f"ledgerbeam: error: {message}" if status != INTERRUPTED else f"ledgerbeam: {message}", file=sys.stderr)
    return status


if __name__ == "__main__":
    run()
