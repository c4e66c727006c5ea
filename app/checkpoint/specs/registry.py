"""The supported architectures, by the name in config.json."""

from __future__ import annotations

from app.checkpoint.fields import Fields
from app.checkpoint.specs.exaone4 import read_exaone4
from app.checkpoint.specs.family import Family
from app.checkpoint.specs.gemma import GEMMA3_DEFAULTS, GEMMA_DEFAULTS, read_gemma2, read_gemma3
from app.checkpoint.specs.gemma1 import GEMMA1_DEFAULTS, read_gemma
from app.checkpoint.specs.glm4 import GLM4_DEFAULTS, GLM4_NAMES, read_glm4
from app.checkpoint.specs.granite import read_granite
from app.checkpoint.specs.llama import read_llama, read_mistral
from app.checkpoint.specs.ministral3 import read_ministral3, read_mistral3
from app.checkpoint.specs.mixtures.expert_fields import EXPERT_NAMES
from app.checkpoint.specs.mixtures.granite_moe import GRANITE_MOE_NAMES, read_granite_hybrid, read_granite_moe
from app.checkpoint.specs.mixtures.mixtral import MIXTRAL_NAMES, read_mixtral
from app.checkpoint.specs.mixtures.qwen_moe import read_qwen2_moe, read_qwen3_moe
from app.checkpoint.specs.olmo import read_olmo2, read_olmo3
from app.checkpoint.specs.phi3 import PHI3_NAMES, read_phi3
from app.checkpoint.specs.qwen import read_qwen2, read_qwen3
from app.checkpoint.specs.seed_oss import read_seed_oss
from app.checkpoint.specs.smollm3 import read_smollm3
from app.checkpoint.specs.text_part import PART_NAMES

FAMILIES = {
    "LlamaForCausalLM": Family("Llama", read_llama),
    "MistralForCausalLM": Family("Mistral", read_mistral),
    "Mistral3ForConditionalGeneration": Family("Mistral 3", read_mistral3, PART_NAMES, is_text_only=True),
    "Ministral3ForCausalLM": Family("Ministral 3", read_ministral3),
    "Qwen2ForCausalLM": Family("Qwen2", read_qwen2),
    "Qwen3ForCausalLM": Family("Qwen3", read_qwen3),
    "Phi3ForCausalLM": Family("Phi-3 and Phi-4", read_phi3, PHI3_NAMES, ignores_code=True),
    "SmolLM3ForCausalLM": Family("SmolLM3", read_smollm3),
    "GraniteForCausalLM": Family("Granite 3", read_granite),
    "GraniteMoeHybridForCausalLM": Family("Granite 4 without Mamba", read_granite_hybrid, GRANITE_MOE_NAMES),
    "GraniteMoeForCausalLM": Family("Granite 3 with experts", read_granite_moe, GRANITE_MOE_NAMES),
    "GraniteMoeSharedForCausalLM": Family("Granite 3 with experts", read_granite_moe, GRANITE_MOE_NAMES),
    "GemmaForCausalLM": Family("Gemma", read_gemma, defaults=GEMMA1_DEFAULTS),
    "Gemma2ForCausalLM": Family("Gemma 2", read_gemma2, defaults=GEMMA_DEFAULTS),
    "Gemma3ForCausalLM": Family("Gemma 3", read_gemma3, defaults=GEMMA3_DEFAULTS),
    "Gemma3ForConditionalGeneration": Family(
        "Gemma 3", read_gemma3, PART_NAMES, defaults=GEMMA3_DEFAULTS, is_text_only=True
    ),
    "Olmo2ForCausalLM": Family("OLMo 2", read_olmo2),
    "Olmo3ForCausalLM": Family("OLMo 3", read_olmo3),
    "Glm4ForCausalLM": Family("GLM-4", read_glm4, GLM4_NAMES, defaults=GLM4_DEFAULTS),
    "SeedOssForCausalLM": Family("Seed-OSS", read_seed_oss),
    "Exaone4ForCausalLM": Family("EXAONE 4", read_exaone4, ignores_code=True),
    "MixtralForCausalLM": Family("Mixtral", read_mixtral, MIXTRAL_NAMES),
    "Qwen2MoeForCausalLM": Family("Qwen2-MoE", read_qwen2_moe, EXPERT_NAMES),
    "Qwen3MoeForCausalLM": Family("Qwen3-MoE", read_qwen3_moe, EXPERT_NAMES),
}


def find_family(fields: Fields) -> Family:
    """Return the entry of `FAMILIES` for a config.json.

    Raises:
        ModelRefused: the architecture is not supported, or needs what is not: code of its own, quantized weights.
    """
    names = fields.config.get("architectures") or ["(none)"]
    name = names[0] if isinstance(names, list) and names else "(none)"
    if not isinstance(name, str) or name not in FAMILIES:
        raise fields.rejection(
            "architectures", f"names {name!r:.80}, which is not supported; supported are {', '.join(FAMILIES)}"
        )
    family = FAMILIES[name]
    if "auto_map" in fields.config and not family.ignores_code:
        raise fields.rejection("auto_map", "needs code from the checkpoint; remote code is never run")
    method = fields.config.get("quantization_config")
    if method is not None and not _quantizes_only_kv(method):
        method = method.get("quant_method") if isinstance(method, dict) else method
        raise fields.rejection("quantization_config", f"names {method!r:.80}; use an unquantized checkpoint")
    return family


def _quantizes_only_kv(config: object) -> bool:
    """Return whether a `quantization_config` leaves the weights alone, and only tells of scales for a KV cache."""
    if not isinstance(config, dict) or config.get("quant_method") != "compressed-tensors":
        return False
    return bool(config.get("kv_cache_scheme")) and not config.get("config_groups")
