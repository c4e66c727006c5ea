"""The whole benchmark on a tiny model."""

from __future__ import annotations

import pytest
import torch

from app.contract.errors import CannotStart
from app.kernels.cpu.library import load_library
from benchmarks.__main__ import main
from benchmarks.perplexity import ways
from benchmarks.perplexity.command import judged, measure
from benchmarks.perplexity.scores import Score
from tests.gguf_writer import tiny_gguf


@pytest.mark.skipif(load_library() is None, reason="there are no native kernels here")
def test_every_way_is_scored_and_the_coarser_ones_are_further_from_bf16(tmp_path, capsys):
    torch.set_num_threads(1)
    found, verdicts = measure(str(tiny_gguf(tmp_path / "tiny.gguf", kind="Q8_0")), 1)
    scores = {way["way"]: way for way in found["ways"]}
    kl = {name: score["kl"] for name, score in scores.items()}
    assert kl[ways.BF16] == 0 and scores[ways.BF16]["same_first"] == 1
    assert 0 < kl[ways.Q8_0_WEIGHTS] < min(kl[ways.Q4_1], kl[ways.Q4_0])
    assert kl[ways.Q8_0] < kl[ways.Q4_1] and kl[ways.INT8] < kl[ways.INT4]
    assert found["tokens"] == 512 and found["text"] == "benchmarks/perplexity/prose.txt"
    assert {verdict.limit.name for verdict in verdicts} == set(found["limits"])
    printed = capsys.readouterr().out
    assert ways.FILE in scores
    assert all(f"\n{name} " in printed for name in scores)


def test_int8_is_held_against_its_limit_and_against_llama_cpps_arithmetic():
    scores = {ways.Q8_0: Score(10, 0.002, 1), ways.INT8: Score(10, 0.0025, 1)}
    absolute, relative = judged(scores, ways.INT8)
    assert absolute.is_met and relative.is_missed and relative.figure == pytest.approx(1.25)
    assert judged(scores, ways.Q8_0) == []


def test_without_the_model_one_line_says_so(monkeypatch, capsys):
    def refuse(console):
        raise CannotStart("smollm2 is not on this machine")

    monkeypatch.setattr("app.checkpoint.hub.smollm2.find_or_fetch", refuse)
    assert main(["perplexity"]) == 75
    assert capsys.readouterr().err.count("\n") == 1
