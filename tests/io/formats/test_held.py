"""The cache of decoded row groups: contents and cost."""

from __future__ import annotations

import pickle

import pyarrow as pa

from ledgerbeam.io.formats.format import GroupKey, HeldGroups


class Counted:
    """A table that counts the reads of its size, which an Arrow table recomputes each time."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self.asked = 0

    @property
    def nbytes(self) -> int:
        self.asked += 1
        return self._nbytes


def key(number: int) -> GroupKey:
    return "a.parquet", number


def test_those_that_were_used_last_are_held_up_to_the_limit() -> None:
    tables = [pa.table({"n": range(100 * (number + 1))}) for number in range(4)]  # 800, 1600, 2400, 3200 bytes
    held = HeldGroups(4800)
    for number in range(3):
        held.put(key(number), tables[number])
    assert [held.get(key(number)) for number in range(4)] == [*tables[:3], None]
    assert (len(held), held.size) == (3, 4800)
    held.use([key(0)])
    held.put(key(1), tables[1])
    held.put(key(3), tables[3])  # group 2 is removed, then group 0
    assert [held.get(key(number)) for number in range(4)] == [None, tables[1], None, tables[3]]
    assert held.size == 4800
    held.put(key(1), tables[0])  # another table of the same name: the file was opened again
    assert (held.get(key(1)), held.size) == (tables[0], 4000)
    assert len(pickle.loads(pickle.dumps(held))) == 0


def test_some_are_held_whatever_their_size() -> None:
    held = HeldGroups(1, least=2)
    tables = [pa.table({"n": [number]}) for number in range(3)]
    for number, table in enumerate(tables):
        held.put(key(number), table)
    assert [held.get(key(number)) for number in range(3)] == [None, *tables[1:]]


def test_the_bytes_of_a_group_are_added_up_once_however_often_it_is_used() -> None:
    held = HeldGroups(100, least=2)
    tables = [Counted(60), Counted(50)]
    for _ in range(50):
        for number, table in enumerate(tables):
            held.put(key(number), table)
    held.put(key(2), Counted(1))
    assert [table.asked for table in tables] == [1, 1]
    assert len(held) == 2
