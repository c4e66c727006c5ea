"""The measurements of the sections on tiny models and a CPU: loads, the engine's loop, transformers, serving."""

import time
from contextlib import nullcontext
from unittest.mock import AsyncMock

import pytest

from app.commands.measuring.workload import Workload
from app.contract.errors import ConfigurationError
from benchmarks.gpu import decode, offline, peers, serving
from benchmarks.gpu.bounds import Shape, Work, decode_work
from benchmarks.gpu.clients import percentiles, summary
from benchmarks.gpu.engines import engine, run_load
from benchmarks.gpu.figures import Figure, Results
from benchmarks.gpu.offline import measure_load, settings_for
from benchmarks.gpu.sections import SECTIONS, WARM_UP
from benchmarks.gpu.tasks import Task
from tests.checkpoints import tiny

SETTINGS = {"device": "cpu", "max_model_len": 128, "num_kv_blocks": 64, "max_num_seqs": 4}
LOAD = Workload(((1, 2, 3, 4, 5), (6, 7, 8), (9,) * 20), (4, 9, 2))
WORK = (Work(1e6),)
ATTENTIONS = ("sdpa", "paged|sdpa")  # by the version of transformers


@pytest.fixture(name="small_vocabulary")
def _small_vocabulary(monkeypatch):
    """Keep loads within the vocabulary of the tiny models."""
    monkeypatch.setattr("benchmarks.gpu.loads.VOCAB", 200)


@pytest.mark.usefixtures("small_vocabulary")
def test_a_short_load_is_measured_twice():
    figures = list(measure_load("x", tiny(), LOAD, SETTINGS, WORK, time.monotonic() + 60, in_seconds=False))
    assert [len(figure.values) for figure in figures] == [1, 2]
    figure = figures[-1]
    assert (figure.unit, figure.amount, figure.work) == ("tok/s", 15, WORK)
    assert figure.about["tokens_in"] == 28
    assert figure.about["settings"]["num_kv_blocks"] == 64
    assert figure.about["settings"]["graphs_missing"] is False
    assert figure.about["steps of the last turn"] > 0
    assert figure.about["preemptions of the last turn"] == 0


@pytest.mark.usefixtures("small_vocabulary")
def test_a_load_is_measured_once_if_time_is_short():
    (figure,) = measure_load("x", tiny(), LOAD, SETTINGS, WORK, time.monotonic(), in_seconds=True)
    assert (figure.unit, len(figure.values)) == ("s", 1)


def test_an_output_that_ends_early_is_an_error(monkeypatch):
    with engine(tiny(), **SETTINGS) as llm:
        real = llm.generate
        monkeypatch.setattr(llm, "generate", lambda prompts, params, use_tqdm: real(prompts[:1], params[:1], use_tqdm))
        with pytest.raises(RuntimeError, match="ended early"):
            run_load(llm, LOAD, 0.6)


def test_the_engine_is_freed_after_the_block():
    with engine(tiny(), **SETTINGS) as llm:
        assert llm.engine
    with pytest.raises(ConfigurationError, match="closed"):
        llm.engine  # noqa: B018


def test_all_variants_of_rows_have_settings():
    rows = [row.name for section in SECTIONS if section.name == "S4" for row in section.rows]
    variants = {name.partition(", ")[2].partition(", ")[2] for name in [*rows]} | {
        name.partition(", ")[2] for name in (row.name for row in WARM_UP.rows)
    }
    found = {variant: settings_for(variant) for variant in variants - {"one by one"}}
    assert found[""] == {}
    assert found["deterministic"] == {"deterministic": True}
    assert found["run-ahead 3"] == {"run_ahead": 3}
    assert found["fp8 KV"] == {"kv_cache_dtype": "fp8"}
    assert found["eager"] == {"enforce_eager": True}
    assert settings_for("plain launches") == {"dependent_launches": False}


def test_rows_of_s4_become_loads(monkeypatch, tmp_path):
    seen = {}

    def fake(name, model, load, settings, work, deadline, *, in_seconds):
        seen[name] = (model.name, load, settings, work, in_seconds)
        yield Figure(name, "s", (1.0,))

    monkeypatch.setattr(offline, "measure_load", fake)
    for row in ("Llama-3.1-8B, 256 requests, fp8 KV", "Qwen3-8B, 256 x 1024/1024", "Qwen3-0.6B, 256 requests"):
        list(offline.measure(Task(row, tmp_path, Results(), 0.0)))
    model, load, settings, work, in_seconds = seen["Llama-3.1-8B, 256 requests, fp8 KV"]
    assert (model, sum(load.num_new_tokens), in_seconds) == ("Llama-3.1-8B", 133_966, False)
    assert settings == {"device": "cuda", "max_model_len": 2048, "kv_cache_dtype": "fp8"}
    assert work[1].num_bytes < seen["Qwen3-8B, 256 x 1024/1024"][3][1].num_bytes
    assert seen["Qwen3-8B, 256 x 1024/1024"][1].num_new_tokens == (1024,) * 256
    assert seen["Qwen3-8B, 256 x 1024/1024"][4] is True
    assert seen["Qwen3-0.6B, 256 requests"][2] == {"device": "cuda", "max_model_len": 2048}


def test_the_engine_loop_decodes_all_batches_after_one_prefill(monkeypatch):
    monkeypatch.setattr(decode, "VOCAB", 200)
    shape = Shape(2, 64, 4, 2, 16, 96, 307, is_tied=False)
    settings = {"device": "cpu", "num_kv_blocks": 512}
    figures = list(
        decode.measure_model("tiny", tiny(max_position_embeddings=1024), shape, (4, 1), settings, num_prompt=20)
    )
    assert [figure.name for figure in figures] == ["tiny B=4 engine", "tiny B=1 engine"]
    four, one = figures
    assert all(len(figure.values) == 2 and min(figure.values) > 0 for figure in figures)
    # 6 warm-up steps and 32 timed ones for each batch; all prompts are computed in one step.
    assert 20 + 6 + 16 <= four.about["context"] <= 20 + 6 + 16 + 6
    assert one.about["context"] == pytest.approx(four.about["context"] + 6 + 32, abs=2)
    assert one.work == decode_work(shape, [one.about["context"]])
    products, attention = four.work
    assert products == decode_work(shape, [1, 1, 1, 1])[0]
    assert attention.num_bytes == pytest.approx(4 * four.about["context"] * shape.kv_bytes(), rel=0.02)


def test_a_loop_whose_sequences_end_is_an_error(monkeypatch):
    monkeypatch.setattr(decode, "VOCAB", 200)
    monkeypatch.setattr(decode, "_DECODED", 4)
    monkeypatch.setattr(decode, "AHEAD", 0)
    with engine(tiny(), **SETTINGS) as llm, pytest.raises(RuntimeError, match="has ended"):
        decode.Loop(llm, 2, 8).steps(16)


@pytest.mark.long
def test_transformers_generates_one_by_one(monkeypatch):
    monkeypatch.setattr(peers, "NEW_ONE_BY_ONE", 6)
    figure = peers.one_by_one("x", tiny("Qwen3"), LOAD, device="cpu")
    assert (figure.unit, len(figure.values)) == ("tok/s", 2)
    assert figure.about["tokens_out"] == 18
    assert "attention sdpa" in figure.about["note"]


@pytest.mark.parametrize("seconds", [60.0, 0.0], ids=["to the end", "stopped"])
def test_transformers_batches_continuously_and_reports_the_attention(seconds, monkeypatch, caplog):
    load = LOAD if seconds else Workload(((5, 6, 7),), (120,))
    count = peers._tokens_under_way

    def seven(manager) -> int:
        """As if the deadline had passed while it generates."""
        assert count(manager) >= 0
        return 7

    monkeypatch.setattr(peers, "_tokens_under_way", seven)
    monkeypatch.setattr(peers, "GENERATING_S", 60.0)
    monkeypatch.setattr(peers, "STOPPING_S", 60.0)
    figure = peers.continuous("x", tiny("Qwen3"), load, device="cpu", seconds=seconds)
    assert figure.about["attention"] in ATTENTIONS
    assert figure.about["failed_before"] == []
    assert "Error in generation loop" not in caplog.text
    assert figure.about["is_whole"] is bool(seconds)
    assert figure.about["tokens_out"] == (15 if seconds else 7)
    assert f"attention {figure.about['attention']}" in figure.about["note"]
    assert ("stopped after" in figure.about["note"]) is not bool(seconds)


def test_a_warm_up_without_an_answer_is_an_error(monkeypatch):
    monkeypatch.setattr(peers, "GENERATING_S", 0.0)
    monkeypatch.setattr(peers, "STOPPING_S", 60.0)
    with pytest.raises(RuntimeError, match="no answer of 4 tokens within 0 s"):
        peers.continuous("x", tiny("Qwen3"), LOAD, device="cpu")


@pytest.mark.filterwarnings("ignore:The `paged:FutureWarning")
def test_another_attention_is_tried_if_the_first_fails(monkeypatch):
    tried = []

    def fake(name, model, load, seconds, notes):
        tried.append(model.config._attn_implementation)
        if len(tried) == 1:
            raise ValueError("no kernels from the hub")
        return Figure(name, "tok/s", (1.0,), about={"notes": list(notes)})

    monkeypatch.setattr(peers, "_continuous", fake)
    figure = peers.continuous("x", tiny("Qwen3"), LOAD, device="cpu")
    assert tried[0] == "sdpa" and tried[1] in ATTENTIONS
    assert "no kernels from the hub" in figure.about["notes"][0]


@pytest.mark.long
def test_a_server_is_started_and_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(serving, "RATES", (0.5,))
    monkeypatch.setattr(serving, "POISSON_S", 0.5)
    monkeypatch.setattr(serving, "POISSON_PROMPT", 9)
    monkeypatch.setattr(serving, "POISSON_NEW", 5)
    monkeypatch.setattr(serving, "POISSON_NEEDS_S", 0.0)
    monkeypatch.setattr(serving, "WARM_NEW", 3)
    monkeypatch.setattr("benchmarks.gpu.loads.VOCAB", 100)
    options = ["--max-model-len", "256", "--device", "cpu", "--num-kv-blocks", "256"]
    task = Task("x", tmp_path, Results(), time.monotonic() + 60)
    model = tiny(max_position_embeddings=512)
    started, streams, poisson = serving.serve_and_ask(
        "tiny", model, LOAD, options, task, offline=100.0, num_poisson=1, capturing_s=0.0
    )
    assert (started.name, started.unit) == ("tiny, start", "s")
    assert 0 < started.about["listening_s"] < started.median < 40
    assert streams.name == "tiny, 256 streams"
    assert streams.about["graphs"] == 0
    assert streams.median == pytest.approx(15 / streams.about["seconds"])
    assert "of offline" in streams.about["note"] and "TTFT p50" in streams.about["note"]
    assert poisson.name == "tiny, Poisson at 50%"
    assert poisson.about["requests"] == 5
    assert poisson.about["tokens"] == 25


def test_a_server_whose_graphs_could_not_be_captured_is_not_measured(tmp_path, monkeypatch):
    async def count(server, name):
        return {serving.GRAPHS: 50.0, serving.FAILURES: 2.0}[name]

    monkeypatch.setattr(serving, "_count", count)
    monkeypatch.setattr(serving, "listening", lambda *given, **named: nullcontext())
    monkeypatch.setattr(serving, "_first_token", AsyncMock())
    monkeypatch.setattr(serving, "ask", lambda *given: {})
    task = Task("x", tmp_path, Results(), time.monotonic() + 60)
    figures = serving.serve_and_ask("x", tiny(), LOAD, [], task, offline=None, num_poisson=0, capturing_s=0.0)
    assert next(figures).name == "x, start"
    with pytest.raises(RuntimeError, match="2 captures of CUDA graphs failed"):
        next(figures)


@pytest.mark.long
def test_a_server_that_exits_before_it_is_ready_is_an_error_at_once(tmp_path, monkeypatch):
    options = ["--num-kv-blocks", "99999999", "--max-model-len", "64"]  # the server listens, and then has no memory
    task = Task("x", tmp_path, Results(), time.monotonic() + 60)
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="server"):
        list(serving.serve_and_ask("x", tiny(), LOAD, options, task, offline=None, num_poisson=0))
    assert time.monotonic() - began < 20


@pytest.mark.long
def test_a_server_that_does_not_start_reports_the_cause(tmp_path):
    options = ["--device", "cpu", "--max-model-len", "100000"]
    task = Task("x", tmp_path, Results(), time.monotonic() + 60)
    with pytest.raises(RuntimeError, match=r"did not start.*max_model_len"):
        list(serving.serve_and_ask("x", tiny(), LOAD, options, task, offline=None, num_poisson=0))


def test_the_summary_of_clients_has_percentiles():
    from benchmarks.gpu.clients import Answer

    found = summary([Answer(1.0, [1.5, 1.6, 1.8]), Answer(2.0, [2.1])], 3.0, [3, 1])
    assert found["ttft_ms"] == pytest.approx({"p50": 300, "p99": 496})
    assert found["itl_ms"]["p99"] == pytest.approx(199)
    assert (found["tokens"], found["parts"], found["requests"]) == (4, 4, 2)
    assert percentiles([]) == {"p50": 0.0, "p99": 0.0}
