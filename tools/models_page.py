"""The page of models that can be served, made from the tables of families."""

from __future__ import annotations

from app.checkpoint.gguf.gguf_spec import GGUF_FAMILIES
from app.checkpoint.specs.registry import FAMILIES
from app.checkpoint.tensor_types import SUPPORTED

_HEAD = """# Models

`quire plan MODEL` says before a download whether a model can be served here, and `quire models` says it of those on
this machine. A model that cannot be served is refused in one line that names the reason.

Of a model of the hub a plan reads config.json, or the header of the GGUF file, and no weights. It says which memory is
needed; if that is not there, which smaller quant of the repository fits; and what one answer gets at best here: the
memory's speed, measured in a fraction of a second, over the bytes of the weights that a token reads (of a mixture those
of the experts that compute it). Real speeds are below that, most of all for small models; of those that the caches of a
processor may hold, under 64 MiB, it says nothing. `--ram` and `--gpu` plan for other machines, whose speed is unknown.
A GGUF file whose weights do not fit ends the start with exit code 75, and the same advice.

Mixtures of experts run on a CPU only; a server with `--device cuda` refuses them, and so does a plan for a GPU.

A folder is served if the first of the `architectures` in its config.json is in this table, and a GGUF file if its
`general.architecture` is. The weights of folders are safetensors in float32, bfloat16 or
float16. The types of GGUF files are {types}.

| models | `architectures` | `general.architecture` | tested against |
|---|---|---|---|
"""
_TAIL = """
Of an architecture that ends in `ForConditionalGeneration` only the text model is loaded, and the line of the start says
so; an image in a request is an error.

Every architecture of a folder is tested against transformers: models with random weights, in which everything is in use
that the architecture may have, give the same tokens and logits in float32, with each set of operations, for a prompt
alone, and in chunks among others with the same bits. Every architecture of a GGUF file is tested against the folder
that the file is made of. Where llama.cpp stands in the table, its script also converts such a folder, and its program
gives the same probabilities for the file (`make peers PEERS="llama.cpp gguf"`, on demand).

The tokenizers of GGUF files are compared with those that the models' publishers ship, but for EXAONE 4's: words are
split by GPT-2's rule, which llama.cpp has for these files, and characters are composed first (NFC), as in EXAONE 4.5. A
folder has its own tokenizer.json, so nothing is assumed there.
"""


IN_LLAMA_CPP = frozenset((
    "LlamaForCausalLM", "MistralForCausalLM", "Ministral3ForCausalLM", "Qwen3ForCausalLM", "SmolLM3ForCausalLM",
    "GraniteForCausalLM", "GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM", "GemmaForCausalLM",
    "Gemma2ForCausalLM", "Gemma3ForCausalLM", "Olmo2ForCausalLM", "Olmo3ForCausalLM", "Glm4ForCausalLM",
    "SeedOssForCausalLM", "Exaone4ForCausalLM", "MixtralForCausalLM", "Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM",
))  # fmt: skip
"""Those that tests convert with llama.cpp's script and compare with its program; a test compares this with them."""


def models_page() -> str:
    """Return the page."""
    titles = dict.fromkeys(family.title for family in FAMILIES.values())
    return _HEAD.format(types=", ".join(SUPPORTED)) + "".join(map(_row, titles)) + _TAIL


def _row(title: str) -> str:
    architectures = [name for name, family in FAMILIES.items() if family.title == title]
    in_files = [
        name
        for name, family in GGUF_FAMILIES.items()
        if {family.architecture, *family.others}.intersection(architectures)
    ]
    peers = "transformers, llama.cpp" if IN_LLAMA_CPP.intersection(architectures) else "transformers"
    return f"| {title} | {_code(architectures)} | {_code(in_files) or '-'} | {peers} |\n"


def _code(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
