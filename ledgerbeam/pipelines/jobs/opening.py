"""How the sources of a job are opened, by what the job is."""

from __future__ import annotations

from ledgerbeam.io import Tar
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.sources import FileSources, SharSources, Sources

__all__ = ["file_sources", "job_sources"]


def job_sources(spec: JobSpec) -> Sources:
    """Return how the sources of a job are opened."""
    graph = spec.graph()
    if graph is not None:
        return graph
    if spec.read_as == "shar":
        return SharSources(spec.index_location(), spec.build_index, spec.storage_options)
    return file_sources(spec)


def file_sources(spec: JobSpec) -> FileSources:
    """Return how the files of a job are opened, with the options of their formats."""
    return FileSources((Tar(spec.group),), spec.index_location(), spec.build_index, spec.storage_options)
