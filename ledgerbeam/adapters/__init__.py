"""Adapters of other libraries, and the base class of adapters.

`Adapter` is the base class of an adapter of your own, and `testing` has tests for it. `datatrove` and `datasets` are
built in. They import their libraries only if a job uses them.
"""

from ledgerbeam.user_code.adapters import Adapter, file_checksums, package_versions

__all__ = ["Adapter", "file_checksums", "package_versions"]
