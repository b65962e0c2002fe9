"""Beam YAML by ``python -m ledgerbeam.yaml``, with the same arguments as ``python -m apache_beam.yaml.main``."""

import runpy
import sys

from ledgerbeam._base.extensions import install_command
from ledgerbeam._base.process import import_beam


def main() -> None:
    """Run the pipeline of a YAML file, with the arguments of Beam's own program."""
    import_beam()
    try:
        import apache_beam.yaml.main  # noqa: F401, PLC0415 - fails without the packages of the extra
    except ModuleNotFoundError as error:
        sys.exit(
            f"ledgerbeam: error: Beam YAML needs the package {error.name}, which is not installed: "
            f"{install_command('yaml')}"
        )
    runpy.run_module("apache_beam.yaml.main", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
