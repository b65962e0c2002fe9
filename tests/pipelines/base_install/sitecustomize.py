"""Hide from the jobs of tests what an installation without extras lacks, and what no job uses.

Python imports a module of this name before anything else, if it lies on PYTHONPATH. Beam imports pandas and the clients
of three clouds wherever they are installed, as the extras for tests bring them: 0.8 of the 2 seconds that its import
takes of a processor, in every job. Storage is reached through fsspec, which is not touched.
"""

import sys

for _name in (
    "apache_beam.io.aws.s3filesystem",
    "apache_beam.io.azure.blobstoragefilesystem",
    "apache_beam.io.gcp.gcsfilesystem",
    "apache_beam.io.hadoopfilesystem",
    "pandas",
):
    sys.modules[_name] = None  # type: ignore[assignment]  # importing it raises ModuleNotFoundError
