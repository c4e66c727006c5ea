"""The report: figures, failures with the first message, and warnings."""

import math

from app.loadgen.report import prompt_length, report, sweep_report, warnings
from app.observe.terminal import Terminal
from tests.loadgen.fakes import make_answer, make_figures

PLAIN = Terminal()


def test_the_report_has_every_figure():
    lines = "\n".join(report(make_figures(2.0, make_answer(0.0), make_answer(0.5), ended=2.0, cpu_s=0.1), PLAIN))
    assert "2 requests/s, 2.0 s" in lines
    assert "2 completed, 0 failed, 0 cancelled; at most 1 open" in lines
    assert "20 in (10 each), 6 out (3 each), counted by the server" in lines
    assert "1.00 requests/s, 3.0 output tok/s, 13.0 tok/s in and out" in lines
    assert "took 5% of a core" in lines
    times = {line.rstrip("0123456789 "): line.split()[-4:] for line in lines.splitlines()}
    assert times["time to first token"] == ["100"] * 4
    assert times["between chunks"] == ["150", "150", "200", "200"]
    assert "Warning" not in lines and "failed:" not in lines and "wait" not in lines


def test_without_the_servers_count_no_length_of_prompts_is_claimed():
    counted, uncounted = make_figures(2.0, make_answer()), make_figures(2.0, make_answer(output_tokens=None))
    assert (prompt_length(counted), prompt_length(uncounted)) == ("10 tokens each", "")
    assert not any(" in (" in line for line in report(uncounted, PLAIN))


def test_failures_are_counted_by_their_name():
    failures = [make_answer(status="failed", error=error, message="Busy.") for error in ("503 busy", "cut", "503 busy")]
    lines = report(make_figures(math.inf, make_answer(), *failures), PLAIN)
    assert lines[1].startswith("all at once")
    assert lines[-2:] == ["failed: 2 503 busy, 1 cut", "first message: Busy."]


def test_an_infinite_rate_is_named_by_its_concurrency():
    held = make_answer(0.0)
    held.sent = held.ready = 0.4
    assert report(make_figures(math.inf, make_answer(0.0), held), PLAIN)[1].startswith("1 at a time, ")
    assert report(make_figures(math.inf, make_answer(0.0)), PLAIN)[1].startswith("all at once, ")


def test_nothing_measured_is_a_dash():
    lines = report(make_figures(2.0, make_answer(times=(), status="failed", error="cut")), PLAIN)
    assert [line.split()[-4:] for line in lines if line.startswith("end to end")] == [["-"] * 4]


def test_warnings_name_what_makes_figures_doubtful():
    late = make_answer(output_tokens=None)
    late.ready -= 0.5
    found = make_figures(2.0, late, ended=1.0, cpu_s=0.9)
    assert [line.split(" ")[0] for line in warnings(found)] == ["requests", "this", "the"]
    assert "sent 500.0 ms late" in warnings(found)[0]
    assert warnings(make_figures(2.0)) == []
    assert len(warnings(make_figures(math.inf, late, ended=1.0))) == 1, (
        "requests that are all due at once are never late"
    )


def test_what_was_cached_is_said_and_warned_of_if_it_is_most():
    half = make_figures(2.0, make_answer(cached_tokens=10), make_answer())
    assert "20 in (10 each, 50% of them cached), 6 out" in "\n".join(report(half, PLAIN)) and warnings(half) == []
    (line,) = warnings(make_figures(2.0, make_answer(cached_tokens=9)))
    assert "another --seed makes other prompts" in line


def test_a_sweep_has_a_line_for_each_rate():
    lines = sweep_report([make_figures(2.0), make_figures(math.inf, make_answer(status="failed", error="cut"))], PLAIN)
    assert lines[2].split() == ["2", "3", "0", "100", "100", "150", "200", "400", "400", "2.14", "6.43"]
    assert lines[3].split() == ["inf", "0", "1", *["-"] * 6, "0", "0"]
