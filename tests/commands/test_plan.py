"""The plan divides memory as the server does, needs only config.json, and fits every terminal."""

import json
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from app import cli
from app.checkpoint.sizes import decoded, kv_bytes_per_token
from app.commands import budget as budgets
from app.commands.budget import (
    GPUS,
    Memory,
    find_gpu,
    known_gpu,
    make_budget,
    weight_bytes_by_kind,
    weights_by_kind,
)
from app.commands.plan_page import page
from app.config.devices import CAPABILITIES
from app.config.setting import GIB, KIB, MIB
from app.config.settings import make_config
from app.contract.errors import CannotStart, ConfigurationError
from app.engine.build import build_engine
from app.engine.execute.activation_sizes import activation_bytes, mask_bytes
from app.engine.execute.cpu.backend import EagerBackend, NativeBackend
from app.engine.execute.kv_cache import KVLayout
from app.engine.execute.memory_plan import check_activations, check_weights, plan_num_blocks, plan_num_host_blocks
from app.observe.terminal import Terminal
from tests.cases import examples
from tests.checkpoint.reading import planned_spec
from tests.checkpoints import ARCHITECTURES, TORCH_DTYPES, config_json, tiny

LARGE = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def large(tmp_path):
    """The config.json of a model of 8 billion weights, alone in its folder."""
    (tmp_path / "config.json").write_text(json.dumps(config_json(**LARGE)))
    return tmp_path


def ram(num_bytes):
    return Memory("free RAM", num_bytes, is_gpu=False)


def gpu(num_bytes):
    return budgets.gpu(make_config({"device": "cuda"}), "one GPU", num_bytes)


def run(capsys, *arguments):
    return cli.main(["plan", *map(str, arguments)]), capsys.readouterr()


def layout_of(spec, block_size):
    return KVLayout(block_size, spec.num_layers, spec.num_kv_heads, spec.head_dim, TORCH_DTYPES[spec.dtype])


def server_blocks(config, spec, free):
    """The blocks that the server allocates in `free` bytes; 0 if it does not start."""
    weights = spec.num_parameters() * TORCH_DTYPES[spec.dtype].itemsize
    try:
        check_weights(weights, free)
        activations = budgets.host_activations(config, spec, decoded)
        check_activations(activations, weights, free, config.scheduler.max_num_batched_tokens)
        layout, left = layout_of(spec, config.cache.block_size), free - weights - activations
        num_blocks = plan_num_blocks(config, layout, config.model.max_model_len or spec.max_position, left)
        plan_num_host_blocks(config, layout, left - num_blocks * layout.bytes_per_block)
        return num_blocks
    except CannotStart:
        return 0


CACHES = st.one_of(
    st.just({}),
    st.builds(lambda n: {"num_kv_blocks": n}, st.integers(1, 10**6)),
    st.builds(lambda n: {"kv_cache_memory": n}, st.integers(1, 8 * GIB)),
)


@settings(max_examples=examples(200))
@given(
    architecture=st.sampled_from(ARCHITECTURES),
    free=st.one_of(st.integers(0, 4 * MIB), st.integers(0, 64 * GIB)),
    cache=CACHES,
    swap_space=st.one_of(st.just(0), st.integers(0, 8 * GIB)),
    block_size=st.sampled_from((8, 16, 32, 64)),
    max_model_len=st.one_of(st.none(), st.integers(8, 512)),
    dtype=st.sampled_from(("auto", "float32", "bfloat16", "float16")),
)
def test_the_plan_has_the_blocks_of_the_server(architecture, free, cache, swap_space, block_size, max_model_len, dtype):
    config = make_config(
        {
            "model": str(tiny(architecture)),
            "block_size": block_size,
            "max_model_len": max_model_len,
            "dtype": dtype,
            "swap_space": swap_space,
            **cache,
        }
    )
    spec = planned_spec(config)
    budget = make_budget(config, spec, ram(free))
    assert budget.num_blocks == server_blocks(config, spec, free)
    assert budget.fits == (not budget.missing_bytes and not budget.too_small)
    if budget.missing_bytes:
        enough = free + budget.missing_bytes
        assert server_blocks(config, spec, enough) > 0
        assert swap_space or server_blocks(config, spec, enough - 1) == 0
    elif budget.too_small:
        assert server_blocks(config, spec, 2**62) == 0


def test_the_engine_has_the_tokens_that_were_planned(capsys):
    folder = tiny("Qwen3")
    code, output = run(capsys, folder, "--max-model-len", 100, "--block-size", 8, "--json")
    engine = build_engine(make_config({"model": str(folder), "max_model_len": 100, "block_size": 8}))
    assert (code, json.loads(output.out)["capacity_tokens"]) == (0, engine.model_info.kv_capacity_tokens)


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "Qwen2Moe"])
@pytest.mark.parametrize("dtype", TORCH_DTYPES)
@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
def test_sizes_are_those_of_the_tensors(architecture, dtype, quantization, kv_cache_dtype):
    given = {"dtype": dtype, "quantization": quantization, "kv_cache_dtype": kv_cache_dtype}
    config = make_config({"model": str(tiny(architecture)), "max_num_batched_tokens": 77, **given})
    spec = planned_spec(config)
    with torch.device("meta"):
        backend = NativeBackend(config, spec, None)
        assert activation_bytes(config, spec, has_kernels=True) == backend.make_arena().num_bytes
        assert kv_bytes_per_token(spec, kv_cache_dtype) == backend.kv_layout().bytes_per_token
        eager = EagerBackend(config, spec)
        assert activation_bytes(config, spec, has_kernels=False) == eager.make_arena().num_bytes
        if kv_cache_dtype == "auto":
            assert kv_bytes_per_token(spec, kv_cache_dtype) == eager.kv_layout().bytes_per_token


def test_quantization_and_an_int8_cache_change_the_plan(large, capsys, monkeypatch):
    monkeypatch.setattr(budgets, "supported_sets", lambda: ["avx2"])
    plain, int8, int4, cache, eager = (
        json.loads(run(capsys, large, "--ram", "24GiB", "--json", *options)[1].out)
        for options in (
            (),
            ("--quantization", "int8"),
            ("--quantization", "int4"),
            ("--kv-cache-dtype", "int8"),
            ("--quantization", "int8", "--enforce-eager"),
        )
    )
    assert int4["weight_bytes"] < 0.4 * plain["weight_bytes"] < int8["weight_bytes"] < 0.6 * plain["weight_bytes"]
    assert int8["capacity_tokens"] > plain["capacity_tokens"]
    assert cache["kv_bytes_per_token"] == 2 * 32 * 8 * (128 + 4) and plain["kv_bytes_per_token"] == 2 * 32 * 8 * 256
    assert cache["capacity_tokens"] > 1.9 * plain["capacity_tokens"]
    assert cache["kv_formula"]["scale_bytes"] == 4 and cache["kv_formula"]["bytes"] == 1
    assert eager["weight_bytes"] == plain["weight_bytes"]
    for figures in (plain, int8, int4, cache, eager):
        assert sum(figures["weight_bytes_by_kind"].values()) == figures["weight_bytes"]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("tied", [True, False])
def test_weights_are_counted_once_each(architecture, tied):
    spec = planned_spec(make_config({"model": str(tiny(architecture, tie_word_embeddings=tied))}))
    counts = weights_by_kind(spec)
    assert sum(counts.values()) == spec.num_parameters()
    assert counts["embedding"] == spec.vocab_size * spec.hidden_size * (1 if tied else 2)
    assert min(counts.values()) > 0
    config = make_config({})
    assert weight_bytes_by_kind(config, spec, decoded) == {kind: 4 * count for kind, count in counts.items()}


def test_the_cache_of_a_gpu_gets_the_memory_that_is_left(large):
    config = make_config({"model": str(large)})
    spec = planned_spec(config)
    made = make_budget(config, spec, gpu(24 * GIB))
    room = 24 * GIB - int(24 * GIB * (1 - 0.92)) - budgets.GPU_RESERVE - spec.num_parameters() * 2
    room -= activation_bytes(config, spec, has_kernels=False) + budgets.sampling_bytes(config, spec)
    room -= mask_bytes(config, spec)
    assert made.num_blocks == room // (16 * 131072)
    assert 0 <= made.left_bytes - made.memory.reserved_bytes < 16 * 131072
    assert make_budget(config, spec, gpu(8 * GIB)).missing_bytes > 0
    fixed = make_config({"model": str(large), "num_kv_blocks": 5})
    assert make_budget(fixed, spec, gpu(24 * GIB)).num_blocks == 5


@pytest.mark.parametrize(("vocab_size", "measured_mib"), [(3072, 35), (49_152, 69), (262_144, 252), (262_144, 267)])
def test_the_memory_of_the_processes_for_grammars_is_what_was_measured(vocab_size, measured_mib):
    """In docs/decisions.md, 2026-11-30: the process that forks, and 10 MiB for the others; the last has long tokens."""
    assert budgets.grammar_process_bytes(vocab_size) / MIB == pytest.approx(measured_mib, rel=0.2)


@pytest.mark.parametrize("memory", [("--ram", "64GiB"), ("--gpu", "h100")])
def test_what_grammars_add_is_said_apart_because_only_the_first_one_takes_it(large, capsys, memory):
    figures = json.loads(run(capsys, large, *memory, "--json")[1].out)
    vocab_size = planned_spec(make_config({"model": str(large)})).vocab_size
    assert figures["grammar_process_bytes"] == budgets.grammar_process_bytes(vocab_size)
    said = " ".join(run(capsys, large, *memory)[1].out.split())
    needed = budgets.size(figures["grammar_process_bytes"])
    assert (
        f"Grammars need about {needed} more RAM from the first one on, for a vocabulary of {vocab_size:,} tokens."
        in said
    )


def test_only_config_json_is_needed_and_the_model_need_not_fit(large, capsys):
    code, output = run(capsys, large, "--ram", "8GiB")
    assert (code, output.err) == (0, "")
    assert "Does not fit" in output.out and "Suggestions" in output.out
    code, output = run(capsys, large, "--gpu", "h100", "--json")
    figures = json.loads(output.out)
    assert figures["fits"] and figures["memory"] == {"name": "one H100", "is_gpu": True, "bytes": GPUS["H100"]}
    formula = {"keys_and_values": 2, "layers": 32, "kv_heads": 8, "head_dim": 128, "bytes": 2, "scale_bytes": 0}
    assert figures["kv_formula"] == formula
    assert figures["kv_bytes_per_token"] == 2 * 32 * 8 * 128 * 2


def test_sequences_are_counted_for_lengths_up_to_the_context(large, capsys):
    arguments = (large, "--ram", "64GiB", "--num-kv-blocks", 1000, "--max-model-len", 9000, "--length", 17, "--json")
    figures = json.loads(run(capsys, *arguments)[1].out)
    assert figures["sequences"] == [
        {"length": 17, "fit": 500},
        {"length": 512, "fit": 31},
        {"length": 2048, "fit": 7},
        {"length": 8192, "fit": 1},
        {"length": 9000, "fit": 1},
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["/nowhere/at/all"], "/nowhere/at/all"),
        (["--gpu", "H20"], "'H200'"),
        (["--gpu", "H100", "--ram", "1GiB"], "--ram"),
        (["--ram", "much"], "--ram"),
        (["--gpu-memory", "0"], "--gpu-memory"),
        (["--length", "0"], "--length"),
        (["--length", "999999"], "2048"),
        (["--max-model-len", "999999"], "2048"),
        (["--port", "80"], "--port"),
    ],
    ids=" ".join,
)
def test_invalid_options_are_one_line_and_exit_with_2(capsys, arguments, says):
    code, output = run(capsys, *arguments)
    assert (code, output.out, output.err.count("\n")) == (2, "", 1)
    assert says in output.err


def test_a_gpu_is_found_in_any_spelling():
    assert find_gpu("rtx 4090") == find_gpu("4090") == find_gpu("RTX4090")
    assert find_gpu("a100-80gb")[0] == "A100-80GB"
    assert list(GPUS.values()) == sorted(GPUS.values())
    with pytest.raises(ConfigurationError, match="--gpu-memory"):
        find_gpu("abacus")


def advice(config, spec, memory):
    return "\n".join(page(Terminal(100), config, spec, make_budget(config, spec, memory), [512, spec.max_position]))


def test_advice_leads_to_a_plan_that_fits(large):
    """Each suggestion with a number is tried."""
    config = make_config({"model": str(large), "dtype": "float32"})
    spec = planned_spec(config)
    text = advice(config, spec, ram(20 * GIB))
    assert "--dtype bfloat16" in text
    config = make_config({"model": str(large)})
    spec = planned_spec(config)
    text = advice(config, spec, ram(40 * GIB))
    assert "--num-kv-blocks 8192" in text and "--max-model-len 32768" in text
    enough = make_config({"model": str(large), "num_kv_blocks": 8192})
    assert make_budget(enough, spec, ram(40 * GIB)).capacity_tokens == 131072
    assert "a larger GPU: A100-40GB" in advice(config, spec, gpu(GPUS["L4"]))
    assert make_budget(config, spec, gpu(GPUS["A100-40GB"])).capacity_tokens >= 131072
    assert "Suggestions" not in advice(config, spec, gpu(GPUS["H200"]))
    small = make_config({"model": str(large), "kv_cache_memory": KIB})
    assert "less than one block" in advice(small, spec, ram(40 * GIB))


def test_advice_suggests_quantization_only_with_kernels(large, monkeypatch):
    config = make_config({"model": str(large)})
    spec = planned_spec(config)
    monkeypatch.setattr(budgets, "supported_sets", lambda: ["avx2"])
    assert "--quantization int8: weights of 8.4 GiB" in advice(config, spec, ram(12 * GIB))
    assert "--kv-cache-dtype int8: 66 KiB per token" in advice(config, spec, ram(20 * GIB))
    for memory, model in ((gpu(12 * GIB), {}), (ram(12 * GIB), {"enforce_eager": True})):
        other = make_config({"model": str(large), **model})
        assert "--quantization" not in advice(other, spec, memory)
    int8 = make_config({"model": str(large), "quantization": "int8", "kv_cache_dtype": "int8"})
    assert "--quantization" not in (text := advice(int8, spec, ram(10 * GIB))) and "--kv-cache-dtype" not in text


@pytest.mark.parametrize("memory", [ram(1), ram(MIB), ram(20 * GIB), ram(64 * GIB), gpu(1), gpu(24 * GIB), gpu(2**44)])
@pytest.mark.parametrize("width", [40, 80, 100])
@pytest.mark.parametrize("given", [{}, {"quantization": "int8", "kv_cache_dtype": "int8"}, {"quantization": "int4"}])
def test_every_line_fits_the_terminal(large, memory, width, given):
    config = make_config({"model": str(large), "swap_space": 3 * GIB, **given})
    spec = planned_spec(config)
    budget = make_budget(config, spec, memory)
    for terminal in (Terminal(width), Terminal(width, is_unicode=False)):
        lines = list(page(terminal, config, spec, budget, [512, 2048, spec.max_position]))
        assert max(map(len, lines)) <= width
        assert all(line == line.rstrip() for line in lines)
        assert terminal.is_unicode or all(line.isascii() for line in lines)
        assert "\x1b" not in "".join(lines)


class Stream:
    """A stream of some kind."""

    def __init__(self, encoding, is_terminal):
        self.encoding = encoding
        self._is_terminal = is_terminal

    def isatty(self):
        return self._is_terminal


@pytest.mark.parametrize(
    ("stream", "environ", "is_unicode", "is_coloured"),
    [
        (Stream("UTF-8", True), {}, True, True),
        (Stream("utf8", False), {}, True, False),
        (Stream("UTF-8", True), {"NO_COLOR": "1"}, True, False),
        (Stream("UTF-8", True), {"NO_COLOR": ""}, True, True),
        (Stream("UTF-8", True), {"TERM": "dumb"}, True, False),
        (Stream("ANSI_X3.4-1968", True), {}, False, True),
        (Stream(None, False), {}, False, False),
    ],
)
def test_unicode_and_colours_depend_on_the_terminal(stream, environ, is_unicode, is_coloured):
    terminal = Terminal.of(stream, environ)
    assert (terminal.is_unicode, terminal.is_coloured) == (is_unicode, is_coloured)


@given(share=st.floats(-1, 2), begin=st.floats(-1, 2), width=st.integers(1, 100), is_unicode=st.booleans())
def test_a_bar_stays_in_its_columns_and_is_empty_only_for_0(share, begin, width, is_unicode):
    bar = Terminal(is_unicode=is_unicode).bar(share, width, begin)
    assert len(bar) <= width
    assert bool(bar.strip()) == (share > 0)


def test_a_bar_has_a_resolution_of_eighths():
    terminal = Terminal()
    assert [terminal.bar(eighths / 16, 2) for eighths in (0, 1, 8, 9, 16)] == ["", "▏", "█", "█▏", "██"]
    assert terminal.bar(0.5, 4, begin=0.5) == "  ██"


def test_the_plan_does_not_load_torch():
    code = "import sys; from app.cli import main; main(['plan']); sys.exit('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "guide" in result.stdout


@pytest.mark.parametrize(
    ("name", "more", "capability", "words"),
    [
        ("T4", (), "7.5", "need compute capability 8.0"),
        ("A100-40GB", ("--kv-cache-dtype", "fp8"), "8.0", "fp8 needs compute capability 8.9"),
        ("MI300X", (), None, "NVIDIA GPUs only"),
        ("L4", ("--kv-cache-dtype", "fp8"), "8.9", None),
    ],
)
def test_a_gpu_that_cannot_be_used_is_rejected_whatever_fits(name, more, capability, words, capsys):
    arguments = (tiny("Llama"), "--gpu", name, *more)
    figures = json.loads(run(capsys, *arguments, "--json")[1].out)
    assert figures["compute_capability"] == capability
    said = " ".join(run(capsys, *arguments)[1].out.split())
    if words is None:
        assert figures["refusal"] is None and "Fits" in said and "8.9 (bfloat16, FP8 KV cache)" in said
    else:
        assert words in figures["refusal"] and "Does not start: " in said and words in said


def test_every_gpu_known_by_name_has_a_capability_but_amds():
    assert set(GPUS) - set(CAPABILITIES) == {"MI300X"} and set(CAPABILITIES) <= set(GPUS)


def test_no_gpu_is_suggested_that_cannot_be_used():
    config = make_config({"device": "cuda", "kv_cache_dtype": "fp8"})
    assert known_gpu(config, "A100-80GB").rejection and not known_gpu(config, "H100").rejection
