"""The two sides: rates from seconds, and llama.cpp's own."""

from pathlib import Path

import pytest

from app.kernels.cpu.compiling import supported_sets
from benchmarks.cpu.gguf.cells import LOADS
from benchmarks.cpu.gguf.sides import OPENINGS, LlamaCppFile, Loading, QuireFile, program_folder
from benchmarks.side import SideFailed
from tests.benchmarks.cpu.test_sides import FAKE_BENCH
from tests.gguf_writer import tiny_gguf
from tests.kernels.cpu.sets import lend_sets

LOADING = Loading([2.0], 1000)
NAMES = [load.name for load in LOADS]


class FakeProgram:
    """A fake `Side`: seconds by the number of new tokens; prompts of 512 tokens take 4."""

    def __init__(self, seconds: dict[int, float]) -> None:
        self.seconds, self.requests = seconds, []

    def ask(self, **request):
        self.requests.append(request)
        return {"seconds": 4.0 if len(request["prompts"][0]) == 512 else self.seconds[request["num_new_tokens"][0]]}


def test_rates_are_those_of_the_steps_alone_or_of_the_prompt():
    program = FakeProgram({1: 1.0, 17: 3.0})
    rates = QuireFile(program, 1000, "", LOADING).measure("0")
    assert rates == {"1 row": 8.0, "8 rows": 64.0, "32 rows": 256.0, "512-token prompt": 128.0}
    prompts = [tuple(prompt) for request in program.requests for prompt in request["prompts"]]
    assert len(set(prompts)) == len(prompts), "no prompt is used twice"
    assert {request["temperature"] for request in program.requests} == {0.0}


def test_indistinguishable_times_fail():
    with pytest.raises(SideFailed, match="too busy"):
        QuireFile(FakeProgram({1: 1.0, 17: 1.0}), 1000, "", LOADING).measure("0")


def test_llama_cpp_measures_loads_of_the_same_lengths_in_one_run(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.cpu.gguf.sides.PEERS", tmp_path)
    program = program_folder("avx2") / "llama-batched-bench"
    program.parent.mkdir()
    program.write_text(FAKE_BENCH)
    program.chmod(0o755)
    side = LlamaCppFile(Path("model.gguf"), "avx2", tmp_path / "log")
    assert side.measure("0") == {"1 row": 99.5, "8 rows": 99.5, "32 rows": 99.5, "512-token prompt": 1000.5}
    decode, prompt = Path(f"{program}.calls").read_text().splitlines()[-2:]
    assert "-npp 16 -ntg 16 -npl 1,1,1,8,32" in decode and "-c 8192" in decode
    assert "-npp 512 -ntg 1 -npl 1 " in prompt and "-c 768" in prompt
    assert program_folder("native") == tmp_path / "llama.cpp"
    assert len(side.loading_s) == 2 and min(side.loading_s) > 0


@pytest.mark.long
@pytest.mark.skipif("avx2" not in supported_sets(), reason="this machine cannot run the kernels")
def test_quire_uses_the_kernels_of_the_set(tmp_path, monkeypatch):
    lend_sets(tmp_path, supported_sets()[0], "avx2")  # it reads the machine's memory with the best ones
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = tiny_gguf(tmp_path / "m.gguf", kind="Q8_0", max_position_embeddings=1024)
    side = QuireFile.open(file, None, "avx2", tmp_path / "log")
    try:
        assert set(side.measure("0")) == set(NAMES)
        assert side.read_rate(1 << 20) > 0
        assert side.settings.endswith("with the kernels for avx2")
        assert len(side.loading_s) == OPENINGS and min(side.loading_s) > 0 and side.passing_bytes >= 0
        assert side.distinct_experts(LOADS[0]) == []
    finally:
        side.close()


def test_tokens_of_dummies_are_sampled_and_experts_counted_over_the_same_steps():
    program = FakeProgram({17: 0.0})
    program.ask = lambda **request: program.requests.append(request) or {"distinct": [3, 2.5]}
    assert QuireFile(program, 1000, "", LOADING, is_dummy=True).distinct_experts(LOADS[1]) == [3.0, 2.5]
    (request,) = program.requests
    assert request["do"] == "count" and request["temperature"] == 1.0 and request["num_new_tokens"] == [17] * 8


@pytest.mark.long
def test_a_file_that_quire_rejects_is_reported(tmp_path):
    with pytest.raises(SideFailed, match="ModelRefused"):
        QuireFile.open(tmp_path / "nothing.gguf", None, "native", tmp_path / "log")
