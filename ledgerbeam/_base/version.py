"""Version of the library.

With ``python -m ledgerbeam``, this module is imported while the working folder is still on the import path. So it
imports nothing: a file there, such as json.py, would run in place of a module of Python.
"""

from __future__ import annotations

__version__ = "0.1.0"
