"""The error tree: what Beam, pickle and its own docstring need of it."""

from __future__ import annotations

import pickle
import re

from ledgerbeam import errors
from ledgerbeam.errors import BudgetSpentError, LedgerbeamError, UsageError
from tests.cases import each

CLASSES: list[type[LedgerbeamError]] = sorted(
    (value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, LedgerbeamError)),
    key=lambda error: error.__name__,
)
TREE_LINE = re.compile(r"^    (?P<indent>[│ ├└─]*)(?P<name>\w+) *(?:\((?P<standard>\w+)\))?")


def drawn_tree() -> dict[str, tuple[str | None, str | None]]:
    """Return the tree of the module's docstring: name -> (name of its parent, name of the standard class)."""
    tree: dict[str, tuple[str | None, str | None]] = {}
    above: list[str] = []
    drawing = str(errors.__doc__).split("\n\n")[1]
    for line in drawing.splitlines():
        found = TREE_LINE.match(line)
        assert found, line
        depth = len(found["indent"]) // 4
        above[depth:] = [found["name"]]
        tree[found["name"]] = (above[depth - 1] if depth else None, found["standard"])
    return tree


@each("error", CLASSES)
def test_an_error_takes_exactly_one_positional_message_so_that_beam_rebuilds_it(error: type[LedgerbeamError]) -> None:
    assert "__init__" not in vars(error), "a constructor of its own would not survive Beam"
    raised = error("a.jsonl: record 3")
    rebuilt = type(raised)(raised.args[0] + " [while running 'ReadTasks']", *raised.args[1:])
    assert type(rebuilt) is error
    assert str(rebuilt) == "a.jsonl: record 3 [while running 'ReadTasks']"


@each("error", CLASSES)
def test_an_error_survives_pickle(error: type[LedgerbeamError]) -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        copy = pickle.loads(pickle.dumps(error("Größe: 7 erwartet"), protocol))
        assert type(copy) is error
        assert str(copy) == "Größe: 7 erwartet"


def test_the_drawing_shows_every_class_below_its_parent() -> None:
    tree = drawn_tree()
    assert sorted(tree) == [error.__name__ for error in CLASSES]
    for error in CLASSES:
        parent, standard = tree[error.__name__]
        bases = [base.__name__ for base in error.__bases__]
        expected = [name for name in (parent or "Exception", standard) if name]
        assert bases == expected, f"{error.__name__} is drawn as {expected}"


@each("error", CLASSES)
def test_every_class_says_what_it_means_and_has_the_exit_status_of_its_kind(error: type[LedgerbeamError]) -> None:
    assert len(vars(error)["__doc__"]) > 20
    assert error.exit_status == (2 if issubclass(error, UsageError) else 3 if error is BudgetSpentError else 1)
