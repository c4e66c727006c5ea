"""The cells of `cpu --gguf`: shapes that suit the types, and a requirement for each."""

from benchmarks.cpu.gguf.cells import FAMILIES, FORMATS, GGUF, LOADS, MAX_MODEL_LEN, QWEN3_CONFIG, SETS, Cell
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
    cells = [cell for subject in (GGUF, FAMILIES) for cell in subject.cells(subject.formats, FORMATS, SETS)]
    names = {required(cell, load).name for cell in cells for load in LOADS}
    readings = (f"reading, {load.name}" for load in LOADS[:3])
    further = {f"GGUF, {name}" for name in ("loading beyond llama.cpp", "memory beyond what stays", *readings)}
    assert names | further == {name for name in limits("cpu") if name.startswith("GGUF, ")}
    assert required(Cell("smollm2", "int8", "avx2"), LOADS[1]).stretch == 3.5
    assert required(Cell("smollm2", "Q8_0", "avx2"), LOADS[1]).stretch is None


def test_mixtures_and_dense_dummies_have_requirements_of_their_own():
    values = {
        shape: [required(Cell(shape, "Q4_K_M", "native"), load).value for load in LOADS]
        for shape in ("q06", "mixtral", "gemma3")
    }
    assert values == {"q06": [1.05, 2.0, 2.5, 1.5], "mixtral": [1.05, 1.0, 1.0, 1.5], "gemma3": [1.05, 1.5, 2.0, 1.5]}


def test_a_subject_has_cells_of_its_own_formats_and_sets():
    assert [str(cell) for cell in FAMILIES.cells({"mixtral", "olmo2"}, {"Q8_0", "BF16"}, SETS)] == [
        "mixtral Q8_0 native", "olmo2 BF16 native",
    ]  # fmt: skip
    assert FAMILIES.known_formats == ["Q4_K_M", "Q8_0", "BF16"]
