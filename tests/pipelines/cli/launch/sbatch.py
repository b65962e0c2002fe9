"""A fake ``sbatch``: it reads the directives of a script like Slurm and runs the tasks on this machine.

``sbatch --test-only SCRIPT`` only checks the script. Unknown options and invalid values are errors.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

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
    "requeue": None,
    "signal": rf"([BR]+:)?[A-Z0-9]+(@{_COUNT})?",
    "time": r"\d+|(\d+-)?\d+:\d\d(:\d\d)?",
}


def directives(script: str) -> dict[str, str]:
    """Return the options of a script: those before its first command, as Slurm reads them."""
    lines = script.splitlines()
    if not lines or not lines[0].startswith("#!"):
        raise SystemExit("sbatch: error: This does not look like a batch script")
    found = {}
    for line in lines[1:]:
        if line.startswith("#SBATCH"):
            name, _, value = line.removeprefix("#SBATCH --").partition("=")
            if name not in OPTIONS:
                raise SystemExit(f"sbatch: unrecognized option '--{name}'")
            allowed = OPTIONS[name]
            if value if allowed is None else not re.fullmatch(allowed, value):
                raise SystemExit(f"sbatch: error: Invalid --{name} specification: {value}")
            found[name] = value
        elif line and not line.startswith("#"):
            break
    return found


def main(words: list[str]) -> int:
    """Check a script, and run its array; returns 0 if all of its tasks do."""
    script = Path(words[-1]).read_text(encoding="utf-8")
    first, _, last = directives(script)["array"].partition("-")
    if "--test-only" in words:
        return 0
    tasks = []
    for number in range(int(first), int(last or first) + 1):
        env = {**os.environ, "SLURM_ARRAY_TASK_ID": str(number), "LEDGERBEAM_CACHE": f"{os.getcwd()}/cache-{number}"}
        with open(f"{number}.log", "wb") as log:
            tasks.append(subprocess.Popen(["bash", words[-1]], env=env, stdout=log, stderr=log))
    return max(task.wait() for task in tasks)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
