"""Stub for Beam's ``--setup_file ./setup.py``; all metadata is static in pyproject.toml."""

from setuptools import setup

setup()
