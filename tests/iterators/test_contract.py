"""Processes that the contract tests of nodes start end with their parent."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.pages import ROOT
from tests.servers.process import wait_until

_ENDS_AT_ONCE = """
import multiprocessing, os
from ledgerbeam.iterators import Records
from ledgerbeam.iterators.testing import rest_in_another_process

if __name__ == "__main__":
    node = Records([1, 2, 3], name="numbers")
    assert rest_in_another_process(node, node.state_dict(), 9) == [1, 2, 3]
    (child,) = multiprocessing.active_children()
    print(child.pid, flush=True)
    os._exit(0)
"""


def test_the_other_process_ends_with_one_that_ends_without_a_word(tmp_path: os.PathLike[str]) -> None:
    script = os.path.join(tmp_path, "script.py")
    with open(script, "w", encoding="utf-8") as file:
        file.write(_ENDS_AT_ONCE)
    ran = subprocess.run([sys.executable, script], stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    assert wait_until(lambda: not _lives(int(ran.stdout)), seconds=20)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


NAMES = ("iterators", "iterator-nodes", "iterator-shuffle", "training-loaders", "materialize", "write-a-node")


def test_the_pages_name_every_node_and_function() -> None:
    from ledgerbeam import iterators as graph

    text = "\n".join((ROOT / "docs" / f"{name}.md").read_text() for name in NAMES)
    helpers = {"State", "Token", "Permutation"}
    assert not [name for name in graph.__all__ if name not in text and name not in helpers]
