"""`LLM.score_prompt`: the log-probabilities of a prompt's tokens, by the embedded model."""

from dataclasses import replace

import pytest

from app import LLM, SamplingParams
from app.contract.admission import admit
from app.contract.engine_status import ModelInfo
from app.contract.errors import InvalidValue, UnsupportedParameter
from app.contract.events import PromptScored
from app.contract.sampling_params import MAX_SCORED_TOKENS
from app.text.answer.answer_demand import AnswerDemand
from app.text.entry.request_builder import RequestBuilder, Terms

TEXT = "Quire is a server for language models. It streams answers to many clients at the same time. " * 4


@pytest.fixture(scope="module", params=[False, True], ids=["native", "eager"])
def llm(request):
    llm = LLM("guide", enforce_eager=request.param)
    yield llm
    llm.close()


def test_every_token_but_the_first_has_its_own_score_and_the_best_ones(llm):
    (scores,) = llm.score_prompt(TEXT, num_top=3)
    token_ids = llm.tokenizer.encode(TEXT)
    assert len(scores) == len(token_ids) and scores[0] is None
    for token_id, entry in zip(token_ids[1:], scores[1:], strict=True):
        assert token_id in entry and 3 <= len(entry) <= 4
        assert {1, 2, 3} <= {each.rank for each in entry.values()}
        best = max(entry.values(), key=lambda each: each.logprob)
        assert best.rank == 1 and all(each.logprob <= 0 for each in entry.values())


def test_scores_are_those_of_the_same_tokens_generated(llm):
    """The greedy answer, scored as a prompt, has its ranks and, but for the last bits, its log-probabilities."""
    params = SamplingParams(max_tokens=60, temperature=0, logprobs=2, ignore_eos=True)
    (answer,) = llm.generate("Quire is a", params, use_tqdm=False)
    generated = answer.outputs[0]
    prompt = [*answer.prompt_token_ids, *generated.token_ids]
    (scores,) = llm.score_prompt([prompt], num_top=2)
    for ours, theirs in zip(scores[len(answer.prompt_token_ids) :], generated.logprobs, strict=True):
        assert [(key, each.rank) for key, each in ours.items()] == [(key, each.rank) for key, each in theirs.items()]
        for token_id, each in ours.items():
            assert each.logprob == pytest.approx(theirs[token_id].logprob, rel=1e-4, abs=1e-5)


def test_scores_have_the_same_bits_in_any_company_cold_or_warm(llm):
    texts = [TEXT * 2, "a b", TEXT[40:], "What is Quire? " * 3]
    alone = [llm.score_prompt(text, num_top=5)[0] for text in texts]
    assert llm.score_prompt(texts, num_top=5) == alone
    llm.generate(texts, SamplingParams(max_tokens=4, temperature=0), use_tqdm=False)
    params = [SamplingParams(max_tokens=40, temperature=0, prompt_logprobs=5 if i % 2 else None) for i in range(4)]
    encoded = [llm.tokenizer.encode(text) for text in texts]
    for index, output in enumerate(llm.generate(encoded, params, use_tqdm=False)):
        assert output.prompt_logprobs == (alone[index] if index % 2 else None)


def test_choices_share_the_scores_and_are_those_without(llm):
    params = {"max_tokens": 8, "temperature": 1.0, "seed": 5, "n": 3}
    scored = llm.generate(TEXT, SamplingParams(**params, prompt_logprobs=0), use_tqdm=False)[0]
    plain = llm.generate(TEXT, SamplingParams(**params), use_tqdm=False)[0]
    assert [each.text for each in scored.outputs] == [each.text for each in plain.outputs]
    assert len(scored.prompt_logprobs) == len(scored.prompt_token_ids)


def test_a_prompt_of_one_token_has_no_scores(llm):
    assert llm.score_prompt([[5]]) == [[None]] and llm.score_prompt([]) == []


def test_preempted_prompts_have_the_same_scores():
    """With too few blocks for all, sequences lose theirs, some before all of their tokens were scored."""
    prompts = [[(7 * i + j) % 500 + 10 for j in range(200)] for i in range(6)]
    params = SamplingParams(max_tokens=60, temperature=0, prompt_logprobs=2, ignore_eos=True)
    roomy, tight = LLM("guide"), LLM("guide", num_kv_blocks=40, block_size=16)
    try:
        expected = roomy.generate(prompts, params, use_tqdm=False)
        found = tight.generate(prompts, params, use_tqdm=False)
        assert sum(output.usage.preemptions for output in found) > 0
        assert [output.prompt_logprobs for output in found] == [output.prompt_logprobs for output in expected]
    finally:
        roomy.close()
        tight.close()


@pytest.mark.parametrize("num_top", [-1, 21, 1.5])
def test_the_number_of_best_tokens_is_bounded(llm, num_top):
    with pytest.raises(InvalidValue, match="between 0 and 20"):
        llm.score_prompt("a", num_top=num_top)


def test_a_prompt_that_is_too_long_to_score_is_refused():
    model = ModelInfo("m", "", max_model_len=10_000, vocab_size=100, kv_capacity_tokens=20_000, hidden_size=8)
    params = SamplingParams(prompt_logprobs=0)
    assert admit([1] * MAX_SCORED_TOKENS, params, model).prompt_logprobs == 0
    with pytest.raises(InvalidValue, match="has 4097 tokens; with prompt_logprobs it may have at most 4096"):
        admit([1] * (MAX_SCORED_TOKENS + 1), params, model)
    with pytest.raises(UnsupportedParameter, match="needs a CPU"):
        admit([1], params, replace(model, hidden_size=0))


def test_beams_are_refused_by_name():
    with pytest.raises(UnsupportedParameter, match="prompt_logprobs cannot be combined with beam search"):
        SamplingParams(n=2, use_beam_search=True, prompt_logprobs=1)


def test_a_request_that_is_aborted_while_it_is_scored_frees_everything(llm):
    params = SamplingParams(max_tokens=4, prompt_logprobs=1, seed=0)
    builder = RequestBuilder(llm._text, llm.engine.model_info)
    demand, terms = AnswerDemand(llm._text.answers), Terms(arrival_time=0.0)
    request, _ = builder.answer("r", builder.encode(TEXT * 3), params, demand, terms)
    turns = llm._events_of([request])
    for _ in range(2):
        assert not any(isinstance(event, PromptScored) for event in next(turns))
    turns.close()
    assert not llm.engine.has_ready_work
    assert llm.score_prompt("a b c")[0][0] is None
