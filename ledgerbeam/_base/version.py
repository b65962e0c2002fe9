"""Version of the library.

The package imports this module while the working folder of ``python -m ledgerbeam`` is still on the import path. So it
imports nothing: a file there, such as json.py, would run in place of a module of Python.
"""

from __future__ import annotations

__version__ = "0.1.0"
