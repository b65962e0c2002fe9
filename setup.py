"""Stub for Beam's ``--setup_file ./setup.py``; all metadata is static in pyproject.toml.

It has only what cannot stand there: the compiled inner loops, which are left out where there is no C compiler.
"""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "ledgerbeam.io._native",
            ["ledgerbeam/io/_native.c"],
            extra_compile_args=["-O3"],
            py_limited_api=True,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
