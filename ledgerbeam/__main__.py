"""The command line: ``ledgerbeam``, and ``python -m ledgerbeam``."""

from ledgerbeam._base.interrupts import end_when_interrupted

end_when_interrupted()  # before all else is imported, which takes most of the time of a short command

import os  # noqa: E402
import sys  # noqa: E402


def _leave_working_folder() -> None:
    """Take the working folder from the beginning of the import path, where `python -m` has put it.

    A file there, such as secrets.py, would run in place of a module that the library imports. Only a user's function is
    looked for in that folder, see `user_code/loading.py`.
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


def main() -> None:
    """Run the command that the arguments of the process say, and end it."""
    from ledgerbeam.pipelines.cli.cli import run  # noqa: PLC0415 - see above

    run()


if __name__ == "__main__":
    _leave_working_folder()
    main()
