"""How answers are parsed, chosen by the source of a template; real templates come with the source of llama.cpp."""

import os
from pathlib import Path

import pytest

from app.text.answer.choose import choose_format, choose_reasoning, is_generic
from app.text.calls.formats import FORMATS
from tests.text.templates import CHATML, LLAMA_3, MISTRAL

SOURCE = Path(os.environ.get("QUIRE_LLAMA_CPP", "nowhere")) / "models/templates"
FAMILIES = {
    "mistral": "Mistral-Small-3.2-24B-Instruct-2506 mistralai-Ministral-3-14B-Reasoning-2512 "
    "unsloth-mistral-Devstral-Small-2507",
    "mistral_v3": "mistralai-Mistral-Nemo-Instruct-2407",
    "deepseek": "deepseek-ai-DeepSeek-R1-Distill-Llama-8B deepseek-ai-DeepSeek-R1-Distill-Qwen-32B "
    "deepseek-ai-DeepSeek-V3.1 llama-cpp-deepseek-r1",
    "kimi": "Kimi-K2-Instruct Kimi-K2-Thinking moonshotai-Kimi-K2",
    "minimax": "MiniMax-M2",
    "glm": "GLM-4.6 GLM-4.7-Flash Spark2.5 inclusionai-ling-3.0-flash poolside-Laguna-S-2.1 poolside-Laguna-XS-2.1 "
    "poolside-Laguna-XS.2",
    "qwen3_coder": "ByteDance-Seed-OSS NVIDIA-Nemotron-3-Nano-30B-A3B-BF16 Qwen3-Coder Qwen3.5-4B StepFun3.5-Flash",
    "functionary": "meetkai-functionary-medium-v3.1",
    "lfm2": "LFM2-8B-A1B LFM2.5-8B-A1B LFM2.5-Instruct",
    "llama_json": "meta-llama-Llama-3.1-8B-Instruct meta-llama-Llama-3.2-3B-Instruct meta-llama-Llama-3.3-70B-Instruct",
    "json_list": "Apriel-1.6-15b-Thinker-fixed MiniMax-M1 NVIDIA-Nemotron-Nano-v2 "
    "ibm-granite-granite-3.3-2B-Instruct unsloth-Apriel-1.5",
    "hermes": "Bielik-11B-v3.0-Instruct MiMo-VL NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use "
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use Qwen-QwQ-32B Qwen-Qwen2.5-7B-Instruct Qwen-Qwen3-0.6B Reka-Edge "
    "ibm-granite-granite-4.0 ibm-granite-granite-4.1",
    # The generic format: these templates do nothing with tools.
    "generic": "HuggingFaceTB-SmolLM3-3B google-gemma-2-2b-it llama-cpp-rwkv-world microsoft-Phi-3.5-mini-instruct",
}
REASONING = {
    "seed": "ByteDance-Seed-OSS",
    "mistral": "mistralai-Ministral-3-14B-Reasoning-2512",
    "gemma": "google-gemma-4-31B-it google-gemma-4-31B-it-interleaved",
}
WITHOUT_REASONING = (
    "Qwen3-Coder Qwen-Qwen2.5-7B-Instruct meta-llama-Llama-3.1-8B-Instruct microsoft-Phi-3.5-mini-instruct"
)


@pytest.mark.long
@pytest.mark.skipif(not SOURCE.is_dir(), reason="needs llama.cpp's source (QUIRE_LLAMA_CPP)")
def test_families_of_real_templates():
    found: dict[str, str] = {}
    for file in sorted(SOURCE.glob("*.jinja")):
        source = file.read_text("utf-8")
        row = choose_format(source)
        if row is not None:
            found[file.stem] = "generic" if is_generic(source) else row.name
    assert found == {name: family for family, names in FAMILIES.items() for name in names.split()}


@pytest.mark.long
@pytest.mark.skipif(not SOURCE.is_dir(), reason="needs llama.cpp's source (QUIRE_LLAMA_CPP)")
def test_reasoning_of_real_templates():
    for style, names in REASONING.items():
        for name in names.split():
            chosen = choose_reasoning((SOURCE / f"{name}.jinja").read_text("utf-8"))
            assert chosen is not None and chosen.name == style, name
    for name in WITHOUT_REASONING.split():
        assert choose_reasoning((SOURCE / f"{name}.jinja").read_text("utf-8")) is None
    thinking = "Qwen-Qwen3-0.6B Qwen3.5-4B Qwen-QwQ-32B deepseek-ai-DeepSeek-R1-Distill-Llama-8B GLM-4.6"
    for name in thinking.split():
        assert choose_reasoning((SOURCE / f"{name}.jinja").read_text("utf-8")).name == "think"


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("{{ tools }}[TOOL_CALLS]x[ARGS]", "mistral"),
        ("{{ tools }}[TOOL_CALLS]", "mistral_v3"),
        ("{{ tools }}<｜tool▁calls▁begin｜>", "deepseek"),
        ("{{ tools }}<|tool_call_begin|><|tool_call_argument_begin|>", "kimi"),
        ("{{ tools }}<minimax:tool_call><invoke name=", "minimax"),
        ("{{ tools }}<minimax:tool_call><｜DSML｜tool_call>", None),
        ("{{ tools }}<tool_call><arg_key>", "glm"),
        ("{{ tools }}<tool_call><function=f><parameter=k>", "qwen3_coder"),
        ("{{ tools }}<function=f>", "functionary"),
        ("{{ tools }}<|python_tag|>", "llama_json"),
        ('{{ tools }}"parameters": ipython', "llama_json"),
        ('{{ tools }}"parameters": ipython<|python_start|>', "llama_json"),  # Llama 4
        ('{{ tools }}ipython "parameters": [func_name1(param1=value1)]', "pythonic"),
        ("{{ tools }}List of tools: [", "lfm2"),
        ("{{ tools }}<|tool_list_start|>", "lfm2"),
        ("{{ tools }}<|tool_call_start|>", "lfm2"),
        ("{{ tools }}<|tool_call|>", "json_list"),
        ("{{ tools }}<TOOLCALL>", "json_list"),
        ("{{ tools }}<tool_call>", "hermes"),
        ("{{ tools }}<tool_call><invoke name=", None),
        ("{{ tools }}<｜DSML｜tool_call>", None),
        ("{{ tools }}", None),
        (CHATML, None),
        (LLAMA_3, "hermes"),  # nothing about tools: the generic format
        (MISTRAL, "hermes"),
    ],
)
def test_the_first_row_that_fits_is_chosen(source, name):
    row = choose_format(source)
    assert (row and row.name) == name


def test_settings_win_over_the_template():
    assert choose_format("{{ tools }}<tool_call>", "none") is None
    assert choose_format("{{ tools }}<tool_call>", "mistral") is FORMATS["mistral"]
    assert choose_reasoning(CHATML, "none") is None
    assert choose_reasoning(LLAMA_3, "seed").name == "seed"
    assert choose_reasoning(CHATML).name == "think"
    assert choose_reasoning(LLAMA_3) is None
