"""The cells: their numbers of streams, and a cell for each limit."""

from benchmarks.limits import limits
from benchmarks.streams.cells import MAX_PER_SOCKET, make_cells
from benchmarks.streams.figures import FAULTS


def test_every_limit_belongs_to_a_cell():
    names = [cell.name for cell in make_cells(1000, 5)]
    assert {limit.split()[0] for limit in limits("streams")} - set(FAULTS) <= set(names)
    assert len(names) == len(set(names))


def test_the_usual_load_has_a_thousand_streams_of_each_kind():
    cells = {cell.name: cell for cell in make_cells(1000, 5)}
    assert {part.kind: part.num_streams for part in cells["both"].parts} == {"sse": 1000, "ws": 1000}
    assert (cells["sse"].num_streams, cells["sse-saturated"].num_streams, cells["slow"].num_streams) == (500, 64, 200)
    assert (cells["sse"].rate, cells["sse-saturated"].rate, cells["slow"].rate) == (5, None, 20)
    assert all(part.per_socket in (1, MAX_PER_SOCKET) for cell in cells.values() for part in cell.parts)


def test_every_part_has_at_least_one_stream():
    assert all(part.num_streams >= 1 for cell in make_cells(1, 5) for part in cell.parts)
