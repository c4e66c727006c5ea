"""Tables: column widths, and the format of numbers."""

from app.loadgen.table import number, table
from app.observe.terminal import Terminal


def test_columns_are_as_wide_as_their_cells():
    lines = table(Terminal(), ["", "a", "median"], [["first", "1", "2"], ["x", "10,000", "3"]])
    assert lines == ["            a  median", "first       1       2", "x      10,000       3"]


def test_a_row_may_be_shorter_or_have_a_remark():
    assert table(Terminal(), ["a", "b"], [["1"], ["1", "2", "MISSED"]]) == ["a  b", "1", "1  2  MISSED"]


def test_the_head_is_bold_and_text_is_limited_to_the_terminals_characters():
    assert table(Terminal(is_coloured=True), ["a"], []) == ["\x1b[1ma\x1b[0m"]
    assert table(Terminal(is_unicode=False), ["2×"], [["é"]]) == ["2x", "?"]


def test_numbers_have_three_digits_or_are_integers():
    assert [number(value) for value in (0.0123, 0.1, 1.0, 12.345, 99.96, 123.4, 12345.6, -0.5, 0.0)] == [
        "0.0123", "0.100", "1", "12.3", "100", "123", "12,346", "-0.500", "0",
    ]  # fmt: skip
