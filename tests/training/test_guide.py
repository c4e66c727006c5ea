"""The embedded model: its corpus, its checkpoint folder, its chat template and its answers."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors import safe_open

from app import LLM, SamplingParams
from tests.cases import long
from training.guide import corpus as corpus_module
from training.guide.__main__ import SHIPPED
from training.guide.corpus import HELD_OUT, UNKNOWN, Corpus, fill_placeholders, load_corpus, normalized, read_held_out
from training.guide.evaluate import MAX_ANSWER_TOKENS, Score, evaluate, make_answerer, topics_of
from training.guide.export import load_shipped, shipped_digest
from training.guide.lint import MIN_TOPICS, problems
from training.guide.tokenizer import CHAT_TEMPLATE, OR_ELSE, SPECIAL_TOKENS, UNSURE, GuideTokenizer, opening

ROOT = Path(__file__).resolve().parents[2]
MAX_BYTES = 9_000_000
MAX_WEIGHT_BYTES = 8_000_000
ENOUGH_RIGHT = 0.66
ENOUGH_DECLINED = 0.75
CLEAR = 0.25  # two steps of bfloat16 between scores of 16 and 32
ASKED = re.findall(r'"(.+\?)"', (ROOT / "app/static/shell/welcome.js").read_text("utf-8").partition("];")[0])
BATCH = 48
SAMPLE = 16
EVERY = 12  # of which `make test` asks transformers as well; it takes five times as long as the engine

Message = dict[str, str]


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return load_corpus()


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return transformers.AutoTokenizer.from_pretrained(SHIPPED, padding_side="left")


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    loaded = LLM("guide", dtype="float32")
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def texts(corpus: Corpus, llm: LLM) -> list[str]:
    """The engine's answers, in float32, to the held-out questions."""
    return _answer(llm, [item.question for item in corpus.held_out])


@pytest.fixture(scope="module")
def scores(corpus: Corpus) -> list[Score]:
    """The scores of the training code's model, for every kind of question."""
    return evaluate(corpus, make_answerer(load_shipped(SHIPPED), GuideTokenizer(SHIPPED / "tokenizer.json")))


def _ask(question: str) -> list[Message]:
    return [{"role": "user", "content": question}]


def _answer(llm: LLM, questions: Sequence[str]) -> list[str]:
    params = SamplingParams(temperature=0, max_tokens=MAX_ANSWER_TOKENS)
    outputs = llm.chat([_ask(question) for question in questions], params, use_tqdm=False)
    return [output.outputs[0].text for output in outputs]


def _answer_with_transformers(tokenizer: Any, dtype: torch.dtype, questions: Sequence[str]) -> list[str]:
    model = transformers.AutoModelForCausalLM.from_pretrained(SHIPPED, dtype=dtype)
    prompts = [
        tokenizer.apply_chat_template(_ask(question), tokenize=False, add_generation_prompt=True)
        for question in questions
    ]
    texts: list[str] = []
    for start in range(0, len(prompts), BATCH):
        inputs = tokenizer(prompts[start : start + BATCH], return_tensors="pt", padding=True, add_special_tokens=False)
        inputs.pop("token_type_ids", None)
        ids = model.generate(**inputs, max_new_tokens=MAX_ANSWER_TOKENS, do_sample=False)
        answers = ids[:, inputs["input_ids"].shape[1] :]
        texts += [text.split("<|end|>")[0] for text in tokenizer.batch_decode(answers)]
    return texts


def _leads(tokenizer: Any, questions: Sequence[str]) -> list[float]:
    """How far the likeliest first token of each answer, which is the choice, is before the next one."""
    model = transformers.AutoModelForCausalLM.from_pretrained(SHIPPED, dtype=torch.float32)
    leads = []
    for question in questions:
        prompt = tokenizer.apply_chat_template(_ask(question), tokenize=False, add_generation_prompt=True)
        ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)["input_ids"]
        first, second = model(ids).logits[0, -1].topk(2).values.tolist()
        leads.append(first - second)
    return leads


# The corpus


def test_the_corpus_is_learnable(corpus: Corpus) -> None:
    assert problems(corpus) == []


def test_an_answer_may_not_have_the_beginning_of_another_one_in_it(corpus: Corpus) -> None:
    first, second, *others = corpus.topics
    mixed = dataclasses.replace(second, answer=f"{second.answer} {opening(first.answer)} too.")
    found = problems(dataclasses.replace(corpus, topics=(first, mixed, *others)))
    assert any(f"with which the answer of {first.name} begins" in line for line in found)


def test_the_corpus_covers_enough_topics(corpus: Corpus) -> None:
    assert len([topic for topic in corpus.topics if topic.name != UNKNOWN]) >= MIN_TOPICS


def test_every_topic_has_one_held_out_wording(corpus: Corpus) -> None:
    asked = [item.topic for item in corpus.held_out if item.kind == "known"]
    assert sorted(asked) == sorted(name for name in corpus.names if name != UNKNOWN)


def test_enough_foreign_questions_are_held_out(corpus: Corpus) -> None:
    kinds = [item.kind for item in corpus.held_out if item.topic == UNKNOWN]
    assert len(kinds) >= 40
    assert {kinds.count("far"), kinds.count("near")} == {24}


def test_the_committed_held_out_file_is_the_one_the_hash_chooses(corpus: Corpus) -> None:
    assert tuple(read_held_out(HELD_OUT)) == corpus.held_out, "run `make guide`: the corpus has changed"


def test_no_held_out_question_is_trained(corpus: Corpus) -> None:
    trained = {normalized(text) for topic in corpus.topics for text in topic.wordings}
    assert not trained & {normalized(item.question) for item in read_held_out(HELD_OUT)}


def test_a_placeholder_becomes_the_default_it_names() -> None:
    assert fill_placeholders("port {default:port}, {param:max_tokens} tokens") == "port 8000, 16 tokens"
    assert fill_placeholders("{default:drain_timeout} s") == "30 s"


@pytest.mark.parametrize("text", ["{default:prt}", "{param:warmth}", "{default:served_model_name}"])
def test_a_placeholder_that_names_no_default_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="names no default"):
        fill_placeholders(text)


def test_an_invalid_line_is_rejected_with_its_number(tmp_path: Any) -> None:
    (tmp_path / "a.txt").write_text("@@ topic\n= a wording\n")
    with pytest.raises(ValueError, match=r"a\.txt:2"):
        corpus_module.load_corpus(tmp_path)


def test_a_topic_named_twice_is_rejected(tmp_path: Any) -> None:
    (tmp_path / "a.txt").write_text("@@ topic\n- a\n>>\nb\n@@ topic\n- c\n")
    with pytest.raises(ValueError, match="exists already"):
        corpus_module.load_corpus(tmp_path)


# The shipped folder


def test_the_shipped_folder_is_small() -> None:
    assert sum(file.stat().st_size for file in SHIPPED.iterdir()) < MAX_BYTES
    assert (SHIPPED / "model.safetensors").stat().st_size < MAX_WEIGHT_BYTES


def test_the_shipped_config_is_a_plain_llama() -> None:
    config = json.loads((SHIPPED / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["max_position_embeddings"] == 2048
    assert config["torch_dtype"] == "bfloat16"
    assert config["tie_word_embeddings"] is True


def test_the_shipped_weights_are_bfloat16() -> None:
    with safe_open(SHIPPED / "model.safetensors", "pt") as file:
        dtypes = {file.get_tensor(name).dtype for name in file.keys()}  # noqa: SIM118 (not a dict)
    assert dtypes == {torch.bfloat16}


def test_the_model_is_greedy_by_default_and_ends_at_its_end_token(tokenizer: Any) -> None:
    generation = json.loads((SHIPPED / "generation_config.json").read_text())
    assert generation["temperature"] == 0.0
    assert generation["eos_token_id"] == tokenizer.convert_tokens_to_ids("<|end|>") == tokenizer.eos_token_id


def test_two_answers_at_once_fit_the_length_that_the_models_files_allow(corpus: Corpus, tokenizer: Any) -> None:
    allowed = json.loads((SHIPPED / "generation_config.json").read_text())["max_new_tokens"]
    *_, second, first = sorted(len(tokenizer.encode(topic.answer)) for topic in corpus.topics)
    words = len(tokenizer.encode(UNSURE + OR_ELSE))
    assert 2048 // 4 < words + first + second < allowed <= 2048 // 2


def test_the_special_tokens_are_single_ids(tokenizer: Any) -> None:
    assert [tokenizer.encode(token, add_special_tokens=False) for token in SPECIAL_TOKENS] == [[0], [1], [2], [3]]


def test_the_shipped_model_was_trained_on_this_corpus(corpus: Corpus) -> None:
    assert shipped_digest(SHIPPED) == corpus.digest, "run `make guide`: a wording, an answer or a default has changed"


# The chat template


def _render(tokenizer: Any, *roles: str) -> str:
    messages = [{"role": role, "content": str(number)} for number, role in enumerate(roles)]
    text: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return text


def test_the_shipped_template_is_the_trained_one(tokenizer: Any) -> None:
    assert tokenizer.chat_template == CHAT_TEMPLATE


def test_the_template_shows_a_question_in_lower_case_behind_a_space(tokenizer: Any) -> None:
    text = tokenizer.apply_chat_template(_ask("What is Quire?"), tokenize=False, add_generation_prompt=True)
    assert text == "<|user|> what is quire?<|end|><|assistant|>"


def test_the_template_shows_the_last_question_alone(tokenizer: Any) -> None:
    text = _render(tokenizer, "system", "user", "assistant", "user", "assistant", "user")
    assert text == "<|user|> 5<|end|><|assistant|>"


# Its answers


def test_held_out_questions_get_the_right_answers(corpus: Corpus, texts: list[str]) -> None:
    topic_of = {answer: name for name, answer in corpus.answers.items()}
    known = [(item, text) for item, text in zip(corpus.held_out, texts, strict=True) if item.kind == "known"]
    wrong = [(item.question, text) for item, text in known if item.topic not in topics_of(text, topic_of)]
    assert len(wrong) <= len(known) * (1 - ENOUGH_RIGHT), wrong


def test_every_answer_is_one_of_the_corpus_or_two(corpus: Corpus, texts: list[str]) -> None:
    topic_of = {answer: name for name, answer in corpus.answers.items()}
    assert [text for text in texts if not topics_of(text, topic_of)] == []


@pytest.mark.parametrize("every", [EVERY, long(1)])
def test_transformers_gives_the_same_answers(corpus: Corpus, tokenizer: Any, texts: list[str], every: int) -> None:
    questions = [item.question for item in corpus.held_out[::every]]
    assert _answer_with_transformers(tokenizer, torch.float32, questions) == texts[::every]


def test_questions_that_readme_and_the_page_ask_have_one_sure_answer(corpus: Corpus, llm: LLM) -> None:
    shown = [(question, topic.answer) for topic in corpus.topics for question in topic.shown]
    assert set(ASKED) <= {question for question, _ in shown}
    assert _answer(llm, [question for question, _ in shown]) == [answer for _, answer in shown]


@pytest.mark.long
@pytest.mark.parametrize("way", ["unknown, far", "unknown, near"])
def test_foreign_questions_are_declined(scores: list[Score], way: str) -> None:
    score = next(score for score in scores if score.name == way)
    wrong = [(outcome.asked.question, outcome.got) for outcome in score.outcomes if not outcome.is_right]
    assert score.right >= ENOUGH_DECLINED, wrong


@pytest.mark.long
def test_the_training_code_agrees_with_the_engine(corpus: Corpus, scores: list[Score], texts: list[str]) -> None:
    """The figures of RESULTS.md come from the training code; they must be those of any loader."""
    single = [score for score in scores if score.name == "known" or score.name.startswith("unknown")]
    ours = {outcome.asked: outcome.text for score in single for outcome in score.outcomes}
    assert ours == dict(zip(corpus.held_out, texts, strict=True))


@pytest.mark.parametrize("count", [SAMPLE // 2, long(SAMPLE)])
def test_bfloat16_gives_the_same_texts_as_float32(corpus: Corpus, tokenizer: Any, texts: list[str], count: int) -> None:
    """A sample: this runs the checkpoint as it is shipped, without widening it. Two answers that are nearly as likely
    as each other are one score in bfloat16.
    """
    asked = [(item.question, text) for item, text in zip(corpus.held_out[:count], texts, strict=False)]
    leads = _leads(tokenizer, [question for question, _ in asked])
    clear = [pair for pair, lead in zip(asked, leads, strict=True) if lead >= CLEAR]
    assert len(clear) >= count * 3 // 4
    found = _answer_with_transformers(tokenizer, torch.bfloat16, [question for question, _ in clear])
    assert found == [text for _, text in clear]
