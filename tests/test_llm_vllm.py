"""Programs for vLLM's `LLM`, as its documentation has them, but for the model."""

import logging
from dataclasses import replace

import pytest

from app import LLM, SamplingParams
from app.contract.errors import ConfigurationError, InvalidValue
from tests.checkpoints import tiny

MODEL = str(tiny("Llama"))
GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)


@pytest.fixture(scope="module")
def llm():
    loaded = LLM(model=MODEL, tensor_parallel_size=1, block_size=128, num_gpu_blocks_override=8)
    yield loaded
    loaded.close()


def test_the_keywords_of_a_program_for_vllm_are_accepted_and_what_differs_is_logged(caplog):
    with caplog.at_level(logging.WARNING, "quire"):
        llm = LLM(
            MODEL,
            tensor_parallel_size=1,
            gpu_memory_utilization=0.9,
            kv_cache_dtype="fp16",
            enable_chunked_prefill=True,
            trust_remote_code=True,
            dtype="half",
            max_num_seqs=4,
            max_num_batched_tokens=256,
            max_model_len=128,
            enforce_eager=True,
            quantization=None,
            seed=0,
            swap_space=0,
            disable_log_stats=True,
            tokenizer=None,
            override_generation_config={"temperature": 0.0},
        )
    assert [record.message.split()[0] for record in caplog.records] == ["kv_cache_dtype", "trust_remote_code"]
    sampling_params = SamplingParams(top_p=0.95, max_tokens=4, ignore_eos=True)
    outputs = llm.generate(["Hello, my name is"] * 2, sampling_params=sampling_params, use_tqdm=False)
    llm.close()
    assert outputs[0].outputs[0].token_ids == outputs[1].outputs[0].token_ids
    for output in outputs:
        assert output.prompt == "Hello, my name is" and output.finished
        assert len(output.outputs[0].token_ids) == 4


@pytest.mark.parametrize(
    ("keywords", "advice"),
    [
        ({"tensor_parallel_size": 2}, "one device"),
        ({"speculative_model": "owner/name"}, "speculative_ngram"),
        ({"enable_lora": True}, "merge"),
        ({"quantization": "awq"}, "with int8 or int4 here"),
        ({"tensor_parallel_sise": 1}, "Unknown setting"),
    ],
    ids=str,
)
def test_what_is_not_built_is_refused_with_what_to_do(keywords, advice):
    with pytest.raises(ConfigurationError, match=advice):
        LLM(MODEL, **keywords)


def test_dicts_with_a_text_are_prompts(llm):
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, logprobs=0)
    by_dict, by_text = llm.generate([{"prompt": "the quick"}, "the quick"], params, use_tqdm=False)
    (alone,) = llm.generate({"prompt": "the quick"}, params, use_tqdm=False)
    assert by_dict.prompt == by_text.prompt == alone.prompt == "the quick"
    assert by_dict.outputs[0].token_ids == by_text.outputs[0].token_ids == alone.outputs[0].token_ids
    both = {"prompt": "the quick", "prompt_token_ids": by_text.prompt_token_ids}
    assert llm.generate(both, params, use_tqdm=False)[0].outputs[0].token_ids == alone.outputs[0].token_ids


def test_outputs_have_the_sum_of_their_logprobs_and_the_cached_tokens(llm):
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, logprobs=0)
    prompt = [5] * 200
    (first,), (second,) = (llm.generate([prompt], params, use_tqdm=False) for _ in range(2))
    answer = second.outputs[0]
    chosen = [entry[token].logprob for entry, token in zip(answer.logprobs, answer.token_ids, strict=True)]
    assert answer.cumulative_logprob == pytest.approx(sum(chosen))
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 128)
    assert (
        llm.generate([prompt], replace(params, logprobs=None), use_tqdm=False)[0].outputs[0].cumulative_logprob is None
    )


def test_the_tokenizer_and_the_default_parameters_can_be_had(llm):
    text = "the quick brown fox"
    assert llm.get_tokenizer().decode(llm.get_tokenizer().encode(text)) == text
    assert llm.get_default_sampling_params().temperature == llm.engine.model_info.defaults.temperature


def test_vectors_are_in_outputs_embedding(llm):
    (output,) = llm.embed("the quick")
    assert len(output.outputs.embedding) == llm.engine.model_info.hidden_size
    assert output.prompt_token_ids == llm.tokenizer.encode("the quick")


def test_the_rendered_text_of_a_chat_is_the_prompt_of_its_result(llm):
    (output,) = llm.chat([{"role": "user", "content": "Hello"}], GREEDY, use_tqdm=False)
    assert output.prompt == llm.tokenizer.decode(output.prompt_token_ids, skip_special_tokens=False)
    assert "Hello" in output.prompt


def test_a_chat_continues_its_last_message(llm):
    begun = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "The quick"}]
    (output,) = llm.chat(begun, GREEDY, use_tqdm=False, add_generation_prompt=False, continue_final_message=True)
    assert output.prompt.endswith("The quick")


def test_a_last_message_that_cannot_be_continued_is_rejected(llm):
    asked = [{"role": "user", "content": "Hello"}]
    with pytest.raises(InvalidValue, match="add_generation_prompt to False"):
        llm.chat(asked, GREEDY, use_tqdm=False, continue_final_message=True)
    for chat, reason in ((asked, "needs assistant"), ([], "at least one")):
        with pytest.raises(InvalidValue, match=reason):
            llm.chat([chat], GREEDY, use_tqdm=False, add_generation_prompt=False, continue_final_message=True)


def test_embed_takes_a_bar_as_the_other_methods(llm, capsys):
    assert len(llm.embed(["the quick", "brown"], use_tqdm=True)) == 2
    assert "2/2" in capsys.readouterr().err


@pytest.mark.parametrize(
    "messages", ["Hello", ["Hello"], {"role": "user"}, [{"role": "user", "content": "a"}, "b"], 5], ids=str
)
def test_what_is_no_conversation_is_rejected_in_a_sentence(llm, messages):
    with pytest.raises(InvalidValue, match="must be a list of dicts") as caught:
        llm.chat(messages, GREEDY, use_tqdm=False)
    assert caught.value.param == "messages"


@pytest.mark.parametrize("name", ["StructuredOutputsParams", "GuidedDecodingParams"])
def test_a_class_of_vllm_that_has_another_name_is_told_its_name(name):
    with pytest.raises(ImportError, match=f"there is no {name} in Quire: StructuredOutputs has the same fields"):
        exec(f"from app import {name}")
