"""The functions of a job: the label, the values and the size of the batches of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ledgerbeam.errors import UsageError
from ledgerbeam.user_code.functions import reference_of
from ledgerbeam.user_code.loading import Reference
from ledgerbeam.user_code.objects import UserObject, import_callable, takes_value

Function = Reference | Callable[..., Any]  # ``module:object``, or the object itself

LABEL_CHARACTERS = 100  # maximum length of a label; the rest is cut


@dataclass(frozen=True)
class JobFunction:
    """One of the functions of a job. The results of one function are the records of the next.

    Attributes:
        label: Name of the function, unique among the functions of the job.
        object: The user's object, with its values and the watched files of the job.
        batch: Maximum number of records of a call. None calls the object with single records, or with Arrow batches of
            at most 65,536 rows.
    """

    label: str
    object: UserObject
    batch: int | None = None


def read_functions(
    given: Function | Sequence[Function] | Sequence[JobFunction], *options: Any
) -> tuple[JobFunction, ...]:
    """Return the functions of a job, given as one function or a list. See `job_functions` for the options.

    The options are ignored for a list of `JobFunction`.
    """
    listed: Sequence[Any] = given if isinstance(given, list | tuple) else [given]
    if listed and all(isinstance(one, JobFunction) for one in listed):
        return tuple(listed)
    return job_functions(listed, *options)


def job_functions(
    references: Sequence[Function],
    values: Mapping[str, Any] | None = None,
    batch: int | Mapping[str, int] | None = None,
    watched: Mapping[str, str] | None = None,
    style: str | None = None,
) -> tuple[JobFunction, ...]:
    """Return the functions of a job, in order.

    Args:
        references: ``module:object``, or the objects themselves.
        values: Values of ``--set``. The key ``NAME`` gives a value to every function that takes it, and ``LABEL.NAME``
            to one function. ``LABEL.NAME`` has priority.
        batch: Maximum number of records of a call: for all functions, or by label. The empty label stands for all
            functions without a size of their own.
        watched: Checksums of the files that the functions read, by URL. They are checked after the last one was built.
        style: Name of the convention of another library that the functions follow.

    Raises:
        UsageError: There is no function, a batch is empty, no function has a label, or none takes a value.
        FunctionError: A function cannot be imported. Only a key ``NAME`` for several functions imports them.
    """
    if not references:
        raise UsageError("a map needs at least one function; pass module:function or the function itself")
    found = [reference_of(reference) for reference in references]
    labels = function_labels(found)
    own = _own_values(found, labels, values or {}, style)
    sizes = batch if isinstance(batch, Mapping) else {} if batch is None else {"": batch}
    for label, size in sizes.items():
        if label:
            _require_label(f"batch {label}", label, labels)
        if size < 1:
            raise UsageError(f"batch: expected at least 1 record, found {size} for {label or 'all functions'}")
    last = len(found) - 1
    return tuple(
        JobFunction(
            label,
            UserObject(
                reference,
                own[number],
                watched or {},
                style=style,
                batched=label in sizes or "" in sizes,
                may_be_async=True,
                checks=number == last,
            ),
            sizes.get(label, sizes.get("")),
        )
        for number, (reference, label) in enumerate(zip(found, labels, strict=True))
    )


def function_labels(references: Sequence[Reference]) -> list[str]:
    """Return a label for each function of a job: `clean` of ``texts:clean``.

    Functions of the same name in two modules are `a.clean` and `b.clean`. Of one function that occurs twice, the second
    is `clean 2`.
    """
    names = [str(reference) for reference in references]
    found: list[str] = []
    seen = Counter[str]()
    for name in names:
        others = {candidate for other in names if other != name for candidate in _candidates(other)}
        candidates = list(_candidates(name))
        label = next((one for one in candidates if one not in others), candidates[-1])[:LABEL_CHARACTERS]
        seen[label] += 1
        found.append(label if seen[label] == 1 else f"{label} {seen[label]}")
    return found


def _candidates(name: str) -> Iterator[str]:
    """Yield the possible labels of a function, from its name alone to its name with the whole path of its module."""
    module, _, attribute = name.rpartition(":")
    yield attribute
    folders = module.split(".") if module else []
    for number in range(len(folders) - 1, -1, -1):
        yield ".".join([*folders[number:], attribute])


def _own_values(
    references: Sequence[Reference], labels: Sequence[str], values: Mapping[str, Any], style: str | None
) -> list[dict[str, Any]]:
    own: list[dict[str, Any]] = [{} for _ in references]
    named = [(*key.rpartition("."), key, value) for key, value in values.items()]
    for label, _, name, key, value in sorted(named, key=lambda one: one[0] != ""):  # LABEL.NAME has priority
        if label:
            _require_label(f"--set {key}", label, labels)
            takers = [labels.index(label)]
        else:
            # `check_object` reports a value that the only function does not take.
            takers = [
                number
                for number, reference in enumerate(references)
                if len(references) == 1 or takes_value(import_callable(reference, style, may_be_async=True), name)
            ]
        if not takers:
            raise UsageError(f"--set {name}: none of the functions {', '.join(labels)} has such a parameter")
        for number in takers:
            own[number][name] = value
    return own


def _require_label(what: str, label: str, labels: Sequence[str]) -> None:
    if label not in labels:
        raise UsageError(f"{what}: no function has the label {label!r}; the labels are {', '.join(labels)}")
