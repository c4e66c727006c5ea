"""The verdicts on rows, and their table for the terminal and for the docs."""

from typing import Any

import pytest

from benchmarks.isolation.attack_table import ATTACKS
from benchmarks.isolation.report import COLUMNS, figures_of, markdown, report, verdicts
from benchmarks.isolation.row import Row

FINE = Row(0.01, 0.02, 0.01, 0.02, 0.1, 0.1, 0.1, 0.01, 0, 100, {}, 0, 0.1, 1.0)._asdict()
MIB, MB = 1 << 20, 10**6


def row(**figures: Any) -> dict[str, Any]:
    return FINE | figures


def is_within(found: list[dict[str, Any]], quiet: list[dict[str, Any]]) -> bool:
    return all(verdict.is_met for verdict in verdicts(figures_of(found), figures_of(quiet), "x"))


def test_the_limit_is_twice_the_quiet_time_and_one_and_a_half_targets():
    quiet = [row(itl_p99_s=seconds) for seconds in (0.01, 0.02, 0.5)]
    assert is_within([row(itl_p99_s=seconds) for seconds in (0.1, 0.114, 9.0)], quiet)
    assert not is_within([row(itl_p99_s=seconds) for seconds in (0.0, 0.116, 0.116)], quiet)


def test_a_client_without_a_stream_is_held_to_the_rest():
    without = row(itl_p99_s=None, itl_max_s=None)
    assert is_within([without], [FINE])
    assert not is_within([without | {"chat_s": 3.1}], [FINE])


@pytest.mark.parametrize(
    ("field", "allowed", "too_much"),
    [
        ("itl_max_s", 0.5, 0.51),
        ("livez_p99_s", 0.1, 0.11),
        ("livez_max_s", 0.25, 0.26),
        ("chat_s", 3.0, 3.1),
        ("schema_s", 3.0, 3.1),
        ("embedding_s", 3.0, 3.1),
        ("grown_bytes", 600 * MIB, 601 * MIB),
        ("kept_bytes", 64 * MB, 65 * MB),
        ("exit_s", 4.0, 4.1),
    ],
)
def test_a_figure_is_held_to_its_limit(field: str, allowed: float, too_much: float):
    assert is_within([row(**{field: allowed})], [FINE])
    assert not is_within([row(**{field: too_much})], [FINE])


@pytest.mark.parametrize(
    ("field", "figure"),
    [
        *((field, 2) for field in ("itl_p99_s", "livez_p99_s", "chat_s", "schema_s", "embedding_s", "lag_p99_s")),
        *((field, 700) for field in ("itl_max_s", "livez_max_s", "grown_bytes")),
    ],
)
def test_a_row_is_held_to_the_medians_of_its_rounds_and_to_the_longest_stall_and_most_memory(field: str, figure: int):
    assert figures_of([row(**{field: value}) for value in (2, 700, 1)])[field] == figure


def test_rounds_without_a_figure_do_not_count():
    found = figures_of([row(exit_s=None, chat_s=None), row(exit_s=2.0, chat_s=None)])
    assert found["exit_s"] == 2.0
    assert "chat_s" not in found


def test_a_missed_limit_and_a_failed_row_are_printed_and_exit_with_1(capsys):
    found = {"long": {"idle": [FINE], "brackets": [row(schema_s=4.0)], "digits": [FINE, "the server ended"]}}
    assert report(found) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.endswith("MISSED") for line in lines if line.startswith("long: ")] == [False, True]
    assert lines[-2:] == [
        "missed: long, brackets, new schema: first token of a new request is 4 s, at most 3 s: MISSED by 1 s",
        "missed: long, digits: the server ended",
    ]
    assert report({"long": {"idle": [FINE]}}) == 0


def test_a_round_whose_attack_was_only_refused_fails_its_row(capsys):
    refused, partly = row(itl_max_s=9.0, answers={"429": 12}), row(answers={"429": 12, "200": 1})
    found = {"long": {"idle": [FINE], "brackets": [FINE, refused, FINE], "digits": [partly], "marks": [FINE]}}
    assert report(found) == 1
    output = capsys.readouterr().out
    assert output.splitlines()[-1] == "missed: long, brackets: the attack was refused: 12 of 12 got 429"
    assert output.count("missed: ") == 1
    cells = markdown(found).splitlines()
    assert ["failed" in cell for cell in cells if ATTACKS["brackets"].what in cell] == [True]
    assert sum("failed" in cell for cell in cells) == 1


def test_a_round_whose_watchers_have_missed_nothing_fails_its_row(capsys):
    unread, stalled = row(answers={"missed nothing": 16, "429": 2}), row(answers={"missed nothing": 1, "missed": 400})
    assert report({"long": {"idle": [FINE], "unread_watchers": [stalled]}}) == 0
    assert report({"long": {"idle": [FINE], "unread_watchers": [stalled, unread]}}) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "missed: long, unread_watchers: the attack stalled nobody: 16 of 18 got missed nothing"


def test_without_a_quiet_row_there_is_no_verdict(capsys):
    assert report({"long": {"idle": ["the server ended"], "brackets": [FINE]}}) == 1
    assert "missed: long, brackets: nothing to compare with" in capsys.readouterr().out


def test_the_table_of_the_docs_has_the_figures_of_both_models():
    old = {name: FINE[name] for name in ("itl_p99_s", "livez_p99_s")}
    found = {"long": {"idle": [FINE], "brackets": ["the server ended"]}, "wide": {"idle": [old], "brackets": [FINE]}}
    head, line, *cells = markdown(found).splitlines()
    assert head.count("|") == line.count("|") == len(COLUMNS) + 2
    assert cells[0].startswith(f"| {ATTACKS['idle'].what} | 10, 10 | 20, - |")
    assert cells[1].startswith(f"| {ATTACKS['brackets'].what} | failed, 10 |")
    assert len(cells) == 2
