"""Hide from the jobs of tests what an installation without extras lacks, and what no job uses.

Python imports a module of this name before anything else, if it lies on PYTHONPATH. Beam imports pandas and the clients
of three clouds wherever they are installed, as the extras for tests bring them: 0.8 of the 2 seconds that its import
takes of a processor, in every job. Storage is reached through fsspec, which is not touched.
"""

import sys
from collections.abc import Sequence
from types import ModuleType

_HIDDEN = frozenset(
    {
        "apache_beam.io.aws.s3filesystem",
        "apache_beam.io.azure.blobstoragefilesystem",
        "apache_beam.io.gcp.gcsfilesystem",
        "apache_beam.io.hadoopfilesystem",
        "pandas",
    }
)


class _Hider:
    """Finds first that a hidden module is not there. None in `sys.modules` would do for Python, not for Cython."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        if name in _HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, _Hider)
