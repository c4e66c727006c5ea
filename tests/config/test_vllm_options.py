"""vLLM's options: a case for each row of the table, on the command line and as keywords."""

import shlex

import pytest

from app.commands import options, serve
from app.config.settings import settings
from app.config.vllm_options import SECTIONS, translate, variables_note, vllm_options
from app.contract.errors import ConfigurationError

SAME, NOTE, REFUSED = "same", "note", "refused"
"""Accepted without a line and without an effect; accepted with a line; refused."""
# name: (value, what becomes of it: one of the words above, the settings, or the settings and NOTE), ...
CASES: dict[str, tuple] = {
    "model": (("guide", {"model": "guide"}),),
    "served_model_name": (("a", {"served_model_name": "a"}),),
    "revision": (("main", {"revision": "main"}),),
    "trust_remote_code": ((True, NOTE), (False, SAME)),
    "tokenizer": (("owner/name", NOTE), (None, SAME)),
    "tokenizer_mode": (("auto", SAME), ("slow", NOTE)),
    "skip_tokenizer_init": ((True, REFUSED), (False, SAME)),
    "tokenizer_revision": (("main", NOTE), (None, SAME)),
    "code_revision": (("main", NOTE), (None, SAME)),
    "hf_config_path": (("x", REFUSED), (None, SAME)),
    "config_format": (("auto", SAME), ("mistral", REFUSED)),
    "hf_token": (("hf_x", REFUSED), (True, SAME), (None, SAME)),
    "download_dir": (("/x", REFUSED), (None, SAME)),
    "dtype": (
        ("half", {"dtype": "float16"}),
        ("float", {"dtype": "float32"}),
        ("bfloat16", {"dtype": "bfloat16"}),
        ("auto", {"dtype": "auto"}),
    ),
    "load_format": (
        ("safetensors", {"load_format": "auto"}),
        ("dummy", {"load_format": "dummy"}),
        ("pt", ({"load_format": "auto"}, NOTE)),
    ),
    "model_loader_extra_config": (("{}", SAME), ('{"a": 1}', NOTE)),
    "use_tqdm_on_load": ((True, NOTE),),
    "quantization": ((None, SAME), ("int8", {"quantization": "int8"}), ("gguf", NOTE), ("awq", REFUSED)),
    "max_model_len": ((2048, {"max_model_len": 2048}), (-1, SAME)),
    "hf_overrides": (("{}", SAME), ('{"a": 1}', REFUSED)),
    "rope_scaling": (('{"rope_type": "dynamic"}', REFUSED), (None, SAME)),
    "rope_theta": (("1e6", REFUSED), (None, SAME)),
    "seed": ((0, SAME), (None, SAME), (42, ({"seed": 42}, NOTE))),
    "task": (("auto", SAME), ("generate", SAME), ("embed", NOTE), ("score", REFUSED)),
    "runner": (("auto", SAME), ("pooling", NOTE), ("draft", REFUSED)),
    "convert": (("auto", SAME), ("embed", NOTE), ("classify", REFUSED)),
    "override_pooler_config": (('{"pooling_type": "MEAN"}', REFUSED), (None, SAME)),
    "model_impl": (("auto", SAME), ("transformers", NOTE)),
    "disable_sliding_window": ((True, REFUSED), (False, SAME)),
    "generation_config": (("auto", {"generation_config": "auto"}), ("vllm", {"generation_config": "vllm"})),
    "override_generation_config": (
        ('{"top_p": 0.5}', {"override_generation_config": '{"top_p": 0.5}'}),
        ("{}", SAME),
    ),
    "logits_processors": (("a:b", REFUSED), (None, SAME)),
    "logits_processor_pattern": ((".*", REFUSED), (None, SAME)),
    "max_logprobs": (("5", NOTE),),
    "limit_mm_per_prompt": (('{"image": 2}', NOTE), (None, SAME)),
    "mm_processor_kwargs": (('{"num_crops": 4}', NOTE), (None, SAME)),
    "allowed_local_media_path": (("/x", NOTE), ("", SAME)),
    "enable_lora": ((True, REFUSED), (False, SAME)),
    "lora_modules": (("a=b", REFUSED), (None, SAME)),
    "max_loras": (("1", NOTE),),
    "max_lora_rank": (("16", NOTE),),
    "tensor_parallel_size": ((1, SAME), (2, REFUSED)),
    "pipeline_parallel_size": ((1, SAME), (2, REFUSED)),
    "data_parallel_size": ((1, SAME), (2, REFUSED)),
    "enable_expert_parallel": ((True, NOTE), (False, SAME)),
    "distributed_executor_backend": (("uni", SAME), ("mp", NOTE)),
    "worker_use_ray": ((True, NOTE), (False, SAME)),
    "max_parallel_loading_workers": ((2, NOTE), (None, SAME)),
    "disable_custom_all_reduce": ((True, NOTE), (False, SAME)),
    "api_server_count": ((1, SAME), (4, NOTE)),
    "disable_frontend_multiprocessing": ((True, NOTE), (False, SAME)),
    "cpu_offload_gb": ((0, SAME), (0.0, SAME), (4, REFUSED)),
    "enable_sleep_mode": ((True, REFUSED), (False, SAME)),
    "kv_transfer_config": (("{}", REFUSED), (None, SAME)),
    "block_size": ((16, {"block_size": 16}), (128, {"block_size": 128})),
    "gpu_memory_utilization": ((0.9, {"gpu_memory_utilization": 0.9}),),
    "scheduling_policy": (("fcfs", {"scheduling_policy": "fcfs"}), ("priority", {"scheduling_policy": "priority"})),
    "kv_cache_dtype": (
        ("auto", {"kv_cache_dtype": "auto"}),
        ("fp16", ({"kv_cache_dtype": "auto"}, NOTE)),
        ("fp8_e4m3", {"kv_cache_dtype": "fp8"}),
        ("fp8", {"kv_cache_dtype": "fp8"}),
    ),
    "calculate_kv_scales": ((True, NOTE), (False, SAME)),
    "num_gpu_blocks_override": ((512, {"num_kv_blocks": 512}), (None, SAME)),
    "kv_cache_memory_bytes": ((2**30, {"kv_cache_memory": 2**30}), (None, SAME)),
    "swap_space": (
        (4, ({"swap_space": 4 * 2**30}, NOTE)),
        (0.5, ({"swap_space": 2**29}, NOTE)),
        (0, {"swap_space": 0}),
        (2**30, {"swap_space": 2**30}),
    ),
    "enable_prefix_caching": (
        (True, {"enable_prefix_caching": True}),
        (False, {"enable_prefix_caching": False}),
        (None, SAME),
    ),
    "prefix_caching_hash_algo": (("sha256", NOTE),),
    "enforce_eager": ((True, {"enforce_eager": True}), (False, {"enforce_eager": False})),
    "enable_chunked_prefill": ((True, SAME), (None, SAME), (False, NOTE)),
    "max_num_batched_tokens": ((4096, {"max_num_batched_tokens": 4096}),),
    "max_num_seqs": ((8, {"max_num_seqs": 8}),),
    "num_scheduler_steps": ((1, SAME), (8, NOTE)),
    "multi_step_stream_outputs": ((True, NOTE),),
    "max_num_partial_prefills": (("2", NOTE),),
    "max_long_partial_prefills": (("2", NOTE),),
    "long_prefill_token_threshold": (("2048", NOTE),),
    "scheduler_delay_factor": ((0.0, SAME), (0.5, NOTE)),
    "preemption_mode": (("swap", NOTE), (None, SAME)),
    "async_scheduling": ((True, NOTE),),
    "disable_async_output_proc": ((True, NOTE), (False, SAME)),
    "use_v2_block_manager": ((True, NOTE),),
    "compilation_config": (("3", NOTE), (None, SAME)),
    "max_seq_len_to_capture": (("8192", NOTE),),
    "cuda_graph_sizes": (("8", NOTE), (None, SAME)),
    "attention_backend": (("FLASH_ATTN", NOTE), ("auto", SAME)),
    "speculative_config": (
        ('{"method": "ngram", "num_speculative_tokens": 5}', {"speculative_ngram": 5}),
        ({"method": "[ngram]", "num_speculative_tokens": 3}, {"speculative_ngram": 3}),
        ('{"method": "eagle", "model": "x"}', REFUSED),
        ('{"model": "x", "num_speculative_tokens": 5}', REFUSED),
        ("{", REFUSED),
        ("[" * 9999, REFUSED),
        ({"method": "ngram", "num_speculative_tokens": None}, REFUSED),
    ),
    "speculative_model": (("owner/name", REFUSED), ("[ngram]", SAME), (None, SAME)),
    "num_speculative_tokens": ((5, {"speculative_ngram": 5}),),
    "ngram_prompt_lookup_max": (("4", NOTE), (None, SAME)),
    "chat_template": (("x.jinja", {"chat_template": "x.jinja"}),),
    "enable_auto_tool_choice": ((True, SAME), (False, NOTE)),
    "tool_call_parser": (
        ("hermes", {"tool_parser": "hermes"}),
        ("mistral", {"tool_parser": "mistral"}),
        ("llama3_json", {"tool_parser": "llama_json"}),
        ("jamba", ({"tool_parser": "auto"}, NOTE)),
    ),
    "tool_parser_plugin": (("x.py", REFUSED), ("", SAME)),
    "reasoning_parser": (
        ("qwen3", {"reasoning_parser": "think"}),
        ("deepseek_r1", {"reasoning_parser": "think"}),
        ("mistral", {"reasoning_parser": "mistral"}),
        ("granite", ({"reasoning_parser": "auto"}, NOTE)),
    ),
    "enable_reasoning": ((True, SAME), (False, NOTE)),
    "chat_template_content_format": (("auto", SAME), ("openai", NOTE)),
    "default_chat_template_kwargs": (('{"enable_thinking": false}', REFUSED), (None, SAME)),
    "response_role": (("assistant", SAME), ("bot", REFUSED)),
    "return_tokens_as_token_ids": ((True, REFUSED), (False, SAME)),
    "guided_decoding_backend": (("auto", SAME), ("xgrammar", NOTE)),
    "structured_outputs_config": (('{"backend": "xgrammar"}', NOTE), (None, SAME)),
    "host": (("127.0.0.1", {"host": "127.0.0.1"}),),
    "port": ((8001, {"port": 8001}),),
    "api_key": ((("k",), {"api_key": ("k",)}),),
    "allowed_origins": (
        (("https://a.example",), {"allowed_origins": ("https://a.example",)}),
        (
            ('["https://a.example"', '"https://b.example"]'),
            {"allowed_origins": ("https://a.example", "https://b.example")},
        ),
        (("[",), REFUSED),
    ),
    "allow_credentials": ((True, NOTE), (False, SAME)),
    "allowed_methods": (('["*"]', SAME), ('["GET"]', NOTE)),
    "allowed_headers": (('["*"]', SAME), ('["x-a"]', NOTE)),
    "root_path": (("/llm", NOTE), ("", SAME)),
    "uds": (("/tmp/x", REFUSED), (None, SAME)),
    "ssl_keyfile": (("key.pem", REFUSED), (None, SAME)),
    "ssl_certfile": (("cert.pem", REFUSED), (None, SAME)),
    "ssl_ca_certs": (("ca.pem", REFUSED), (None, SAME)),
    "ssl_cert_reqs": ((0, SAME), (2, REFUSED)),
    "middleware": (("a.b", REFUSED), ("[]", SAME)),
    "uvicorn_log_level": (
        ("info", {"quiet": False}),
        ("warning", {"quiet": True}),
        ("error", ({"quiet": True}, NOTE)),
        ("debug", ({"quiet": False}, NOTE)),
        ("loud", REFUSED),
    ),
    "log_config_file": (("x.json", REFUSED), (None, SAME)),
    "disable_log_requests": ((True, SAME), (False, NOTE)),
    "enable_log_requests": ((True, NOTE), (False, SAME)),
    "max_log_len": (("100", NOTE), (None, SAME)),
    "disable_uvicorn_access_log": ((True, NOTE), (False, SAME)),
    "disable_log_stats": ((True, SAME), (False, NOTE)),
    "enable_request_id_headers": ((True, SAME), (False, NOTE)),
    "enable_prompt_tokens_details": ((True, SAME), (False, NOTE)),
    "enable_force_include_usage": ((True, REFUSED), (False, SAME)),
    "enable_server_load_tracking": ((True, NOTE), (False, SAME)),
    "disable_fastapi_docs": ((True, NOTE), (False, SAME)),
    "otlp_traces_endpoint": (("http://x", REFUSED), (None, SAME)),
}
EACH = [(name, value, meant) for name, cases in CASES.items() for value, meant in cases]


def short(value: object) -> str:
    """The name of a value in that of a test."""
    return str(value)[:60]


def test_every_row_has_a_case_and_one_name():
    names = [row.name for rows in SECTIONS.values() for row in rows]
    assert sorted(names) == sorted(CASES) and len(names) == len(set(names)) >= 60


@pytest.mark.parametrize(("name", "value", "meant"), EACH, ids=short)
def test_a_value_acts_or_is_named_or_refused(name, value, meant):
    if meant == REFUSED:
        with pytest.raises(ConfigurationError, match=rf"^{name} is .*\.$") as caught:
            translate({name: value})
        assert caught.value.param == name
        return
    values, notes = translate({name: value})
    wanted, has_note = meant if isinstance(meant, tuple) else (meant, meant == NOTE)
    assert values == (wanted if isinstance(wanted, dict) else {})
    assert len(notes) == bool(has_note) and all(line.startswith(f"{name} is ") for line in notes)
    for item in settings():
        if item.name in values:
            item.check(values[item.name])


@pytest.mark.parametrize("row", vllm_options().values(), ids=lambda row: row.name)
def test_a_row_says_what_becomes_of_each_value(row):
    assert row.setting or row.note or row.refusal
    assert not row.near or row.note
    for text in (row.note, row.refusal):
        assert not text.endswith(".") and text == text.strip()


@pytest.mark.parametrize(
    ("name", "value", "meant"), [case for case in EACH if isinstance(case[1], (str, bool, int, tuple))], ids=short
)
def test_the_command_line_takes_every_option(name, value, meant):
    row = vllm_options()[name]
    text = ",".join(value) if isinstance(value, tuple) else "true" if value is True else str(value)
    arguments = [row.option if value else f"--no-{row.option[2:]}"] if row.kind == "flag" else [f"{row.option}={text}"]
    args, notes = parsed(*arguments), []
    try:
        options.read_config(args, note=notes.append)
    except ConfigurationError as error:
        assert meant == REFUSED or name == "kv_cache_dtype", error.message
        return
    assert meant != REFUSED and len(notes) == (meant == NOTE or isinstance(meant, tuple))


def parsed(*arguments: str):
    """The parsed command line of `quire serve`."""
    parser = options.Parser("quire serve", "")
    serve.add_options(parser)
    return parser.parse(arguments)


def test_a_command_line_of_vllm_runs_as_it_is_written():
    words = shlex.split(
        "guide --dtype half --max-model-len 1024 --gpu-memory-utilization 0.9 --tensor-parallel-size 1 "
        "--enable-auto-tool-choice --tool-call-parser hermes --reasoning-parser qwen3 --enable-prefix-caching "
        "--max-num-batched-tokens 4096 --trust-remote-code --served-model-name x --api-key k --disable-log-requests "
        "--swap-space 4 --enforce-eager --kv-cache-dtype auto --uvicorn-log-level info --generation-config auto "
        """--override-generation-config '{"temperature": 0.2}' --block-size 128 --enable-chunked-prefill -tp 1 -O 3"""
    )
    notes = []
    config = options.read_config(parsed(*words), note=notes.append)
    assert (config.model.dtype, config.model.tool_parser, config.model.reasoning_parser) == (
        "float16",
        "hermes",
        "think",
    )
    assert (config.cache.block_size, config.cache.swap_space) == (128, 4 * 2**30)
    assert [line.split()[0] for line in notes] == ["swap_space", "trust_remote_code", "compilation_config"]


@pytest.mark.parametrize("value", ["True", "true"])
def test_flags_may_have_a_value(value):
    off = value.replace("rue", "alse").replace("T", "F").replace("t", "f")
    notes = []
    args = parsed(f"--enable-chunked-prefill={off}", f"--trust-remote-code={value}", f"--enable-prefix-caching={off}")
    config = options.read_config(args, note=notes.append)
    assert config.cache.enable_prefix_caching is False
    assert sorted(line.split(":")[0] for line in notes) == [
        "enable_chunked_prefill is false",
        "trust_remote_code is true",
    ]


def test_a_setting_is_not_given_by_two_names():
    with pytest.raises(ConfigurationError, match="tool_call_parser and tool_parser"):
        translate({"tool_parser": "glm", "tool_call_parser": "hermes"})


def test_a_number_as_text_becomes_a_number_or_an_error():
    assert translate({"num_gpu_blocks_override": "64"}).values == {"num_kv_blocks": 64}
    with pytest.raises(ConfigurationError, match="num_gpu_blocks_override is 'x'"):
        translate({"num_gpu_blocks_override": "x"})


def test_a_secret_is_not_shown():
    with pytest.raises(ConfigurationError) as caught:
        translate({"hf_token": "hf_secret"})
    assert "hf_secret" not in caught.value.message


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ((), ""),
        (("VLLM_API_KEY",), "no effect: VLLM_API_KEY; "),
        ([f"VLLM_{n}" for n in range(9)], "VLLM_4 and others;"),
    ],
    ids=str,
)
def test_variables_of_vllm_are_named(names, words):
    note = variables_note({"HOME": "/", **dict.fromkeys(names, "x")})
    assert words in note and bool(note) == bool(names) and "x;" not in note


def test_unknown_names_stay_for_the_settings_to_reject():
    assert translate({"block_sizes": 1}).values == {"block_sizes": 1}
