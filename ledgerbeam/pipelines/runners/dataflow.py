"""Checks of a job for Google Dataflow before anything is staged and paid for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from ledgerbeam._base.extensions import install_command
from ledgerbeam.errors import UsageError

RUNNER = "DataflowRunner"
"""Name of Beam's runner for Dataflow."""

_CLIENT = "google.cloud.dataflow"
_CODE = ("sdk_container_image", "setup_file", "requirements_file", "extra_packages", "prebuild_sdk_container_engine")
"""Options that install code on the workers. Without one of them, the workers have only Beam."""


def check_dataflow(options: Mapping[str, Any]) -> None:
    """Raise an error for options with which the service would reject or fail the job.

    Args:
        options: Pipeline options, by name.

    Raises:
        UsageError: Google's client is missing, or the options cannot be used.
    """
    if not _has_client():
        raise UsageError(f"--runner={RUNNER} needs Google's client: {install_command('dataflow')}")
    if not any(options.get(name) for name in _CODE):
        raise UsageError(
            f"--runner={RUNNER}: its workers would not have ledgerbeam; give an image that contains it with "
            "--sdk_container_image=IMAGE (docker/README.md builds one), or install the code with --requirements_file "
            "or --setup_file"
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
    """Return whether the pipeline is only staged as a template, which the service runs later."""
    return bool(options.get("template_location"))


def _has_client() -> bool:
    try:
        return find_spec(_CLIENT) is not None
    except ModuleNotFoundError:  # the parent package is missing too
        return False
