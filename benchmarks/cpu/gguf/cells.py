"""The cells of `cpu --gguf` and `cpu --families`: a model, its number format, the instructions of the CPU, and a load.

No torch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from benchmarks.cpu.gguf.dummies import DUMMIES

SMOLLM2, QWEN3 = "smollm2", "q06"
SHAPES = (SMOLLM2, QWEN3)
SOURCE = "source"

QWEN3_CONFIG: Mapping[str, object] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151_936,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "attention_bias": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "dtype": "bfloat16",
}
"""Qwen3-0.6B: its widths are multiples of 256, which the K types need, and those of SmolLM2-135M are not."""


class Format(NamedTuple):
    """A number format: the file that Quire opens (SOURCE: not quantized), and how; the file that llama.cpp opens."""

    ours: str
    theirs: str
    quantization: str | None = None


FORMATS: Mapping[str, Format] = {
    **{kind: Format(kind, kind) for kind in ("Q4_0", "Q4_K_M", "Q6_K", "Q8_0")},
    "int8": Format(SOURCE, "Q8_0", "int8"),
    "BF16": Format("BF16", "BF16"),
}

SETS: Mapping[str, str | None] = {"native": None, "avx2": "avx2"}
"""The best instructions of this CPU, or those of one that has no AVX-512: the name of Quire's kernels."""


class Load(NamedTuple):
    """Prompts that are answered at once; `num_steps` decode steps are measured or, if it is 0, the prompt.

    Attributes:
        repeats: measurements per turn, of which the median counts.
    """

    name: str
    batch: int
    num_prompt: int
    num_steps: int
    repeats: int = 1

    @property
    def num_tokens(self) -> int:
        """The tokens that are measured."""
        return self.batch * (self.num_steps or self.num_prompt)


LOADS = (
    Load("1 row", 1, 16, 16, repeats=3),
    Load("8 rows", 8, 16, 16),
    Load("32 rows", 32, 16, 16),
    Load("512-token prompt", 1, 512, 0),
)
MAX_MODEL_LEN = 576


class Cell(NamedTuple):
    """What is measured of one file, under all loads."""

    shape: str
    format: str
    set: str

    def __str__(self) -> str:
        return f"{self.shape} {self.format} {self.set}"


class Subject(NamedTuple):
    """What one run measures: its name, the file of its results, and by shapes the formats and SETS of their cells."""

    name: str
    result: str
    formats: Mapping[str, tuple[str, ...]]
    sets: tuple[str, ...]

    @property
    def known_formats(self) -> list[str]:
        """The formats of any cell."""
        return list(dict.fromkeys(form for forms in self.formats.values() for form in forms))

    def cells(self, shapes: Collection[str], formats: Collection[str], sets: Collection[str]) -> list[Cell]:
        """Return the cells of some shapes, formats and sets."""
        return [
            Cell(shape, form, name)
            for shape, forms in self.formats.items()
            for form in forms
            for name in self.sets
            if shape in shapes and form in formats and name in sets
        ]


_QUANTIZED = ("Q4_0", "Q4_K_M", "Q6_K", "Q8_0", "int8")
GGUF = Subject("cpu --gguf", "cpu_gguf.json", dict.fromkeys(SHAPES, _QUANTIZED), tuple(SETS))
# In bf16 both sides of a mixture would not fit the memory of a small machine.
FAMILIES = Subject(
    "cpu --families",
    "cpu_families.json",
    {name: ("Q4_K_M", "Q8_0" if dummy.is_mixture else "BF16") for name, dummy in DUMMIES.items()},
    ("native",),
)
