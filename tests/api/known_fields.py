"""The fields that other servers and stock SDKs have in the bodies of our routes."""

from huggingface_hub import ChatCompletionInput
from openai.types import completion_create_params as completions
from openai.types import embedding_create_params as embeddings
from openai.types.chat import ChatCompletionStreamOptionsParam
from openai.types.chat import completion_create_params as chats

STREAM_OPTIONS = {*ChatCompletionStreamOptionsParam.__annotations__, "continuous_usage_stats"}
"""Of the installed openai package, and vLLM's."""

OPENAI = {
    *chats.CompletionCreateParamsNonStreaming.__annotations__, *chats.CompletionCreateParamsBase.__annotations__,
    *completions.CompletionCreateParamsNonStreaming.__annotations__,
    *completions.CompletionCreateParamsBase.__annotations__, *embeddings.EmbeddingCreateParams.__annotations__,
}  # fmt: skip
"""Of the installed openai package."""

HUGGING_FACE = {name for name in ChatCompletionInput.__annotations__ if not name.startswith("_")}
"""Of the installed huggingface_hub package."""

VLLM = """
model messages prompt frequency_penalty logit_bias logprobs top_logprobs max_tokens max_completion_tokens n
presence_penalty response_format seed stop stream stream_options temperature top_p tools tool_choice reasoning_effort
thinking_token_budget include_reasoning parallel_tool_calls user use_beam_search top_k min_p repetition_penalty
watermarking length_penalty stop_token_ids include_stop_str_in_output ignore_eos min_tokens skip_special_tokens
spaces_between_special_tokens truncate_prompt_tokens truncation_side prompt_logprobs logprob_token_ids
allowed_token_ids bad_words echo suffix add_generation_prompt continue_final_message add_special_tokens documents
chat_template chat_template_kwargs media_io_kwargs mm_processor_kwargs structured_outputs priority request_id
session_id return_tokens_as_token_ids return_token_ids routed_experts_prompt_start return_token_offsets
return_prompt_text return_mm_kwargs cache_salt kv_transfer_params ec_transfer_params vllm_xargs repetition_detection
stream_interval prompt_embeds best_of guided_json guided_regex guided_choice guided_grammar structural_tag
logits_processors input encoding_format dimensions embed_dtype endianness use_activation
"""
"""vllm/entrypoints/openai/{chat_completion,completion}/protocol.py at 002032ee2b18 and pooling/base/protocol.py; of
older versions best_of, guided_*, structural_tag and logits_processors."""

LLAMA_CPP = """
verbose timings_per_token stream stream_options cache_prompt return_tokens return_progress sse_ping_interval n_predict
max_completion_tokens max_tokens n_indent n_keep n_discard n_cmpl n n_cache_reuse t_max_prompt_ms t_max_predict_ms
response_fields top_k top_p min_p top_n_sigma xtc_probability xtc_threshold typical_p temperature dynatemp_range
dynatemp_exponent repeat_last_n repeat_penalty frequency_penalty presence_penalty dry_multiplier dry_base
dry_allowed_length dry_penalty_last_n mirostat mirostat_tau mirostat_eta adaptive_target adaptive_decay seed n_probs
logprobs min_keep backend_sampling post_sampling_probs lora dry_sequence_breakers json_schema grammar grammar_type
grammar_lazy chat_format reasoning_format generation_prompt parse_tool_calls chat_parser continue_final_message echo
preserved_tokens grammar_triggers reasoning_control reasoning_budget_tokens reasoning_budget_start_tag
reasoning_budget_end_tags reasoning_budget_end_tag reasoning_budget_message logit_bias ignore_eos stop samplers
messages prompt tools tool_choice parallel_tool_calls response_format add_generation_prompt chat_template_kwargs
thinking_budget_tokens top_logprobs id_slot image_data penalize_nl tfs_z input content encoding_format embd_normalize
"""
"""tools/server/server-schema.cpp at 0177c34227eb and what server-common.cpp reads of chats; of older versions
image_data, penalize_nl and tfs_z."""

OTHERS = """
no_stop_trim stop_regex separate_reasoning stream_reasoning return_hidden_states return_routed_experts
return_cached_tokens_details return_meta_info lora_path session_params custom_params custom_logit_processor input_ids
bootstrap_host bootstrap_port bootstrap_room data_parallel_rank extra_key rid sampling_seed max_new_tokens
min_new_tokens regex ebnf json_schema random_seed safe_prompt enable_thinking thinking thinking_budget reasoning
input_type truncate prompt_name stop_sequences num_predict top_a adapter_id ban_eos_token banned_strings banned_tokens
custom_token_bans decoder_input_details do_sample embedding_type encoder_repetition_penalty epsilon_cutoff eta_cutoff
extra_body format guidance_scale instruction late_chunking negative_prompt no_repeat_ngram_size normalized num_beams
options output_dimension output_dtype penalty_alpha rep_pen return_full_text smoothing_factor stopping_strings task tfs
think typical until watermark
"""
"""SGLang's entrypoints/openai/protocol.py and sampling_params.py, and fields of Mistral, Qwen, DeepSeek, OpenRouter,
TEI and Ollama."""

KNOWN = {*OPENAI, *HUGGING_FACE, *VLLM.split(), *LLAMA_CPP.split(), *OTHERS.split()}
