"""The throughput benchmark: both sides run the same requests in turn."""

import json

from app import cli
from app.commands import bench
from app.commands.measuring.throughput import measure


def test_sides_take_turns():
    turns: list[str] = []

    def side(name: str):
        def run() -> float:
            turns.append(name)
            return float(len(turns))

        return run

    rates = measure({"a": side("a"), "b": side("b")}, repeats=2)
    assert turns == ["a", "b", "a", "b"]
    assert rates == {"a": [1.0, 3.0], "b": [2.0, 4.0]}


def test_figures_of_both_sides_are_written(tmp_path, capsys):
    """On the embedded model, with its own weights on both sides."""
    file = tmp_path / "figures.json"
    code = cli.main(
        [
            "bench",
            "throughput",
            "--model",
            "guide",
            "--num-requests",
            "2",
            "--peer-requests",
            "1",
            "--output",
            str(file),
        ]
    )
    assert code == 0
    figures = json.loads(file.read_text())
    assert (figures["num_requests"], figures["model"], figures["dtype"]) == (2, "guide", "bfloat16")
    table = capsys.readouterr().out
    for name in ("quire", "transformers"):
        (rate,) = figures["output_tokens_per_second"][name]
        assert rate > 0
        assert f"\n{name} " in table
    assert figures["ratio"]["transformers"] > 0


def test_without_transformers_the_error_has_advice(monkeypatch, capsys):
    monkeypatch.setattr(bench, "find_spec", lambda name: None)
    assert cli.main(["bench", "throughput"]) == 2
    error = capsys.readouterr().err
    assert "`.venv/bin/pip install transformers`" in error and "--peer none" in error
