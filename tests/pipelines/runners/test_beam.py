"""Runs on other runners: options, places, and checks for Dataflow; the runs are in tests/matrix."""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from apache_beam.metrics.cells import DistributionData, DistributionResult
from apache_beam.metrics.execution import MetricKey, MetricResult
from apache_beam.metrics.metricbase import MetricName
from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions

from ledgerbeam._base.extensions import install_command
from ledgerbeam.errors import LedgerbeamError, UsageError
from ledgerbeam.ledger.model.rows import WorkTime
from ledgerbeam.pipelines.runners.beam import (
    _counted_set_ups,
    _counted_time,
    _last_line,
    _remedy,
    _with_long_timeout,
    check_dataflow,
    check_options,
)
from tests.cases import each
from tests.pipelines.conftest import Workspace
from tests.servers import pins, prism

JAVA = """Pipeline failed in state FAILED: org.example.RestClientException: [Could not upload job files.
	at org.example.Submit.upload(Submit.java:86)
Caused by: java.io.IOException: Could not connect to BlobServer at address localhost/127.0.0.1:35769
	... 11 more
Caused by: java.net.ConnectException: Connection refused
	at java.base/sun.nio.ch.Net.connect0(Native Method)
	... 13 more
]"""

SPARK = """Only one SparkContext should be running in this JVM (see SPARK-2243).The other one was created at:
org.apache.spark.api.java.JavaSparkContext.<init>(JavaSparkContext.scala:58)
\tat scala.Option.foreach(Option.scala:407)
java.base/jdk.internal.reflect.NativeMethodAccessorImpl.invoke0(Native Method)
java.base/java.lang.Thread.run(Thread.java:840)
"""


@each(
    ("text", "told"),
    [
        (JAVA, "RuntimeError: java.net.ConnectException: Connection refused"),
        (SPARK, f"RuntimeError: {SPARK.splitlines()[0]}"),
        ("one\ntwo\n", "RuntimeError: two"),
        ("one\n]\n", "RuntimeError: one"),
        ("Pipeline failed. State: CANCELLED, Error:\nNone", "RuntimeError: Pipeline failed. State: CANCELLED"),
        ("", "RuntimeError: "),
    ],
)
def test_an_error_is_told_by_its_cause(text: str, told: str) -> None:
    assert _last_line(RuntimeError(text)) == told


def test_spark_s_job_server_that_is_at_work_is_told_with_a_remedy() -> None:
    assert "wait for its job, or cancel it" in _remedy(RuntimeError(SPARK))
    assert _remedy(RuntimeError(JAVA)) == ""


def test_counters_that_are_not_to_be_had_change_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Result:
        def metrics(self) -> None:
            raise ConnectionError("the service is gone")

    assert _counted_set_ups(Result()).times == 0
    assert "counters could not be read: ConnectionError: the service is gone" in caplog.text


def test_set_ups_and_times_of_all_steps_are_added_up() -> None:
    def metric(step: str, name: str, value: object) -> MetricResult:
        return MetricResult(MetricKey(step, MetricName("ledgerbeam", name)), value, value)

    set_up = DistributionResult(DistributionData(3000, 2, 1000, 2000))
    counters = [metric("one", "read_us", 1_500_000), metric("two", "read_us", 500_000), metric("one", "tasks_us", 7)]
    counters += [metric("one", "records_read", 9), metric("one", "publish_us", None)]

    class Result:
        def metrics(self) -> Result:
            return self

        def query(self, wanted: object) -> dict[str, list[MetricResult]]:
            return {"counters": counters, "distributions": [metric("one", "set_up_ms", set_up)]}

    assert _counted_set_ups(Result()) == (2, 3.0, 2.0)
    assert _counted_time(Result()) == WorkTime(0, {"read": 2.0})


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        (["--runner=PrismRunner"], 10 * 365 * 86_400),
        (["--runner=prism"], 10 * 365 * 86_400),
        (["--runner=PrismRunner", "--job_server_timeout=7"], 7),
        (["--runner=FnApiRunner"], 300),
    ],
)
def test_a_long_job_does_not_end_at_a_deadline_of_beam(words: list[str], seconds: int) -> None:
    options = PipelineOptions(_with_long_timeout(words))
    assert options.view_as(PortableOptions).job_server_timeout == seconds


def test_a_job_server_that_does_not_answer_is_told_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    default = PortableOptions._add_argparse_args

    def hurried(parser: argparse.ArgumentParser) -> None:
        default(parser)
        parser.set_defaults(job_server_timeout=1)

    monkeypatch.setattr(PortableOptions, "_add_argparse_args", hurried)
    with socket.create_server(("127.0.0.1", 0)) as nobody:  # takes connections, and says nothing
        words = ["--runner=PortableRunner", f"--job_endpoint=127.0.0.1:{nobody.getsockname()[1]}"]
        with pytest.raises(LedgerbeamError, match="no job server has answered for 1 s"):
            _with_long_timeout(words)


IMAGE = {"sdk_container_image": "registry.example/worker:1"}
needs_client = pytest.mark.skipif(not pins.DATAFLOW.ready, reason=f"no venv with Google's client: {pins.REMEDY}")


def ask(folder: Path, python: str, *options: str) -> str:
    """Return how a small job with Beam options is refused."""
    (folder / "a.jsonl").write_text('{"id": 1}\n')
    command = [python, "-m", "ledgerbeam", "convert", "a.jsonl", "--output", "out", "--to", "jsonl", "--", *options]
    asked = subprocess.run(command, cwd=folder, env=pins.environment(), capture_output=True, text=True, check=False)
    assert asked.returncode == 2, asked.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["a.jsonl"]
    return asked.stderr


@pytest.mark.parametrize("name", ["DataflowRunner", "dataflow", "apache_beam.runners.DataflowRunner"])
def test_without_the_client_it_is_told_how_to_get_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ledgerbeam.pipelines.runners.beam._CLIENT", "google.cloud.no_such_client")
    with pytest.raises(UsageError, match=r"needs Google's client: pip install .*\[dataflow\]'"):
        check_options([f"--runner={name}"], {})


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
    for code in (IMAGE, {"requirements_file": "r.txt"}, {"setup_file": "./setup.py"}):  # any way to bring it will do
        check_dataflow(code)


@pytest.mark.slow
@needs_client
def test_a_mistyped_option_and_a_folder_of_this_machine_are_refused(tmp_path: Path) -> None:
    python = pins.DATAFLOW.python
    for option, said in (
        ("--sdk_container_imag=x", "unknown Beam options: --sdk_container_imag=x"),
        ("--sdk_container_image=x", "must be on an object store: workers of DataflowRunner may run on other machines"),
    ):
        assert said in ask(tmp_path, python, "--runner=DataflowRunner", option)


@pytest.mark.slow
def test_this_environment_has_no_client_and_says_so(tmp_path: Path) -> None:
    try:
        import google.cloud.dataflow  # type: ignore[import-untyped]  # noqa: F401
    except ModuleNotFoundError:
        assert install_command("dataflow") in ask(tmp_path, sys.executable, "--runner=DataflowRunner")
    else:
        pytest.skip("Google's client is here: run it in an environment without the extra dataflow")


def processes_of(program: Path) -> list[int]:
    """Return the processes of a program, which is known by the path with which it was started."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:  # it has ended
            continue
        if words[0] == os.fsencode(program):
            found.append(int(pid))
    return found


@pytest.mark.skipif(prism.missing() is not None, reason="no Prism")
@pytest.mark.slow
@pytest.mark.parametrize("function", ["upper", "wrong_shape"])
def test_no_prism_outlives_its_command(workspace: Workspace, function: str) -> None:
    own = workspace.root / "prism-of-this-test"
    own.symlink_to(pins.PRISM.path)
    workspace.jsonl("in/a.jsonl", 3)
    job = ("map", f"functions:{function}", "in/*.jsonl", "--output", "out", "--to", "jsonl")
    ran = workspace.run(*job, "--", "--runner=PrismRunner", f"--prism_location={own}")
    assert (ran.status == 0) == (function == "upper"), ran.err
    assert processes_of(own) == []
