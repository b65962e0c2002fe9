"""``ledgerbeam launch ...``: print a script or manifest that starts a command on many hosts, which share its ledger."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from ledgerbeam._base.redaction import command_without_secrets, without_secrets
from ledgerbeam.errors import UsageError
from ledgerbeam.pipelines.calls.values import parse_count, parse_size
from ledgerbeam.pipelines.cli.parser import Command, Parser, add_parser, parse_words, set_usage

PROGRAM = "ledgerbeam"
_GRACE_SECONDS = 60  # from the signal to the end of a host's time; the host then releases its claimed work at once
_RETRIES = 6  # maximum number of restarts of a pod at its index, not counting pods that a node has evicted
_USAGE = 2  # exit status of a usage error, which a retry cannot fix
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
_PLAIN = re.compile(rf"({_VARIABLE})=(.*)")
_SECRET = re.compile(rf"({_VARIABLE})=([a-z0-9.-]+):([A-Za-z0-9._-]+)")
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


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(only_prints=True)
    ways = parser.add_subparsers(dest="way", metavar="WAY", required=True, parser_class=Parser)
    for name, way in LAUNCHERS.items():
        added = add_parser(ways, name, way.text)
        way.add_arguments(added)
        added.epilog = "The command follows '--', for example: -- ledgerbeam map ... --ledger s3://bucket/progress"
        set_usage(added)
        added.usage = f"{added.usage} -- COMMAND"
    parser.set_defaults(behind_dashes="command")


def _run(args: argparse.Namespace, words: list[str]) -> int:
    check_command(words)
    print(LAUNCHERS[args.way].script(args, words), end="")
    return 0


def check_command(words: Sequence[str]) -> None:
    """Raise `UsageError` for a command with a secret, or for a command of ledgerbeam that hosts cannot share."""
    if not words:
        raise UsageError("no command: give it after '--', for example -- ledgerbeam map ... --ledger s3://bucket/run")
    for word, shown in zip(words, command_without_secrets(words), strict=True):
        # Storage options are always hidden in `shown`; the secrets in them are registered by now.
        options = word.removeprefix("--storage-options=").startswith("{")
        if shown != word and not (options and without_secrets(word) == word):
            raise UsageError(
                f"the command contains a secret, which would be printed ({' '.join(command_without_secrets(words))}); "
                "leave it out and set it on the hosts, in the environment variables that the store's client reads"
            )
    if words[0] != PROGRAM:
        return
    from ledgerbeam.io.storage.urls import is_local

    args, _beam_args = parse_words(list(words[1:]))
    if args.behind_dashes != "beam options":
        raise UsageError(f"{args.prog}: hosts cannot share this command; use a job such as ledgerbeam map")
    ledger = getattr(args, "ledger", None)
    if ledger is None or is_local(ledger):
        raise UsageError(
            f"--ledger: expected the URL of an object store, which all hosts share, found {ledger or 'none'}; "
            "use a URL such as s3://bucket/progress"
        )


class HostLauncher(NamedTuple):
    """A way to start a command on many hosts."""

    text: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    script: Callable[[argparse.Namespace, Sequence[str]], str]  # of the options and the words of the command


def _add_slurm(parser: argparse.ArgumentParser) -> None:
    _add_size(parser)
    _add_setup(parser)
    value = _matching(r"[A-Za-z0-9][A-Za-z0-9_.,:=@%+/-]*", "the value of an sbatch option, without spaces")
    parser.add_argument("--time", type=value, metavar="LIMIT", help="time limit of each host, for example 12:00:00")
    parser.add_argument("--partition", type=value, metavar="NAME", help="partition of the cluster")
    parser.add_argument("--account", type=value, metavar="NAME", help="account to charge")
    option = _matching(r"[a-z][a-z-]*(=[^\s]+)?", "NAME or NAME=VALUE such as qos=high")
    _add_repeated(parser, "--sbatch", option, "NAME=VALUE", "a further sbatch option, such as qos=high")


def _slurm_script(args: argparse.Namespace, words: Sequence[str]) -> str:
    directives = "".join(f"#SBATCH --{option}\n" for option in _directives(args))
    setup = "".join(f"{line}\n" for line in args.setup)
    return (
        f"#!/bin/bash\n{directives}set -euo pipefail\n{setup}"
        f"# exec replaces the shell, so that the command gets the signal before its time ends.\n"
        f"exec {shlex.join(words)}\n"
    )


def _directives(args: argparse.Namespace) -> Iterator[str]:
    yield f"job-name={args.name}"
    yield f"array=0-{args.hosts - 1}"
    yield "nodes=1"
    yield "ntasks=1"
    if args.cpus is not None:
        yield f"cpus-per-task={args.cpus}"
    if args.memory is not None:
        yield f"mem={_mebibytes(args.memory)}M"
    for name in ("time", "partition", "account"):
        if (value := getattr(args, name)) is not None:
            yield f"{name}={value}"
    yield "requeue"  # a preempted host is started again and resumes
    yield "open-mode=append"
    yield f"signal=B:TERM@{_GRACE_SECONDS}"
    yield "output=%x-%A_%a.log"
    yield from args.sbatch


def _add_kubernetes(parser: argparse.ArgumentParser) -> None:
    _add_size(parser)
    parser.add_argument("--image", required=True, metavar="IMAGE", help="image with ledgerbeam and your modules")
    parser.add_argument("--namespace", type=_name, metavar="NAME", help="namespace (default: kubectl's)")
    parser.add_argument("--service-account", type=_name, metavar="NAME", help="service account of the pods")
    _add_repeated(parser, "--env", _plain, "NAME=VALUE", "an environment variable that is not secret")
    text = "an environment variable from a key of a Secret of the cluster"
    _add_repeated(parser, "--secret-env", _secret, "NAME=SECRET:KEY", text)
    text = "a Secret whose keys all become environment variables"
    _add_repeated(parser, "--env-from-secret", _name, "SECRET", text)
    text = "a label that nodes must have, such as a label of spot instances"
    _add_repeated(parser, "--node-selector", _label, "LABEL=VALUE", text)


def _manifest(args: argparse.Namespace, words: Sequence[str]) -> str:
    import yaml  # type: ignore[import-untyped]

    labels = {"app.kubernetes.io/name": "ledgerbeam", "app.kubernetes.io/instance": args.name}
    rules = [
        # An evicted pod, for example of a spot instance, is not a failure.
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": {"containerName": args.name, "operator": "In", "values": [_USAGE]}},
    ]
    metadata = {"name": args.name, **({"namespace": args.namespace} if args.namespace else {}), "labels": labels}
    spec = {
        "completionMode": "Indexed",
        "completions": args.hosts,
        "parallelism": args.hosts,
        "backoffLimitPerIndex": _RETRIES,
        "podFailurePolicy": {"rules": rules},
        "template": {"metadata": {"labels": dict(labels)}, "spec": _pod(args, words)},
    }
    manifest = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
    return yaml.safe_dump(manifest, sort_keys=False, allow_unicode=True, width=10_000)


def _pod(args: argparse.Namespace, words: Sequence[str]) -> dict[str, Any]:
    container: dict[str, Any] = {"name": args.name, "image": args.image, "command": _with_workers(words, args.cpus)}
    env: list[dict[str, Any]] = [{"name": name, "value": value} for name, value in args.env]
    for name, secret, key in args.secret_env:
        env.append({"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}})
    if env:
        container["env"] = env
    if args.env_from_secret:
        container["envFrom"] = [{"secretRef": {"name": secret}} for secret in args.env_from_secret]
    sizes = {} if args.cpus is None else {"cpu": str(args.cpus)}
    sizes |= {} if args.memory is None else {"memory": f"{_mebibytes(args.memory)}Mi"}
    if sizes:
        # Pods that use more memory than requested are evicted first, so the request equals the limit.
        container["resources"] = {"requests": sizes, "limits": dict(sizes)}
    container["securityContext"] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    pod: dict[str, Any] = {"restartPolicy": "Never", "terminationGracePeriodSeconds": _GRACE_SECONDS}
    if args.service_account:
        pod["serviceAccountName"] = args.service_account
    if args.node_selector:
        pod["nodeSelector"] = {name: value for name, _, value in (text.partition("=") for text in args.node_selector)}
    return {**pod, "containers": [container]}


def _with_workers(words: Sequence[str], cores: int | None) -> list[str]:
    """Return the command with ``--workers`` set to the cores of its container; the default is all cores of the node."""
    cut = words.index("--") if "--" in words else len(words)
    given = any(word.partition("=")[0] == "--workers" for word in words[:cut])
    if words[0] != PROGRAM or cores is None or given:
        return list(words)
    return [*words[:cut], "--workers", str(cores), *words[cut:]]


def _plain(text: str) -> tuple[str, str]:
    if (found := _PLAIN.fullmatch(text)) is None:
        raise argparse.ArgumentTypeError("expected NAME=VALUE")
    name, value = found[1], found[2]
    if command_without_secrets([text]) != [text]:
        raise argparse.ArgumentTypeError(
            f"{name}: its value would be printed; use a Secret of the cluster: --secret-env {name}=SECRET:KEY"
        )
    return name, value


def _secret(text: str) -> tuple[str, str, str]:
    if (found := _SECRET.fullmatch(text)) is None:
        raise argparse.ArgumentTypeError("expected NAME=SECRET:KEY, the name of a Secret and of a key in it")
    return found[1], found[2], found[3]


def _add_ssh(parser: argparse.ArgumentParser) -> None:
    text = "name of a host for ssh, such as worker-1 or user@10.0.0.7"
    _add_repeated(parser, "--host", _host, "HOST", text, dest="hosts")
    parser.add_argument("--hosts-from", metavar="FILE", help="file with one host per line; # starts a comment")
    parser.add_argument("--folder", metavar="PATH", help="working folder on the hosts (default: the login folder)")
    _add_setup(parser)


def _ssh_script(args: argparse.Namespace, words: Sequence[str]) -> str:
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
        return [_host(line) for line in lines if line]
    except OSError as error:
        raise UsageError(f"{path}: cannot read the list of hosts: {error.strerror}") from error
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"{path}: {error}") from error


def _add_size(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hosts", type=parse_count, required=True, metavar="N", help="number of hosts")
    text = "job name (default: ledgerbeam)"
    parser.add_argument("--name", type=_name, default="ledgerbeam", metavar="NAME", help=text)
    parser.add_argument("--cpus", type=parse_count, metavar="N", help="cores of each host")
    parser.add_argument("--memory", type=parse_size, metavar="BYTES", help="memory of each host, for example 16G")


def _add_setup(parser: argparse.ArgumentParser) -> None:
    text = "a shell line that each host runs first, such as '. venv/bin/activate'"
    _add_repeated(parser, "--setup", _line, "LINE", text)


def _add_repeated(
    parser: argparse.ArgumentParser, flag: str, parse: Callable[[str], Any], metavar: str, text: str, **more: Any
) -> None:
    text = f"{text}; may be repeated"
    parser.add_argument(flag, type=parse, action="append", default=[], metavar=metavar, help=text, **more)


def _mebibytes(size: int) -> int:
    return -(-size // 2**20)


def _matching(pattern: str, expected: str) -> Callable[[str], str]:
    """Return a parser of the values that match a pattern."""

    def parse(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise argparse.ArgumentTypeError(f"expected {expected}, found {text!r}")
        return text

    return parse


_name = _matching(r"[a-z0-9]([a-z0-9-]{0,50}[a-z0-9])?", "at most 52 lowercase letters, digits and dashes")
_host = _matching(r"[A-Za-z0-9_][A-Za-z0-9_.@:-]*", "the name of a host for ssh")
_label = _matching(r"[A-Za-z0-9./_-]+=[A-Za-z0-9._-]*", "LABEL=VALUE")
_line = _matching(r"(?=.*\S)[^\n]*", "one shell line")

LAUNCHERS = {
    "slurm": HostLauncher("print the script of a Slurm array, for sbatch", _add_slurm, _slurm_script),
    "kubernetes": HostLauncher(
        "print the manifest of an indexed Job of Kubernetes, for kubectl apply", _add_kubernetes, _manifest
    ),
    "ssh": HostLauncher("print a script that runs the command on hosts of a list", _add_ssh, _ssh_script),
}

COMMANDS = {"launch": Command("print a script to start a job on many hosts", _add_arguments, _run)}
