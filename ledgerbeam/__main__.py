"""``python -m ledgerbeam`` is the command line."""

import os
import sys


def _leave_working_folder() -> None:
    """Take the working folder from the beginning of the import path, where `python -m` has put it.

    A file there, such as secrets.py, would run in place of a module that the library imports. Only a user's function is
    looked for in that folder, see `ledger/model/user_code.py`.
    """
    try:
        folder = os.getcwd()
    except FileNotFoundError:  # it was removed, and so is not on the path
        return
    if sys.flags.safe_path or sys.path[0] != folder:
        return
    del sys.path[0]
    if all(finder.find_spec("ledgerbeam", None) is None for finder in sys.meta_path):  # it runs from its own sources
        sys.path.append(folder)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), folder]))


_leave_working_folder()

from ledgerbeam.pipelines.commands.cli import run  # noqa: E402

run()
