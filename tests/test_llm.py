"""Offline use: LLM with generate, chat and beam_search."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import app
from app.contract.errors import (
    ConfigurationError,
    ContextLengthExceeded,
    EngineFailed,
    ErrorInfo,
    InvalidValue,
    KVCapacityExceeded,
    ModelRefused,
    NoChatTemplate,
    QueueTimeout,
    UnsupportedParameter,
)
from app.contract.events import RequestFailed
from app.contract.grammar import StructuredOutputs
from app.contract.sampling_params import SamplingParams
from app.engine.schedule.step_plan import StepPlan
from app.llm import LLM
from app.llm_outputs import CompletionOutput, Logprob
from app.text.grammar import gbnf
from app.text.tokens.detokenizer import complete_rest
from tests.checkpoints import tiny
from tests.engine.execute.faulty_runner import FaultyRunner

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    torch.set_num_threads(1)
    loaded = LLM(str(tiny("Llama")), num_kv_blocks=64)
    yield loaded
    loaded.close()


class StepFault(FaultyRunner):
    """Raises `error` in the next `count` steps."""

    error: BaseException = ValueError("broken")
    count = 0

    def before_launch(self, plan: StepPlan) -> None:
        if self.count:
            self.count -= 1
            raise self.error


def text_of(llm: LLM, token_ids: list[int]) -> str:
    """The text of tokens, without a character that they leave incomplete."""
    detokenizer = llm.tokenizer.new_detokenizer()
    return "".join(map(detokenizer.append, token_ids)) + complete_rest(detokenizer)


def test_a_grammar_is_converted_once_for_prompts_with_the_same_parameters(llm: LLM, monkeypatch: pytest.MonkeyPatch):
    converted = []
    convert = gbnf.lark_of_gbnf
    monkeypatch.setattr(gbnf, "lark_of_gbnf", lambda text: converted.append(text) or convert(text))
    wanted = StructuredOutputs(grammar='root ::= "yes" | "no"')
    results = llm.generate([[5, 6]] * 3, SamplingParams(structured_outputs=wanted, max_tokens=8), use_tqdm=False)
    assert len(converted) == 1 and all(each.outputs[0].text in ("yes", "no") for each in results)


def test_the_package_exports_what_offline_use_needs():
    assert app.LLM is LLM and app.SamplingParams is SamplingParams
    assert app.StructuredOutputs is StructuredOutputs


def test_numbers_end_even_if_a_model_prefers_digits(llm: LLM):
    wanted = StructuredOutputs(json={"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2})
    digits = dict.fromkeys(llm.tokenizer.encode("0123456789", add_special_tokens=False), 50.0)
    params = SamplingParams(structured_outputs=wanted, max_tokens=150, logit_bias=digits, seed=1)
    (output,) = llm.generate([[5, 6]], params, use_tqdm=False)[0].outputs
    assert output.finish_reason == "stop" and len(json.loads(output.text)) == 2


def test_answers_satisfy_structured_outputs(llm: LLM):
    """One grammar for several prompts, and several choices of one; a plain request beside them is not limited."""
    wanted = StructuredOutputs(json={"type": "array", "items": {"type": "boolean"}, "maxItems": 3})
    params = [
        SamplingParams(structured_outputs=wanted, max_tokens=60, n=2, seed=1),
        SamplingParams(structured_outputs=StructuredOutputs(choice=["yes", "no"]), max_tokens=8, seed=2),
        SamplingParams(max_tokens=8, ignore_eos=True),
    ]
    array, choice, plain = llm.generate(["the", "quick", "brown"], params, use_tqdm=False)
    assert all(isinstance(json.loads(one.text), list) for one in array.outputs if one.finish_reason == "stop")
    assert choice.outputs[0].text in ("yes", "no") and choice.outputs[0].finish_reason == "stop"
    assert len(plain.outputs[0].token_ids) == 8


def test_a_rejected_grammar_generates_nothing(llm: LLM):
    params = [SamplingParams(), SamplingParams(structured_outputs=StructuredOutputs(regex="(?=a)"))]
    with pytest.raises(InvalidValue, match="Look-around"):
        llm.generate(["the", "quick"], params, use_tqdm=False)
    assert not llm.engine.has_ready_work


@pytest.mark.parametrize("name", ["min_tokens", "ignore_eos", "use_beam_search"])
def test_what_contradicts_structured_outputs_is_rejected(name: str):
    with pytest.raises(InvalidValue, match="structured outputs"):
        SamplingParams(structured_outputs=StructuredOutputs(regex="a"), **{name: 1 if name == "min_tokens" else True})


@pytest.mark.parametrize("given", [{}, {"regex": "a", "json": {}}, {"json_object": True, "choice": ["a"]}], ids=str)
def test_exactly_one_kind_of_structured_output_is_set(given: dict):
    with pytest.raises(InvalidValue, match="set exactly one"):
        StructuredOutputs(**given)


def test_texts_token_ids_and_dicts_give_the_same_answers(llm: LLM):
    ids = llm.tokenizer.encode("the quick brown fox")
    for prompts in ("the quick brown fox", ["the quick brown fox"], [ids], [{"prompt_token_ids": ids}]):
        (output,) = llm.generate(prompts, GREEDY, use_tqdm=False)
        assert output.prompt_token_ids == ids
        assert output.prompt == ("the quick brown fox" if isinstance(prompts[0], str) else None)
        (answer,) = output.outputs
        assert answer.token_ids == llm.generate([ids], GREEDY, use_tqdm=False)[0].outputs[0].token_ids
        assert len(answer.token_ids) == 8
    single = llm.generate({"prompt_token_ids": ids}, GREEDY, use_tqdm=False)
    assert len(single) == 1 and single[0].prompt_token_ids == ids


def test_results_come_in_the_order_of_the_prompts(llm: LLM):
    prompts = [[10 + i] * (1 + 7 * i % 20) for i in range(12)]
    each = [SamplingParams(temperature=0.0, max_tokens=1 + 5 * i % 9, ignore_eos=True) for i in range(12)]
    outputs = llm.generate(prompts, each, use_tqdm=False)
    assert [output.prompt_token_ids for output in outputs] == prompts
    assert [len(output.outputs[0].token_ids) for output in outputs] == [params.max_tokens for params in each]
    assert len({output.request_id for output in outputs}) == 12
    alone = [llm.generate([prompt], params, use_tqdm=False)[0] for prompt, params in zip(prompts, each, strict=True)]
    assert [one.outputs[0].token_ids for one in alone] == [one.outputs[0].token_ids for one in outputs]


def test_an_output_has_text_finish_reason_and_usage(llm: LLM):
    (output,) = llm.generate("blocks", GREEDY, use_tqdm=False)
    answer = output.outputs[0]
    assert (answer.index, answer.finish_reason, answer.logprobs) == (0, "length", None)
    assert answer.text == text_of(llm, answer.token_ids)
    assert (output.usage.prompt_tokens, output.usage.completion_tokens) == (len(output.prompt_token_ids), 8)
    biased = SamplingParams(temperature=0.0, max_tokens=8, logit_bias={1: 100.0})
    stopped = llm.generate("blocks", biased, use_tqdm=False)[0].outputs[0]
    assert (stopped.finish_reason, stopped.token_ids, stopped.text) == ("stop", [], "")


def test_an_answer_that_is_cut_within_a_character_goes_on_with_it(llm: LLM):
    """In the middle of a text that a grammar demands, and with the ids of the prompt and the answer as a prompt."""
    token_ids = llm.tokenizer.encode("🙂🙂", add_special_tokens=False)
    for num in range(1, len(token_ids)):
        wanted = SamplingParams(max_tokens=num, structured_outputs=StructuredOutputs(choice=["🙂🙂"]))
        first = llm.generate([[5, 6]], wanted, use_tqdm=False)[0].outputs[0]
        assert (first.token_ids, first.finish_reason) == (token_ids[:num], "length")
        forced = SamplingParams(temperature=0.0, max_tokens=1, logit_bias={token_ids[num]: 100.0})
        rest = llm.generate([[5, 6, *first.token_ids]], forced, use_tqdm=False)[0].outputs[0]
        assert first.text == "🙂" * len(first.text)
        assert first.text + rest.text == text_of(llm, token_ids[: num + 1])


def test_logprobs_are_one_dict_per_token(llm: LLM):
    params = SamplingParams(temperature=1.0, seed=3, max_tokens=6, ignore_eos=True, logprobs=4)
    answer = llm.generate("rows and steps", params, use_tqdm=False)[0].outputs[0]
    assert len(answer.logprobs) == len(answer.token_ids) == 6
    for token_id, entries in zip(answer.token_ids, answer.logprobs, strict=True):
        assert 4 <= len(entries) <= 5 and all(isinstance(entry, Logprob) for entry in entries.values())
        chosen = entries[token_id]
        assert chosen.logprob <= 0 and chosen.rank >= 1
        ranks = sorted(entry.rank for entry in entries.values())
        assert ranks[:4] == [1, 2, 3, 4] and (len(entries) == 4 or ranks[4] == chosen.rank)
        assert chosen.decoded_token == llm.tokenizer.token_bytes(token_id).decode("utf-8", "replace")
    only_chosen = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True, logprobs=0)
    answer = llm.generate("rows", only_chosen, use_tqdm=False)[0].outputs[0]
    assert [list(entries) for entries in answer.logprobs] == [[token_id] for token_id in answer.token_ids]


def test_seeded_answers_repeat_and_unseeded_ones_differ(llm: LLM):
    def answer(seed: int | None) -> list[int]:
        params = SamplingParams(temperature=1.0, seed=seed, max_tokens=12, ignore_eos=True)
        return llm.generate("über", params, use_tqdm=False)[0].outputs[0].token_ids

    assert answer(5) == answer(5) != answer(6)
    assert answer(None) != answer(None)


def test_choices_differ_from_each_other(llm: LLM):
    params = SamplingParams(n=4, temperature=1.0, seed=5, max_tokens=10, ignore_eos=True, logprobs=1)
    (output,) = llm.generate("the quick brown fox", params, use_tqdm=False)
    assert [answer.index for answer in output.outputs] == [0, 1, 2, 3]
    assert len({tuple(answer.token_ids) for answer in output.outputs}) == 4
    for answer in output.outputs:
        assert (answer.finish_reason, len(answer.logprobs)) == ("length", 10)
        assert answer.text == text_of(llm, answer.token_ids)
    assert output.usage.prompt_tokens == len(output.prompt_token_ids)
    assert output.usage.completion_tokens == 40
    single = llm.generate("the quick brown fox", replace(params, n=1), use_tqdm=False)[0].outputs[0]
    assert single == output.outputs[0]


def test_best_of_returns_the_highest_mean_logprobs_in_order(llm: LLM):
    params = SamplingParams(n=6, temperature=1.0, seed=3, max_tokens=8, ignore_eos=True, logprobs=0)
    (sampled,) = llm.generate("rows and steps", params, use_tqdm=False)
    (best,) = llm.generate("rows and steps", replace(params, n=2, best_of=6), use_tqdm=False)

    def mean_logprob(answer: CompletionOutput) -> float:
        pairs = zip(answer.token_ids, answer.logprobs, strict=True)
        return sum(entries[token_id].logprob for token_id, entries in pairs) / len(answer.token_ids)

    expected = sorted(sampled.outputs, key=mean_logprob, reverse=True)[:2]
    assert [answer.token_ids for answer in best.outputs] == [answer.token_ids for answer in expected]
    assert [answer.index for answer in best.outputs] == [0, 1]
    assert best.usage.completion_tokens == 16


def test_a_beam_search_returns_its_best_completions(llm: LLM):
    (output,) = llm.beam_search("steps and", beam_width=3, max_tokens=6, ignore_eos=True, use_tqdm=False)
    assert len({tuple(answer.token_ids) for answer in output.outputs}) == 3
    assert all(answer.text == text_of(llm, answer.token_ids) for answer in output.outputs)
    assert {answer.finish_reason for answer in output.outputs} == {"length"}
    assert output.usage.completion_tokens == 18
    params = SamplingParams(use_beam_search=True, beam_width=3, max_tokens=6, ignore_eos=True)
    (best,) = llm.generate("steps and", params, use_tqdm=False)
    (only,) = llm.beam_search("steps and", beam_width=3, max_tokens=6, n=1, ignore_eos=True, use_tqdm=False)
    assert best.outputs == only.outputs == output.outputs[:1]
    with pytest.raises(InvalidValue, match="beam_width"):
        llm.beam_search("steps", beam_width=2, n=3, use_tqdm=False)


def test_a_beam_of_one_is_greedy(llm: LLM):
    (beam,) = llm.beam_search("the lazy", beam_width=1, max_tokens=8, ignore_eos=True, use_tqdm=False)
    assert beam.outputs[0].token_ids == llm.generate("the lazy", GREEDY, use_tqdm=False)[0].outputs[0].token_ids


def test_chat_renders_the_template_for_one_conversation_or_many(llm: LLM):
    messages = [{"role": "user", "content": "the lazy dog"}]
    (one,) = llm.chat(messages, GREEDY, use_tqdm=False)
    expected = llm.tokenizer.encode("<|im_start|>user\nthe lazy dog<|im_end|>\n<|im_start|>assistant\n")
    assert one.prompt_token_ids == expected
    many = llm.chat([messages, [{"role": "user", "content": "fox"}]], GREEDY, use_tqdm=False)
    assert len(many) == 2 and many[0].outputs[0].token_ids == one.outputs[0].token_ids


def test_chat_without_a_template_is_rejected():
    bare = LLM(str(tiny("Llama", template=False)), num_kv_blocks=16)
    with pytest.raises(NoChatTemplate, match="no chat template"):
        bare.chat([{"role": "user", "content": "hello"}], use_tqdm=False)
    assert bare.generate("hello", GREEDY, use_tqdm=False)


def test_no_prompts_give_no_outputs(llm: LLM):
    assert llm.generate([], use_tqdm=False) == []
    assert llm.chat([], use_tqdm=False) == []


@pytest.mark.parametrize(
    ("prompts", "params", "error", "words"),
    [
        ([[]], None, InvalidValue, "empty"),
        ([[307]], None, InvalidValue, "between 0 and 306"),
        ([[-1]], None, InvalidValue, "between 0 and 306"),
        ([["x"]], None, InvalidValue, "token ids"),
        ([1, 2, 3], None, InvalidValue, "token ids"),
        ([{"prompts": "x"}], None, InvalidValue, "prompt_token_ids"),
        ([{"role": "user", "content": "x"}], None, InvalidValue, "messages of a chat are for LLM.chat"),
        ([[5] * 600], None, ContextLengthExceeded, "512"),
        (["a", "b"], [GREEDY], InvalidValue, "1 sampling_params were given for 2 prompts"),
    ],
)
def test_invalid_prompts_are_rejected_and_leave_no_request(llm: LLM, prompts, params, error, words):
    with pytest.raises(error, match=words):
        llm.generate(["fine", *prompts] if params is None else prompts, params, use_tqdm=False)
    assert not llm.engine.has_ready_work
    assert llm.engine.stats().blocks.num_free == 64


@pytest.mark.parametrize("prompts", [None, 5])
@pytest.mark.parametrize("name", ["generate", "beam_search", "embed", "score_prompt"])
def test_what_is_no_prompt_is_rejected_by_all_methods(llm: LLM, name: str, prompts: Any):
    with pytest.raises(InvalidValue, match=rf"^prompts is {prompts}; it must be a prompt, .* or a list of prompts\.$"):
        getattr(llm, name)(prompts)
    with pytest.raises(InvalidValue, match=r"^A prompt is None; it must be a text"):
        getattr(llm, name)([None])


@pytest.mark.parametrize("params", [5, "x", {"max_tokens": 1}, [None]])
def test_what_is_no_sampling_params_is_rejected(llm: LLM, params: Any):
    with pytest.raises(InvalidValue, match=r"^sampling_params is .*; it must be a SamplingParams, or a list"):
        llm.generate(["a"], params)
    with pytest.raises(InvalidValue, match=r"^sampling_params is "):
        llm.chat([{"role": "user", "content": "a"}], params)


def test_unknown_settings_and_models_are_rejected_by_name(tmp_path: Path):
    with pytest.raises(ConfigurationError, match=r"max_model_length.*max_model_len"):
        LLM("guide", max_model_length=5)
    with pytest.raises(ModelRefused, match=rf"{tmp_path.name} has no config\.json"):
        LLM(str(tmp_path))
    with pytest.raises(UnsupportedParameter, match="prompt_logprobs"):
        SamplingParams(prompt_logprobs=1, use_beam_search=True)


def test_an_invalid_template_is_rejected_at_construction(tmp_path: Path):
    file = tmp_path / "broken.jinja"
    file.write_text("{% if %}")
    with pytest.raises(ConfigurationError, match="line 1"):
        LLM("guide", chat_template=str(file))


def test_closing_twice_has_no_further_effect():
    loaded = LLM(str(tiny("Llama")), num_kv_blocks=16)
    loaded.close(), loaded.close()
    with pytest.raises(ConfigurationError, match=r"this LLM was closed, .*make another one"):
        loaded.generate("Hi")


@pytest.fixture
def fault(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> StepFault:
    """A fault of the engine until the end of the test; at first it raises in no step."""
    monkeypatch.setattr(llm.engine, "runner", llm.engine.runner)
    (fault := StepFault()).wrap(llm.engine)
    return fault


def test_a_step_that_fails_once_is_repeated_with_the_same_result(
    llm: LLM, fault: StepFault, caplog: pytest.LogCaptureFixture
):
    before = llm.generate(["steps", "rows"], GREEDY, use_tqdm=False)
    fault.count = 1
    after = llm.generate(["steps", "rows"], GREEDY, use_tqdm=False)
    assert [output.outputs for output in after] == [output.outputs for output in before]


def test_a_request_whose_steps_always_fail_is_an_error_and_the_next_call_works(
    llm: LLM, fault: StepFault, caplog: pytest.LogCaptureFixture
):
    before = llm.generate("steps", GREEDY, use_tqdm=False)[0].outputs
    fault.count = 10
    with pytest.raises(EngineFailed):
        llm.generate("steps", GREEDY, use_tqdm=False)
    fault.count = 0
    assert llm.generate("steps", GREEDY, use_tqdm=False)[0].outputs == before


def test_an_interrupt_is_raised_and_the_next_call_works(llm: LLM, fault: StepFault):
    before = llm.generate("steps", GREEDY, use_tqdm=False)[0].outputs[0].token_ids
    fault.error, fault.count = KeyboardInterrupt(), 1
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["steps", "rows"], GREEDY, use_tqdm=False)
    assert llm.engine.stats().blocks.num_free == 64
    assert llm.generate("steps", GREEDY, use_tqdm=False)[0].outputs[0].token_ids == before


@pytest.mark.parametrize(
    ("info", "error"),
    [
        (QueueTimeout("Too late.").info(), QueueTimeout),
        (KVCapacityExceeded("Too much.", param="max_tokens").info(), KVCapacityExceeded),
        (InvalidValue("No.", param="params").info(), InvalidValue),
        (EngineFailed("It broke.").info(), EngineFailed),
        (ErrorInfo("overloaded", "Later."), EngineFailed),
    ],
)
def test_a_failure_of_a_request_is_raised_as_its_error(llm: LLM, monkeypatch, info, error):
    monkeypatch.setattr(llm.engine, "add", lambda request: [RequestFailed(request.id, info)])
    with pytest.raises(error) as caught:
        llm.generate("blocks", GREEDY, use_tqdm=False)
    assert (type(caught.value), caught.value.message, caught.value.param) == (error, info.message, info.param)


def test_requests_must_start_within_the_queue_timeout(llm: LLM, monkeypatch):
    added = []
    monkeypatch.setattr(llm.engine, "add", lambda request: added.append(request) or [])
    llm.generate("blocks", GREEDY, use_tqdm=False)
    scheduler = replace(llm.config.scheduler, queue_timeout=2.0)
    monkeypatch.setattr(llm, "config", replace(llm.config, scheduler=scheduler))
    llm.generate("blocks", GREEDY, use_tqdm=False)
    assert added[0].start_deadline is None
    assert added[1].start_deadline == added[1].arrival_time + 2.0


def test_the_progress_bar_counts_requests(llm: LLM, capsys: pytest.CaptureFixture[str]):
    llm.generate(["a", "b", "c"], replace(GREEDY, n=2))
    assert "3/3" in capsys.readouterr().err
    llm.generate(["a", "b", "c"], GREEDY, use_tqdm=False)
    assert capsys.readouterr().err == ""


def test_guide_a_chat_only_model_answers_a_text_as_a_question():
    (output,) = LLM("guide").generate(["What is Quire?"], SamplingParams(temperature=0, max_tokens=12), use_tqdm=False)
    assert output.prompt == "What is Quire?"
    assert output.outputs[0].text.startswith("Quire is a chat server for language models that you run")
