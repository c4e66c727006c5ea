"""The cells of `cpu --gguf`: shapes that suit the types, and a requirement for each."""

from benchmarks.cpu.gguf.cells import FORMATS, LOADS, MAX_MODEL_LEN, QWEN3_CONFIG, SETS, SHAPES, Cell
from benchmarks.cpu.gguf.figures import required
from benchmarks.limits import limits


def test_the_widths_of_the_random_model_are_whole_blocks_of_k_types():
    widths = [QWEN3_CONFIG[name] for name in ("hidden_size", "intermediate_size")]
    widths.append(QWEN3_CONFIG["num_attention_heads"] * QWEN3_CONFIG["head_dim"])
    assert [width % 256 for width in widths] == [0, 0, 0]


def test_every_load_fits_and_says_how_many_tokens_it_measures():
    assert all(load.num_prompt + 1 + load.num_steps <= MAX_MODEL_LEN for load in LOADS)
    assert {load.name: load.num_tokens for load in LOADS} == {
        "1 row": 16, "8 rows": 128, "32 rows": 512, "512-token prompt": 512,
    }  # fmt: skip


def test_every_cell_has_a_requirement_and_every_requirement_a_cell():
    names = {
        required(Cell(shape, form, name), load).name
        for shape in SHAPES for form in FORMATS for name in SETS for load in LOADS
    }  # fmt: skip
    assert names == {name for name in limits("cpu") if name.startswith("GGUF, ")}
    assert required(Cell("smollm2", "int8", "avx2"), LOADS[1]).stretch == 3.5
    assert required(Cell("smollm2", "Q8_0", "avx2"), LOADS[1]).stretch is None
