"""The command line: ``ledgerbeam``, and ``python -m ledgerbeam``."""

from ledgerbeam._base.interrupts import end_when_interrupted

end_when_interrupted()  # before other imports, which take most of the time of a short command

import os  # noqa: E402
import sys  # noqa: E402


def _leave_working_folder() -> None:
    """Remove the working folder from the start of the import path, where `python -m` puts it.

    A file there, such as secrets.py, would run in place of a module that the library imports. Only user functions are
    imported from that folder, see `user_code/loading.py`.
    """
    try:
        folder = os.getcwd()
    except FileNotFoundError:  # the folder was removed, so it is not on the path
        return
    if sys.flags.safe_path or sys.path[0] != folder:
        return
    del sys.path[0]
    if all(finder.find_spec("ledgerbeam", None) is None for finder in sys.meta_path):  # not installed: runs from source
        sys.path.append(folder)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), folder]))


def main() -> None:
    """Run the command in the arguments of the process, and exit with its status."""
    from ledgerbeam.pipelines.cli.cli import run  # noqa: PLC0415 - after `_leave_working_folder`

    run()


if __name__ == "__main__":
    _leave_working_folder()
    main()
