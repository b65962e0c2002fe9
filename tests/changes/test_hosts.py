"""What differs between the process that began a job and the one that goes on with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.changes.places import LocalPlace, Place, check_right
from tests.pipelines.jobs.test_restart import wait_for

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

ENVIRONMENTS = {
    "locale": {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0"},
    "time zone": {"TZ": "Pacific/Apia"},
    "hash seed": {"PYTHONHASHSEED": "7"},
    "home": {"HOME": "/nonexistent"},
    "terminal": {"TERM": "dumb", "COLUMNS": "20", "NO_COLOR": "1"},
}


@pytest.mark.parametrize("what", ENVIRONMENTS)
def test_another_environment_goes_on(partly: Place, what: str) -> None:
    check_right(partly, partly.job(env=ENVIRONMENTS[what]))


def test_another_working_folder_goes_on(partly: Place) -> None:
    elsewhere = partly.workspace.root / "elsewhere"
    elsewhere.mkdir()
    there = type(partly.workspace)(elsewhere, partly.workspace.env)
    check_right(partly, there.run(*partly.command(), env=partly.env, timeout=240))


def _start_under(place: Place, prefix: list[str]) -> subprocess.Popen[str]:
    words = [*prefix, sys.executable, "-m", "ledgerbeam", *place.command()]
    env, null, pipe = {**place.workspace.env, **place.env}, subprocess.DEVNULL, subprocess.PIPE
    root = place.workspace.root
    return subprocess.Popen(words, cwd=root, env=env, stdin=null, stdout=pipe, stderr=pipe, text=True)


def _run_under(place: Place, prefix: list[str]) -> subprocess.CompletedProcess[str]:
    process = _start_under(place, prefix)
    out, err = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def _on_host(name: str) -> list[str]:
    """Return the command before one that runs it under another host name."""
    return ["unshare", "--uts", "sh", "-c", f'hostname {name} && exec "$@"', "sh"]


@pytest.mark.skipif(os.geteuid() != 0, reason="another host name needs root")
def test_another_host_name_leaves_nothing_stale(place: Place) -> None:
    """A run is killed, a source changes so that it yields fewer shards, and a container with a new name goes on."""
    place.write_sources(do="fail")
    assert _run_under(place, _on_host("first")).returncode == 3
    with _start_under(place, _on_host("second")) as killed:
        wait_for(lambda: any("000002" in name for name in place.names("ledger")), killed)  # the second run
        killed.kill()
    assert killed.returncode == -signal.SIGKILL
    place.disarm()
    place.change("truncated")
    ran = place.job()
    if ran.status == 3:  # a remote ledger: a run of another host may still be at work, so what is stale waits
        assert "out of date" in ran.err
        ran = place.job()
    check_right(place, ran)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_descriptors(place: Place, closed: str) -> None:
    if not isinstance(place, LocalPlace):
        pytest.skip("what is opened in their place is a file of the local ledger")
    place.write_sources()
    place.write_function(
        next(place.code.glob("*.py")).read_text().replace("    if ", "    print('x' * 9999)\n    if ", 1)
    )
    done = _run_under(place, ["sh", "-c", f'exec "$@" {closed}', "sh"])
    assert done.returncode == 0, done.stderr
    verified = place.run("ledger", "verify", place.url("ledger"))
    assert verified.status == 0, verified.err
    assert _run_under(place, []).returncode == 0
    assert place.outputs() == place.clean()
