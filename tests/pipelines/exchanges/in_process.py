"""Calls of exchanges whose tasks are done in the process of the test: the launcher, and no worker beside it."""

from __future__ import annotations

import socket
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, cast

import ledgerbeam
from ledgerbeam._base.forking import ProcessGroup
from ledgerbeam.ledger.worker.writer import close_shared_writers
from ledgerbeam.pipelines.calls.call import prepare, spec_of
from ledgerbeam.pipelines.console.run_progress import RunProgress
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.pipelines.runners.job_files import DONE, TRACEBACK, load_job, load_rows, touch
from ledgerbeam.pipelines.runners.stage_loop import PreparedCall
from ledgerbeam.pipelines.runners.waves import Imports, Waves
from ledgerbeam.transforms.chain.base import ChainValues, LedgerHandle
from ledgerbeam.transforms.chain.commit import CommitStep


class Told:
    """The `RunConsole` of a call: keeps what it is told."""

    command: Sequence[str] | None = None

    def __init__(self) -> None:
        self.said: list[str] = []
        self.warned: list[str] = []
        self.result: ledgerbeam.Result | None = None

    def say(self, text: str) -> None:
        self.said.append(text)

    def warn(self, text: str) -> None:
        self.warned.append(text)

    def progress(self) -> AbstractContextManager[None]:
        return nullcontext()

    def update(self, now: RunProgress) -> None:
        pass

    def counting(self, noun: str) -> AbstractContextManager[Any]:
        return nullcontext(lambda *_: None)

    def ended(self, result: ledgerbeam.Result) -> None:
        self.result = result


class HereWaves(Waves):
    """Waves whose tasks are done before `start` returns."""

    def __init__(self) -> None:
        super().__init__("warning")
        self.started: list[str] = []  # ledgers of the jobs of all waves

    def prepare(self, imports: Imports) -> Any:
        """Begin nothing."""

    def start(self, imports: Imports, arguments: Sequence[str], environment: Mapping[str, str]) -> ProcessGroup:
        path, _, sources = arguments
        job = load_job(Path(path).read_bytes(), {})
        self.started.append(job.ledger)
        try:
            self.work(job, load_rows(sources))
        except Exception:  # noqa: BLE001 - as the process of a wave does
            touch(str(job.run_dir), TRACEBACK, traceback.format_exc())
        else:
            touch(str(job.run_dir), DONE)
        told, other = socket.socketpair()
        other.close()
        return ProcessGroup(told)

    def work(self, job: JobSpec, sources: Iterable[Any]) -> None:
        """Do the tasks of open sources, as the chain of the job does them."""
        handle = LedgerHandle(job.ledger, job.identity().fingerprint, run=job.run)
        read = job.sources()
        elements: list[Any] = list(sources)
        transforms: list[Any] = [*job.chain_steps(), CommitStep()]
        for transform, behind in zip_longest(transforms, transforms[1:]):
            in_blocks = behind is not None and behind.takes_blocks
            values = ChainValues(handle, sources=read.opened({}), base=read.base, in_blocks=in_blocks)
            elements = list(_through(transform.make_work(values), elements))
        close_shared_writers()


def prepared(call: Callable[..., Any], **options: Any) -> PreparedCall:
    """Return a call, checked and not run: a function of `ledgerbeam`, or partials of it."""
    args: tuple[Any, ...] = ()
    while isinstance(call, partial):
        args, options, call = (*call.args, *args), {**call.keywords, **options}, call.func
    spec = spec_of(call.__name__)
    bound = spec.signature.bind(*args, **options).arguments
    return cast(PreparedCall, prepare(spec, tuple(bound.pop(one.name, ()) for one in spec.arguments), bound))


def marking(call: partial[Any], **options: Any) -> partial[Any]:
    """Return the call that writes marks, not records."""
    given = {name: value for name, value in call.keywords.items() if name != "to"}
    return partial(call.func, *call.args, **given, mark=True, **options)


def call_here(call: Callable[..., ledgerbeam.Result]) -> ledgerbeam.Result:
    """Return what comes of a call whose tasks are done here."""
    return prepared(call).result(Told(), HereWaves())


def _through(work: Any, elements: Iterable[Any]) -> Iterator[Any]:
    work.setup()
    work.start_bundle()
    for element in elements:
        yield from work.process(element) or ()
    yield from work.finish_bundle() or ()
    work.teardown()
