"""What is submitted to Dataflow, and what becomes of a job that is cancelled, doubled, or launched by a template."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from apache_beam.portability.api import beam_runner_api_pb2

from ledgerbeam.io.storage.objects import ObjectFolder
from tests.matrix.runs import Contents, Launcher
from tests.servers import dataflow, pins
from tests.servers.dataflow import IMAGE, Dataflow, DataflowJob
from tests.servers.process import wait_until

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.timeout(600)]

FILES, RECORDS, TASK_BYTES = 6, 60, "1000"
FLEX = pins.ROOT / "docker" / "flex"
SECRET = "kept-out-of-what-is-staged"
STEPS = {"MatchSources", "SkipCompleted", "PlanTasks", "ReadTasks", "ProcessTask", "WriteTasks", "CommitTasks"}


class Work:
    """A job on the service, its sources in a bucket of their own."""

    def __init__(self, service: Dataflow, folder: Path) -> None:
        self.service = service
        self.root = service.storage.place()
        self.objects = ObjectFolder(self.root, service.storage.options)
        self._folder = folder
        own = {"LEDGERBEAM_CACHE": str(folder / "cache"), "AWS_SECRET_ACCESS_KEY": SECRET}
        self.env = pins.environment({**service.env, **own})
        for number in range(FILES):
            rows = [{"id": number * RECORDS + at, "text": f"text {at}"} for at in range(RECORDS)]
            self.objects.create(f"in/{number}.jsonl", b"".join(json.dumps(row).encode() + b"\n" for row in rows))

    def start(self, output: str, *options: str, local: bool = False) -> Launcher:
        to = ["--output", f"{self.root}/{output}", "--to", "jsonl", "--ledger", f"{self.root}/{output}-ledger"]
        command = ["map", "tests.matrix.work:work", f"{self.root}/in/*.jsonl", *to, "--on-error", "reject"]
        command += ["--task-bytes", TASK_BYTES, "--flush-interval", "0.3"]
        command += ["--workers", "2"] if local else ["--", *self.service.options, *options]
        log = self._folder / f"{output}-{len(list(self._folder.iterdir()))}.log"
        return Launcher(command, self._folder, self.env, log, python=pins.DATAFLOW.python)

    def wait_for_work(self, output: str, launcher: Launcher) -> DataflowJob:
        def has_begun() -> bool:
            return launcher.ended or any("/t-" in name for name in self.objects.names(f"{output}-ledger/segments"))

        assert wait_until(has_begun, seconds=240)
        assert not launcher.ended, launcher.log()
        return self.service.last()

    def status(self, output: str) -> Any:
        command = [pins.DATAFLOW.python, "-m", "ledgerbeam", "ledger", "status", f"{self.root}/{output}-ledger"]
        return json.loads(subprocess.check_output([*command, "--json"], env=self.env))

    def contents(self, output: str) -> Contents:
        names = [name for name in self.objects.names(output) if "/_ledgerbeam/" not in name]
        return {name[len(output) :]: data for name, data in zip(names, self.objects.read(names), strict=True)}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Work]:
    if (missing := dataflow.missing()) is not None:
        pytest.skip(missing)
    folder = tmp_path_factory.mktemp("dataflow")
    (folder / "jobs").mkdir()
    with dataflow.dataflow(folder, env={"LEDGERBEAM_CACHE": str(folder / "workers")}) as service:
        yield Work(service, folder / "jobs")


@pytest.fixture(scope="module")
def reference(work: Work) -> Contents:
    """What the local runner leaves."""
    launcher = work.start("local", local=True)
    assert launcher.end() == 0, launcher.log()
    return work.contents("local")


def committed(job: DataflowJob) -> int:
    """Return the counter of recorded tasks, as the service tells it."""
    counted = [row for row in job.metrics() if row["name"]["name"] == "tasks_committed"]
    return sum(row["scalar"] for row in counted if "tentative" not in row["name"]["context"])


def steps(job: DataflowJob) -> dict[str, beam_runner_api_pb2.PTransform]:
    """Return the parts of a pipeline that are run, by the name that the service shows."""
    parts = job.pipeline.components.transforms.values()
    return {part.unique_name: part for part in parts if not part.subtransforms}


def shown(part: beam_runner_api_pb2.PTransform) -> dict[str, str]:
    """Return the display data of a step."""
    found = {}
    for told in part.display_data:
        row = beam_runner_api_pb2.LabelledPayload.FromString(told.payload)
        found[row.key or row.label] = row.string_value
    return found


def test_what_is_submitted(work: Work, reference: Contents) -> None:
    launcher = work.start("first", "--max_num_workers=7", "--machine_type=n2-standard-8", "--labels=team=texts")
    assert launcher.end() == 0, launcher.log()
    assert work.contents("first") == reference
    job = work.service.last()
    (pool,) = job.told["environment"]["workerPools"]
    assert pool["workerHarnessContainerImage"] == IMAGE
    (image,) = pool["sdkHarnessContainerImages"]
    assert (image["containerImage"], image["useSingleCorePerContainer"]) == (IMAGE, True)  # a process a core
    assert (pool["autoscalingSettings"], pool["machineType"]) == ({"maxNumWorkers": 7}, "n2-standard-8")
    assert job.told["labels"] == {"team": "texts"}
    assert "use_runner_v2" in job.told["environment"]["experiments"]
    assert set(job.staged) == {"submission_environment_dependencies.txt"}
    assert (job.options["runner"], job.options["sdk_container_image"]) == ("DataflowRunner", IMAGE)
    assert {name.partition("/")[0] for name in steps(job)} == STEPS
    assert shown(steps(job)["WriteTasks/WriteTasks"]).items() >= {"output": f"{work.root}/first", "to": "jsonl"}.items()
    assert "tests.matrix.work:work" in shown(steps(job)["ProcessTask/ProcessTask"])["function"]
    assert committed(job) == work.status("first")["tasks"]["done"] > FILES
    assert SECRET not in json.dumps(job.told)
    assert SECRET.encode() not in job.pipeline.SerializeToString()


def test_a_rerun_has_the_same_steps_and_does_nothing(work: Work, reference: Contents) -> None:
    before = work.service.last()
    launcher = work.start("first")
    assert launcher.end() == 0, launcher.log()
    assert "0 tasks and 0 records in this run" in launcher.log()
    assert steps(work.service.last()).keys() == steps(before).keys()
    assert work.contents("first") == reference


def test_a_cancelled_job_goes_on_when_it_is_submitted_again(work: Work, reference: Contents) -> None:
    launcher = work.start("cancelled")
    work.wait_for_work("cancelled", launcher).request("JOB_STATE_CANCELLED")
    assert launcher.end() == 1
    assert "CANCELLED" in launcher.log()
    again = work.start("cancelled")
    assert again.end() == 0, again.log()
    assert work.contents("cancelled") == reference


def test_work_that_is_given_to_two_workers_counts_once(work: Work, reference: Contents) -> None:
    """As when the service gives up a worker that only stands still: here all of the job is given to another."""
    launcher = work.start("twice")
    first = work.wait_for_work("twice", launcher)
    with stopped(work.service.workers):
        work.service.create({**first.told, "name": "again"})
        second = work.service.last()
        assert wait_until(lambda: second.ended, seconds=120)
    assert launcher.end() == 0, launcher.log()
    assert (first.answer()["currentState"], second.answer()["currentState"]) == ("JOB_STATE_DONE", "JOB_STATE_DONE")
    status = work.status("twice")
    assert (status["complete"], status["records"]["read"]) == (True, FILES * RECORDS)
    assert committed(first) + committed(second) > status["tasks"]["done"] > committed(second) > 0
    assert work.contents("twice") == reference


def test_a_name_keeps_a_job_from_being_submitted_twice(work: Work, reference: Contents) -> None:
    first = work.start("named", "--job_name=clean-texts")
    work.wait_for_work("named", first)
    with stopped(work.service.workers):
        second = work.start("named", "--job_name=clean-texts")
        assert second.end() == 1
    assert "clean-texts: there is already an active job of this name" in second.log()
    assert first.end() == 0, first.log()
    assert work.contents("named") == reference


def test_a_flex_template_stages_what_the_service_then_runs(work: Work, reference: Contents) -> None:
    metadata = json.loads((FLEX / "metadata.json").read_text())
    place = {"output": f"{work.root}/flex", "ledger": f"{work.root}/flex-ledger", "task_bytes": TASK_BYTES}
    given = {"function": "tests.matrix.work:work", "sources": f"{work.root}/in/*.jsonl", "on_error": "reject", **place}
    parameters = {**given, "to": "jsonl", "sdk_container_image": IMAGE}
    assert {row["name"] for row in metadata["parameters"]} == parameters.keys()
    for row in metadata["parameters"]:
        assert row.keys() <= {"name", "label", "helpText", "isOptional", "regexes", "paramType"}
        assert all(re.search(regex, parameters[row["name"]]) for regex in row["regexes"]), row
    dockerfile = (FLEX / "Dockerfile").read_text()
    (program,) = re.findall(r"^ENV FLEX_TEMPLATE_PYTHON_PY_FILE=/template/(.+)$", dockerfile, re.MULTILINE)
    before = len(work.service.jobs)
    launched = launch(work, FLEX / program, parameters)
    assert launched.returncode == 0, launched.stderr
    assert len(work.service.jobs) == before  # what the launcher has staged, the service submits by itself
    (staged,) = work.objects.read(["launches/job_object"])
    assert staged is not None
    work.service.create(json.loads(staged))
    job = work.service.last()
    assert wait_until(lambda: job.ended, seconds=120)
    assert work.contents("flex") == reference
    last = work.start("flex")
    assert last.end() == 0, last.log()
    assert "0 tasks and 0 records in this run" in last.log()


def test_a_template_without_a_parameter_says_so(work: Work) -> None:
    launched = launch(work, FLEX / "launch.py", {"function": "tests.matrix.work:work"})
    assert launched.returncode == 2
    assert "the following arguments are required: --sources, --output, --ledger" in launched.stderr


@contextlib.contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    """Have processes stand still."""
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def test_a_pipeline_of_the_user_is_submitted_or_staged(work: Work) -> None:
    place = ["--output", f"{work.root}/own", "--ledger", f"{work.root}/own-ledger"]
    program = [pins.DATAFLOW.python, str(pins.ROOT / "examples" / "own_pipeline.py"), f"{work.root}/in/*.jsonl"]
    for more in ([f"--template_location={work.root}/launches/own"], []):
        command = [*program, *place, *work.service.options, *more]
        ran = subprocess.run(command, env=work.env, capture_output=True, text=True, timeout=240, check=False)
        assert ran.returncode == 0, ran.stderr
        assert bool(more) == (not work.contents("own"))
    assert ran.stdout == f"{FILES} sources complete, 0 open, 0 failed\n"
    rows = [row for data in work.contents("own").values() if data is not None for row in data.splitlines()]
    assert len({json.loads(row)["text"] for row in rows if row.startswith(b"{")}) == RECORDS


def launch(work: Work, program: Path, parameters: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Run the program of a template with the options that Google's launcher gives it."""
    own = {"template_location": f"{work.root}/launches/job_object", "job_name": "from-template"}
    beam = [option for option in work.service.options if "sdk_container_image" not in option]
    options = [f"--{name}={value}" for name, value in {**parameters, **own}.items()]
    command = [pins.DATAFLOW.python, str(program), *beam, *options]
    return subprocess.run(command, env=work.env, capture_output=True, text=True, timeout=120, check=False)
