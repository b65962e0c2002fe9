"""Stub for Beam's ``--setup_file ./setup.py``; all metadata is static in pyproject.toml.

It has only what cannot stand there: the compiled inner loops, which are left out where there is no C compiler, and
where ``LEDGERBEAM_PURE_PYTHON=1`` asks for a distribution that fits every platform.
"""

import os

from setuptools import Extension, setup

NATIVE = Extension(
    "ledgerbeam.io._native",
    ["ledgerbeam/io/_native.c", "ledgerbeam/io/_native_json.c"],
    depends=["ledgerbeam/io/_native_json.h"],
    extra_compile_args=["-O3"],
    py_limited_api=True,
    optional=True,
)
PURE = os.environ.get("LEDGERBEAM_PURE_PYTHON") == "1"

setup(
    ext_modules=[] if PURE else [NATIVE],
    options={} if PURE else {"bdist_wheel": {"py_limited_api": "cp311"}},
)
