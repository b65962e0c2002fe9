"""What a job for Google Dataflow must keep, known before anything is staged there and paid for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from ledgerbeam._base.extras import install_command
from ledgerbeam.errors import UsageError

RUNNER = "DataflowRunner"
"""The name of Beam's runner for it."""

_CLIENT = "google.cloud.dataflow"
_CODE = ("sdk_container_image", "setup_file", "requirements_file", "extra_packages", "prebuild_sdk_container_engine")
"""Options that bring code to the workers: without one they have Beam alone."""


def check_dataflow(options: Mapping[str, Any]) -> None:
    """Refuse options with which the service would not run the job, or would run it in vain.

    Args:
        options: Of the pipeline, by name.

    Raises:
        UsageError: Google's client is missing, or the options cannot mean what they say.
    """
    if not _has_client():
        raise UsageError(f"--runner={RUNNER} needs Google's client: {install_command('dataflow')}")
    if not any(options.get(name) for name in _CODE):
        raise UsageError(
            f"--runner={RUNNER}: its workers would not have ledgerbeam; name an image that has, with "
            "--sdk_container_image=IMAGE (docker/README.md builds one), or bring the code with --requirements_file or "
            "--setup_file"
        )
    if options.get("environment_type"):
        found = options["environment_type"]
        raise UsageError(f"--environment_type={found}: the service starts its own workers; leave the option out")
    if options.get("update"):
        raise UsageError(
            "--update: the service updates streaming jobs only; cancel the job, then run the same command again: it "
            "continues from the ledger"
        )


def is_template(options: Mapping[str, Any]) -> bool:
    """Return whether the pipeline is only staged, and the service runs it when this process has ended."""
    return bool(options.get("template_location"))


def _has_client() -> bool:
    try:
        return find_spec(_CLIENT) is not None
    except ModuleNotFoundError:  # not even the package that it would be in
        return False
