"""Published configurations of families whose layers are not all alike, or that normalize elsewhere than a Llama."""

from __future__ import annotations

from typing import Any

GEMMA_2_2B: dict[str, Any] = {
    "architectures": ["Gemma2ForCausalLM"], "attention_bias": False, "attn_logit_softcapping": 50.0,
    "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": [1, 107], "final_logit_softcapping": 30.0,
    "head_dim": 256, "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304,
    "intermediate_size": 9216, "max_position_embeddings": 8192, "model_type": "gemma2", "num_attention_heads": 8,
    "num_hidden_layers": 26, "num_key_value_heads": 4, "pad_token_id": 0, "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "sliding_window": 4096, "torch_dtype": "bfloat16",
    "vocab_size": 256000,
}  # fmt: skip
GEMMA_3_1B: dict[str, Any] = {
    "architectures": ["Gemma3ForCausalLM"], "attention_bias": False, "attn_logit_softcapping": None, "bos_token_id": 2,
    "cache_implementation": "hybrid", "eos_token_id": [1, 106], "final_logit_softcapping": None, "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152, "intermediate_size": 6912,
    "max_position_embeddings": 32768, "model_type": "gemma3_text", "num_attention_heads": 4, "num_hidden_layers": 26,
    "num_key_value_heads": 1, "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000, "rope_scaling": None, "rope_theta": 1000000, "sliding_window": 512,
    "sliding_window_pattern": 6, "torch_dtype": "bfloat16", "vocab_size": 262144,
}  # fmt: skip
GEMMA_3_4B: dict[str, Any] = {
    "architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 255999, "eoi_token_index": 256000,
    "eos_token_id": [1, 106], "image_token_index": 262144, "mm_tokens_per_image": 256, "model_type": "gemma3",
    "text_config": {
        "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024,
    },
    "torch_dtype": "bfloat16", "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"},
}  # fmt: skip
OLMO_2_1B: dict[str, Any] = {
    "architectures": ["Olmo2ForCausalLM"], "attention_bias": False, "eos_token_id": 100257, "hidden_act": "silu",
    "hidden_size": 2048, "intermediate_size": 8192, "max_position_embeddings": 4096, "model_type": "olmo2",
    "num_attention_heads": 16, "num_hidden_layers": 16, "num_key_value_heads": 16, "pad_token_id": 100277,
    "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 500000, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "vocab_size": 100352,
}  # fmt: skip
OLMO_3_7B: dict[str, Any] = {
    "architectures": ["Olmo3ForCausalLM"], "attention_bias": False, "eos_token_id": 100257, "hidden_act": "silu",
    "hidden_size": 4096, "intermediate_size": 11008,
    "layer_types": [*["sliding_attention"] * 3, "full_attention"] * 8, "max_position_embeddings": 65536,
    "model_type": "olmo3", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
    "rms_norm_eps": 1e-06, "rope_scaling": {
        "attention_factor": 1.2079441541679836, "beta_fast": 32, "beta_slow": 1, "factor": 8.0,
        "original_max_position_embeddings": 8192, "rope_type": "yarn",
    }, "rope_theta": 500000, "sliding_window": 4096, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "vocab_size": 100278,
}  # fmt: skip
GLM_4_9B: dict[str, Any] = {
    "architectures": ["Glm4ForCausalLM"], "attention_bias": True, "eos_token_id": [151329, 151336, 151338],
    "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 13696,
    "max_position_embeddings": 32768, "model_type": "glm4", "num_attention_heads": 32, "num_hidden_layers": 40,
    "num_key_value_heads": 2, "pad_token_id": 151329, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "vocab_size": 151552,
}  # fmt: skip
SEED_OSS_36B: dict[str, Any] = {
    "architectures": ["SeedOssForCausalLM"], "attention_bias": True, "attention_dropout": 0.1,
    "attention_out_bias": False, "bos_token_id": 0, "eos_token_id": 2, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 5120, "intermediate_size": 27648, "max_position_embeddings": 524288, "mlp_bias": False,
    "model_type": "seed_oss", "num_attention_heads": 80, "num_hidden_layers": 64, "num_key_value_heads": 8,
    "residual_dropout": 0.1, "rms_norm_eps": 1e-06, "rope_scaling": {"rope_type": "default"}, "rope_theta": 1e7,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "vocab_size": 155136,
}  # fmt: skip
EXAONE_4_32B: dict[str, Any] = {
    "architectures": ["Exaone4ForCausalLM"], "bos_token_id": 1, "eos_token_id": 361, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 5120, "intermediate_size": 27392,
    "layer_types": [*["sliding_attention"] * 3, "full_attention"] * 16, "max_position_embeddings": 131072,
    "model_type": "exaone4", "num_attention_heads": 40, "num_hidden_layers": 64, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05, "rope_scaling": {
        "factor": 16.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    }, "rope_theta": 1000000, "sliding_window": 4096, "sliding_window_pattern": "LLLG", "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "vocab_size": 102400,
}  # fmt: skip
EXAONE_4_1B = EXAONE_4_32B | {
    "head_dim": 64, "hidden_size": 2048, "intermediate_size": 4096, "layer_types": ["full_attention"] * 30,
    "max_position_embeddings": 65536, "num_attention_heads": 32, "num_hidden_layers": 30, "sliding_window": None,
    "sliding_window_pattern": None, "tie_word_embeddings": True,
}  # fmt: skip
MINISTRAL_3_8B: dict[str, Any] = {
    "architectures": ["Mistral3ForConditionalGeneration"], "dtype": "bfloat16", "image_token_index": 10,
    "model_type": "mistral3", "multimodal_projector_bias": False, "projector_hidden_act": "gelu",
    "spatial_merge_size": 2,
    "text_config": {
        "attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096,
        "intermediate_size": 14336, "max_position_embeddings": 262144, "model_type": "ministral3",
        "num_attention_heads": 32, "num_hidden_layers": 34, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
        "rope_parameters": {
            "beta_fast": 32.0, "beta_slow": 1.0, "factor": 16.0, "llama_4_scaling_beta": 0.1, "mscale": 1.0,
            "mscale_all_dim": 1.0, "original_max_position_embeddings": 16384, "rope_theta": 1000000.0,
            "rope_type": "yarn", "type": "yarn",
        },
        "sliding_window": None, "vocab_size": 131072,
    },
    "vision_config": {"hidden_size": 1024, "model_type": "pixtral"},
}  # fmt: skip

NUM_PARAMETERS = {
    "gemma 2 2b": (GEMMA_2_2B, 2614341888),
    "gemma 3 1b": (GEMMA_3_1B, 999885952),
    "gemma 3 4b": (GEMMA_3_4B, 3880263168),
    "olmo 2 1b": (OLMO_2_1B, 1484916736),
    "olmo 3 7b": (OLMO_3_7B, 7298011136),
    "glm 4 9b": (GLM_4_9B, 9400279040),
    "seed oss 36b": (SEED_OSS_36B, 36151104512),
    "exaone 4 32b": (EXAONE_4_32B, 32003216384),
    "exaone 4 1.2b": (EXAONE_4_1B, 1279391488),
    "ministral 3 8b": (MINISTRAL_3_8B, 8489553920),
}
"""The configurations, and how many weights the text models have."""
