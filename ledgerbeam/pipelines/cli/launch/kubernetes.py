"""``ledgerbeam launch kubernetes``: manifest of an indexed Job. Each pod is a host that shares the work."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any

from ledgerbeam.pipelines.cli.launch.command import refuse_secret, with_workers
from ledgerbeam.pipelines.cli.launch.options import add_size, mebibytes, parse_name

TEXT = "print the manifest of an indexed Job of Kubernetes, for kubectl apply"

RETRIES = 6
"""Maximum number of restarts of a pod at its index, not counting pods that a node has evicted."""

GRACE_SECONDS = 60
USAGE = 2
"""Exit status of a usage error, which a retry cannot fix."""

_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
_PLAIN = re.compile(rf"({_VARIABLE})=(.*)")
_SECRET = re.compile(rf"({_VARIABLE})=([a-z0-9.-]+):([A-Za-z0-9._-]+)")
_LABEL = re.compile(r"([A-Za-z0-9./_-]+)=([A-Za-z0-9._-]*)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the launcher."""
    add_size(parser)
    parser.add_argument("--image", required=True, metavar="IMAGE", help="image with ledgerbeam and your modules")
    parser.add_argument("--namespace", type=parse_name, metavar="NAME", help="namespace (default: kubectl's)")
    parser.add_argument("--service-account", type=parse_name, metavar="NAME", help="service account of the pods")
    parser.add_argument(
        "--env",
        type=_plain,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an environment variable that is not secret; may be repeated",
    )
    parser.add_argument(
        "--secret-env",
        type=_secret,
        action="append",
        default=[],
        metavar="NAME=SECRET:KEY",
        help="an environment variable from a key of a Secret of the cluster; may be repeated",
    )
    parser.add_argument(
        "--env-from-secret",
        type=parse_name,
        action="append",
        default=[],
        metavar="SECRET",
        help="a Secret whose keys all become environment variables; may be repeated",
    )
    parser.add_argument(
        "--node-selector",
        type=_label,
        action="append",
        default=[],
        metavar="LABEL=VALUE",
        help="a label that nodes must have, such as a label of spot instances; may be repeated",
    )


def text(args: argparse.Namespace, words: Sequence[str]) -> str:
    """Return the manifest, in YAML."""
    import yaml  # type: ignore[import-untyped]

    labels = {"app.kubernetes.io/name": "ledgerbeam", "app.kubernetes.io/instance": args.name}
    metadata = {"name": args.name, **({"namespace": args.namespace} if args.namespace else {}), "labels": labels}
    spec = {
        "completionMode": "Indexed",
        "completions": args.hosts,
        "parallelism": args.hosts,
        "backoffLimitPerIndex": RETRIES,
        "podFailurePolicy": {"rules": _rules(args.name)},
        "template": {"metadata": {"labels": dict(labels)}, "spec": _pod(args, words)},
    }
    manifest = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
    printed: str = yaml.safe_dump(manifest, sort_keys=False, allow_unicode=True, width=10_000)
    return printed


def _rules(container: str) -> list[dict[str, Any]]:
    return [
        # An evicted pod, for example of a spot instance, is not a failure.
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": {"containerName": container, "operator": "In", "values": [USAGE]}},
    ]


def _pod(args: argparse.Namespace, words: Sequence[str]) -> dict[str, Any]:
    container: dict[str, Any] = {"name": args.name, "image": args.image, "command": with_workers(words, args.cpus)}
    env: list[dict[str, Any]] = [{"name": name, "value": value} for name, value in args.env]
    env += [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
        for name, secret, key in args.secret_env
    ]
    if env:
        container["env"] = env
    if args.env_from_secret:
        container["envFrom"] = [{"secretRef": {"name": secret}} for secret in args.env_from_secret]
    if sizes := _sizes(args):
        # Pods that use more memory than requested are evicted first, so the request equals the limit.
        container["resources"] = {"requests": sizes, "limits": dict(sizes)}
    container["securityContext"] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    pod: dict[str, Any] = {"restartPolicy": "Never", "terminationGracePeriodSeconds": GRACE_SECONDS}
    if args.service_account:
        pod["serviceAccountName"] = args.service_account
    if args.node_selector:
        pod["nodeSelector"] = dict(args.node_selector)
    return {**pod, "containers": [container]}


def _sizes(args: argparse.Namespace) -> dict[str, str]:
    cpus = {} if args.cpus is None else {"cpu": str(args.cpus)}
    return {**cpus, **({} if args.memory is None else {"memory": f"{mebibytes(args.memory)}Mi"})}


def _plain(text: str) -> tuple[str, str]:
    found = _PLAIN.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError("expected NAME=VALUE")
    refuse_secret(found[1], found[2])
    return found[1], found[2]


def _secret(text: str) -> tuple[str, str, str]:
    found = _SECRET.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError("expected NAME=SECRET:KEY, the name of a Secret and of a key in it")
    return found[1], found[2], found[3]


def _label(text: str) -> tuple[str, str]:
    found = _LABEL.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"expected LABEL=VALUE, found {text!r}")
    return found[1], found[2]
