"""What is refused of a job for Dataflow before anything is staged; the runs are in tests/matrix."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ledgerbeam._base.extensions import install_command
from ledgerbeam.errors import UsageError
from ledgerbeam.pipelines.runners.beam import check_dataflow, check_options
from tests.servers import pins

IMAGE = {"sdk_container_image": "registry.example/worker:1"}
needs_client = pytest.mark.skipif(not pins.DATAFLOW.ready, reason=f"no venv with Google's client: {pins.REMEDY}")


def ask(folder: Path, python: str, *options: str) -> str:
    """Return how a small job with Beam options is refused."""
    (folder / "a.jsonl").write_text('{"id": 1}\n')
    command = [python, "-m", "ledgerbeam", "convert", "a.jsonl", "--output", "out", "--to", "jsonl", "--", *options]
    asked = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(pins.ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert asked.returncode == 2, asked.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["a.jsonl"]
    return asked.stderr


@pytest.mark.parametrize("name", ["DataflowRunner", "dataflow", "apache_beam.runners.DataflowRunner"])
def test_without_the_client_it_is_told_how_to_get_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ledgerbeam.pipelines.runners.beam._CLIENT", "google.cloud.no_such_client")
    with pytest.raises(UsageError, match=r"needs Google's client: pip install .*\[dataflow\]'"):
        check_options([f"--runner={name}"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "its workers would not have ledgerbeam"),
        ({**IMAGE, "environment_type": "LOOPBACK"}, "--environment_type=LOOPBACK: the service starts its own workers"),
        ({**IMAGE, "update": True}, "--update: the service updates streaming jobs only; cancel the job"),
    ],
)
def test_what_the_service_would_not_run(options: dict[str, object], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ledgerbeam.pipelines.runners.beam._CLIENT", "json")
    with pytest.raises(UsageError, match=said):
        check_dataflow(options)


@pytest.mark.parametrize("options", [IMAGE, {"requirements_file": "r.txt"}, {"setup_file": "./setup.py"}])
def test_any_way_to_bring_code_will_do(options: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ledgerbeam.pipelines.runners.beam._CLIENT", "json")
    check_dataflow(options)


@pytest.mark.slow
@needs_client
def test_a_mistyped_option_and_a_folder_of_this_machine_are_refused(tmp_path: Path) -> None:
    python = pins.DATAFLOW.python
    assert "unknown Beam options: --sdk_container_imag=x" in ask(
        tmp_path, python, "--runner=DataflowRunner", "--sdk_container_imag=x"
    )
    said = ask(tmp_path, python, "--runner=DataflowRunner", "--sdk_container_image=x")
    assert "must be on an object store: workers of DataflowRunner may run on other machines" in said


def test_this_environment_has_no_client_and_says_so(tmp_path: Path) -> None:
    try:
        import google.cloud.dataflow  # type: ignore[import-untyped]  # noqa: F401
    except ModuleNotFoundError:
        assert install_command("dataflow") in ask(tmp_path, sys.executable, "--runner=DataflowRunner")
    else:
        pytest.skip("Google's client is here: run it in an environment without the extra dataflow")
