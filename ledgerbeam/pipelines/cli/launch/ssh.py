"""``ledgerbeam launch ssh``: a script that runs the command on a list of hosts and reports lost hosts."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence

from ledgerbeam.errors import UsageError
from ledgerbeam.pipelines.cli.launch.options import add_setup

TEXT = "print a script that runs the command on hosts of a list"

_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@:-]*")

# Script on the host: it stops the command when the connection ends. Otherwise the command could outlive it.
_REMOTE = """{setup}exec 3<&0
{command} </dev/null 3<&- &
job=$!
{{ cat <&3; kill -TERM "$job"; }} >/dev/null 2>&1 &
wait "$job"
"""

_SCRIPT = """#!/bin/bash
# Runs one command on many hosts, which share its work by its ledger. Other hosts take over the work of a lost host.
set -uo pipefail
hosts=({hosts})
command=$(cat <<'END_OF_COMMAND'
{command}END_OF_COMMAND
)
apostrophe="'" escaped="'\\''"
command="exec sh -c '${{command//$apostrophe/$escaped}}'" # for any login shell
options=(-T -o BatchMode=yes -o ConnectTimeout=15 -o ServerAliveInterval=15 -o ServerAliveCountMax=4)

exec {{hold}}< <(exec sleep infinity) # stdin of the commands: it closes with this script, and stops them
holder=$!
trap 'kill "$holder" 2>/dev/null' EXIT
trap 'exit 130' INT TERM

run() {{
  local status=0
  ssh "${{options[@]}}" -- "$1" "$command" <&"$hold" 2>&1 | sed -u "s/^/$1: /" || status=$?
  case $status in
    0) echo "$1: done" ;;
    255) echo "$1: not reached, or connection lost; the other hosts continue" >&2 ;;
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
((done > 0)) || exit "$failed" # a host that is done has seen that all work is done
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the launcher."""
    parser.add_argument(
        "--host",
        dest="hosts",
        type=_host,
        action="append",
        default=[],
        metavar="HOST",
        help="name of a host for ssh, such as worker-1 or user@10.0.0.7; may be repeated",
    )
    parser.add_argument("--hosts-from", metavar="FILE", help="file with one host per line; # starts a comment")
    parser.add_argument("--folder", metavar="PATH", help="working folder on the hosts (default: the login folder)")
    add_setup(parser)


def text(args: argparse.Namespace, words: Sequence[str]) -> str:
    """Return the script.

    Raises:
        UsageError: No host is named, or a host is named twice.
    """
    hosts = [*args.hosts, *(_listed(args.hosts_from) if args.hosts_from else ())]
    if not hosts:
        raise UsageError("no hosts: name them with --host or --hosts-from")
    twice = sorted({host for host in hosts if hosts.count(host) > 1})
    if twice:
        raise UsageError(f"{twice[0]}: the host is named twice; name each host once")
    folder = [f"cd -- {shlex.quote(args.folder)}"] if args.folder else []
    setup = "".join(f"{line} || exit\n" for line in [*folder, *args.setup])
    command = _REMOTE.format(setup=setup, command=shlex.join(words))
    return _SCRIPT.format(hosts=" ".join(map(shlex.quote, hosts)), command=command)


def _listed(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.partition("#")[0].strip() for line in file]
    except OSError as error:
        raise UsageError(f"{path}: cannot read the list of hosts: {error.strerror}") from error
    return [_known(line, path) for line in lines if line]


def _known(text: str, path: str) -> str:
    try:
        return _host(text)
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"{path}: {error}") from error


def _host(text: str) -> str:
    if not _HOST.fullmatch(text):
        raise argparse.ArgumentTypeError(f"expected the name of a host for ssh, found {text!r}")
    return text
