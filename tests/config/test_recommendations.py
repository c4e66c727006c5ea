"""What publishers recommend, and which models a recommendation is for."""

from urllib.parse import urlsplit

import pytest

from app.checkpoint.gguf.gguf_spec import GGUF_FAMILIES
from app.checkpoint.specs.registry import FAMILIES
from app.config.recommendations import RECOMMENDATIONS, recommendation
from app.contract.sampling_params import SamplingParams

LLAMA, QWEN2, QWEN3, MISTRAL = "LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "MistralForCausalLM"


@pytest.mark.parametrize(
    ("architecture", "name", "family"),
    [
        (LLAMA, "SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2"),
        (LLAMA, "SmolLM2-1.7B-Instruct-Q4_K_M.gguf", "SmolLM2"),
        ("SmolLM3ForCausalLM", "SmolLM3-3B", "SmolLM3"),
        (LLAMA, "DeepSeek-R1-Distill-Llama-8B", "DeepSeek-R1-Distill"),
        (QWEN2, "DeepSeek R1 Distill Qwen 1.5B", "DeepSeek-R1-Distill"),
        (QWEN2, "QwQ-32B", "QwQ-32B"),
        (QWEN2, "Qwen2.5 0.5B Instruct", "Qwen2.5"),
        (QWEN2, "qwen2.5-7b-instruct-q4_k_m-00001-of-00002.gguf", "Qwen2.5"),
        (QWEN3, "Qwen3-0.6B", "Qwen3"),
        (QWEN3, "Qwen3-1.7B-GGUF", "Qwen3"),
        (QWEN3, "Qwen3 4B Instruct 2507", "Qwen3-Instruct-2507"),
        (QWEN3, "Qwen3-4B-Thinking-2507", "Qwen3-Thinking-2507"),
        (LLAMA, "Meta-Llama-3.1-8B-Instruct", "Llama 3, 3.1, 3.2, 3.3"),
        (LLAMA, "Llama 3.2 1B Instruct", "Llama 3, 3.1, 3.2, 3.3"),
        (LLAMA, "Magistral-Small-2506", "Magistral Small"),
        (MISTRAL, "Mistral-Small-24B-Instruct-2501", "Mistral Small 3, 3.1, 3.2"),
        (LLAMA, "Mistral Small 3.2 24B Instruct 2506", "Mistral Small 3, 3.1, 3.2"),
        (MISTRAL, "Mistral-Nemo-Instruct-2407", "Mistral Nemo"),
        ("Phi3ForCausalLM", "Phi-4-reasoning-plus", "Phi-4-reasoning"),
        ("Gemma3ForConditionalGeneration", "gemma-3-4b-it", "Gemma 3"),
        ("Gemma3ForCausalLM", "Gemma 3 1b It", "Gemma 3"),
        ("SeedOssForCausalLM", "Seed-OSS-36B-Instruct", "Seed-OSS"),
    ],
)
def test_a_model_is_known_by_its_architecture_and_its_name(architecture, name, family):
    found = recommendation(architecture, ("something", name))
    assert found is not None and found.family == family
    assert recommendation("GraniteForCausalLM", (name,)) is None


@pytest.mark.parametrize(
    ("architecture", "names"),
    [
        (LLAMA, ("SmolLM2-135M-Base",)),
        (QWEN2, ("Qwen2.5", "Qwen2.5-7B-base")),
        (QWEN2, ("Qwen2.5", "Qwen2.5 7B", "Qwen2.5-7B.Q4_K_M.gguf")),
        (LLAMA, ("SmolLM2-135M", "smollm2")),
        (LLAMA, ("Meta-Llama-3-8B", "Llama-3.2-1B-Q8_0.gguf", "Llama-3.1-8B-Lexi-Uncensored")),
        (QWEN3, ("Qwen3-0.6B-Base",)),
        (LLAMA, ("Hermes-3-Llama-3.2-3B",)),
        (LLAMA, ("Llama-3.1-Nemotron-Nano-8B",)),
        (MISTRAL, ("Mistral-Small-Instruct-2409",)),
        (QWEN2, ("Qwen2.5-Coder-7B",)),
        (QWEN3, ("Qwen3-Embedding-0.6B",)),
        (LLAMA, ("smollm23",)),
        ("Phi3ForCausalLM", ("phi-4",)),
        (LLAMA, ("",)),
        (LLAMA, ()),
    ],
)
def test_base_models_and_models_of_others_have_no_recommendation(architecture, names):
    assert recommendation(architecture, names) is None


@pytest.mark.parametrize("row", RECOMMENDATIONS, ids=lambda row: row.family)
def test_each_row_is_for_served_models_and_names_its_source(row):
    served = set(FAMILIES) | {family.architecture for family in GGUF_FAMILIES.values()}
    assert set(row.architectures) <= served
    for values in (row.values, row.without_thinking or row.values):
        assert "temperature" in values
        SamplingParams(**values)
    assert urlsplit(row.url).scheme == "https"
