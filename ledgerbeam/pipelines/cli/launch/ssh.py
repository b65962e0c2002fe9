"""``ledgerbeam launch ssh``: a script that runs the command on hosts of a list, and tells of those that it loses."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence

from ledgerbeam.errors import UsageError
from ledgerbeam.pipelines.cli.launch.options import add_setup

TEXT = "print a script that runs the command on hosts of a list"

_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@:-]*")

# On the host: the command ends with the connection, which it could outlive otherwise.
_REMOTE = """{setup}exec 3<&0
{command} </dev/null 3<&- &
job=$!
{{ cat <&3; kill -TERM "$job"; }} >/dev/null 2>&1 &
wait "$job"
"""

_SCRIPT = """#!/bin/bash
# Runs one command on many hosts, which share its work by its ledger. A host that is lost gives its work back.
set -uo pipefail
hosts=({hosts})
command=$(cat <<'END_OF_COMMAND'
{command}END_OF_COMMAND
)
apostrophe="'" escaped="'\\''"
command="exec sh -c '${{command//$apostrophe/$escaped}}'" # whatever the shell of the user there is
options=(-T -o BatchMode=yes -o ConnectTimeout=15 -o ServerAliveInterval=15 -o ServerAliveCountMax=4)

exec {{hold}}< <(exec sleep infinity) # their standard input: it ends with this script, and the commands end with it
holder=$!
trap 'kill "$holder" 2>/dev/null' EXIT
trap 'exit 130' INT TERM

run() {{
  local status=0
  ssh "${{options[@]}}" -- "$1" "$command" <&"$hold" 2>&1 | sed -u "s/^/$1: /" || status=$?
  case $status in
    0) echo "$1: done" ;;
    255) echo "$1: not reached, or lost on the way; the others go on" >&2 ;;
    *) echo "$1: ended with status $status" >&2 ;;
  esac
  return "$status"
}}

pids=()
for host in "${{hosts[@]}}"; do
  run "$host" &
  pids+=($!)
done
done=0 failed=1
for pid in "${{pids[@]}}"; do
  if wait "$pid"; then done=$((done + 1)); else failed=$?; fi
done
echo "done on $done of ${{#hosts[@]}} hosts"
((done > 0)) || exit "$failed" # a host that is done has seen that all of the work is
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the way."""
    parser.add_argument(
        "--host",
        dest="hosts",
        type=_host,
        action="append",
        default=[],
        metavar="HOST",
        help="as ssh knows it, such as worker-1 or user@10.0.0.7; may be repeated",
    )
    parser.add_argument("--hosts-from", metavar="FILE", help="a list of hosts, one a line; # begins a comment")
    parser.add_argument("--folder", metavar="PATH", help="working folder on the hosts (default: where ssh arrives)")
    add_setup(parser)


def text(args: argparse.Namespace, words: Sequence[str]) -> str:
    """Return the script.

    Raises:
        UsageError: There is no host, or one twice.
    """
    hosts = [*args.hosts, *(_listed(args.hosts_from) if args.hosts_from else ())]
    if not hosts:
        raise UsageError("no hosts: name them with --host or --hosts-from")
    twice = sorted({host for host in hosts if hosts.count(host) > 1})
    if twice:
        raise UsageError(f"{twice[0]} is named twice: each host runs the command once")
    folder = [f"cd -- {shlex.quote(args.folder)}"] if args.folder else []
    setup = "".join(f"{line} || exit\n" for line in [*folder, *args.setup])
    command = _REMOTE.format(setup=setup, command=shlex.join(words))
    return _SCRIPT.format(hosts=" ".join(map(shlex.quote, hosts)), command=command)


def _listed(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.partition("#")[0].strip() for line in file]
    except OSError as error:
        raise UsageError(f"{path}: expected a list of hosts, found none: {error.strerror}") from error
    return [_known(line, path) for line in lines if line]


def _known(text: str, path: str) -> str:
    try:
        return _host(text)
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"{path}: {error}") from error


def _host(text: str) -> str:
    if not _HOST.fullmatch(text):
        raise argparse.ArgumentTypeError(f"expected the name of a host as ssh takes it, found {text!r}")
    return text
