"""The supported architectures, by the name in config.json."""

from __future__ import annotations

from app.checkpoint.fields import Fields
from app.checkpoint.specs.expert_fields import EXPERT_NAMES
from app.checkpoint.specs.family import Family
from app.checkpoint.specs.granite import read_granite
from app.checkpoint.specs.granite_moe import GRANITE_MOE_NAMES, read_granite_hybrid, read_granite_moe
from app.checkpoint.specs.llama import read_llama, read_mistral
from app.checkpoint.specs.mixtral import MIXTRAL_NAMES, read_mixtral
from app.checkpoint.specs.phi3 import PHI3_NAMES, read_phi3
from app.checkpoint.specs.qwen import read_qwen2, read_qwen3
from app.checkpoint.specs.qwen_moe import read_qwen2_moe, read_qwen3_moe
from app.checkpoint.specs.smollm3 import read_smollm3

FAMILIES = {
    "LlamaForCausalLM": Family(read_llama),
    "MistralForCausalLM": Family(read_mistral),
    "Qwen2ForCausalLM": Family(read_qwen2),
    "Qwen3ForCausalLM": Family(read_qwen3),
    "Phi3ForCausalLM": Family(read_phi3, PHI3_NAMES, ignores_code=True),
    "SmolLM3ForCausalLM": Family(read_smollm3),
    "GraniteForCausalLM": Family(read_granite),
    "GraniteMoeHybridForCausalLM": Family(read_granite_hybrid, GRANITE_MOE_NAMES),
    "GraniteMoeForCausalLM": Family(read_granite_moe, GRANITE_MOE_NAMES),
    "GraniteMoeSharedForCausalLM": Family(read_granite_moe, GRANITE_MOE_NAMES),
    "MixtralForCausalLM": Family(read_mixtral, MIXTRAL_NAMES),
    "Qwen2MoeForCausalLM": Family(read_qwen2_moe, EXPERT_NAMES),
    "Qwen3MoeForCausalLM": Family(read_qwen3_moe, EXPERT_NAMES),
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
