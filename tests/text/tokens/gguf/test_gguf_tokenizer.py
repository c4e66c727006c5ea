"""Tokenizers and chat templates from GGUF metadata: kinds, ends, added tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers
from transformers import GemmaTokenizer
from transformers.tokenization_utils_base import generate_merges

from app.contract.errors import ModelRefused
from app.text.template.chat_template import ChatTemplate
from app.text.tokens.gguf.gguf_tokenizer import load
from tests.text.gguf_toys import byte_level, sentencepiece

MAKERS = (byte_level, sentencepiece)
TEXTS = st.text(max_size=24) | st.text("the dogsleep. ▁\n", max_size=24)


def published() -> Backend:
    """The small sentencepiece vocabulary in the layout of Llama 2's tokenizer.json, with merges by transformers."""
    metadata = sentencepiece()
    tokens, scores = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"]
    ids = {token: index for index, token in enumerate(tokens)}
    pieces = dict(list(zip(tokens, scores, strict=True))[259:])
    merges = generate_merges({token: ids[token] for token in pieces}, pieces)
    backend = Backend(models.BPE(ids, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    backend.add_tokens(["<think>"])
    return backend


@given(TEXTS)
def test_the_kind_llama_is_that_of_llama_2(text):
    tokenizer, backend = load(sentencepiece()), published()
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    assert token_ids == backend.encode(text).ids
    assert tokenizer.decode(token_ids) == backend.decode(token_ids)


def gemma() -> dict[str, object]:
    """A small vocabulary as llama.cpp's converter writes that of a Gemma: runs of spaces are user-defined tokens."""
    metadata = sentencepiece(add_space_prefix=False)
    tokens, types = (list(metadata[f"tokenizer.ggml.{key}"]) for key in ("tokens", "token_type"))
    for number, token in enumerate(tokens):
        if token in ("▁▁", "▁▁▁", "▁▁▁▁"):
            tokens[number], types[number] = token.replace("▁", " "), 4
    return metadata | {"tokenizer.ggml.tokens": tuple(tokens), "tokenizer.ggml.token_type": tuple(types)}


def published_gemma() -> Backend:
    """The same in the layout of Gemma's tokenizer.json, which is that of transformers."""
    metadata = sentencepiece()
    tokens, scores = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"]
    ids = {token: index for index, token in enumerate(tokens)}
    pieces = dict(list(zip(tokens, scores, strict=True))[259:])
    merges = generate_merges({token: ids[token] for token in pieces}, pieces)
    backend = GemmaTokenizer(ids, merges, bos_token="<s>", eos_token="</s>", pad_token="</s>")._tokenizer
    backend.add_tokens(["<think>"])
    return backend


GEMMA, GEMMA_METADATA = published_gemma(), gemma()


@given(TEXTS | st.text(" the", max_size=12))
def test_the_kind_llama_without_a_space_before_texts_is_that_of_gemma(text):
    tokenizer = load(GEMMA_METADATA)
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    assert token_ids == GEMMA.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(token_ids) == GEMMA.decode(token_ids)


@pytest.mark.parametrize("kind", ["t5", "bert", "rwkv", "plamo2", "gemma4", "none", "", None, 1, ["gpt2"]])
def test_other_kinds_are_rejected_by_name(kind):
    with pytest.raises(ModelRefused, match=r"tokenizer\.ggml\.model is .*supported are 'gpt2'"):
        load(byte_level(model=kind))


@pytest.mark.parametrize("pre", ["default", "kimi-k2", "", "x" * 10**6, 3, ("gpt-2",), None])
def test_unknown_pre_types_are_rejected_by_name_and_never_a_default(pre):
    with pytest.raises(ModelRefused, match=r"tokenizer\.ggml\.pre (is|missing).*llama-bpe") as caught:
        load(byte_level(pre))
    assert len(caught.value.message) < 600


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("adds_bos", [True, False])
@pytest.mark.parametrize("adds_eos", [True, False])
def test_the_metadata_say_what_is_put_around_a_text(make, adds_bos, adds_eos):
    tokenizer = load(make(add_bos_token=adds_bos, add_eos_token=adds_eos))
    bos, eos = (tokenizer.special_tokens[text] for text in ("<s>", "</s>"))
    inner = tokenizer.encode("the dog", add_special_tokens=False)
    assert tokenizer.encode("the dog") == [*([bos] if adds_bos else []), *inner, *([eos] if adds_eos else [])]
    assert tokenizer.eos_token_id == eos


@pytest.mark.parametrize(
    ("metadata", "adds_bos"),
    [
        (sentencepiece(), True), (byte_level(add_bos_token=None), False),
        (byte_level("llama-bpe", add_bos_token=None), True), (byte_level("tekken", add_bos_token=None), True),
        (byte_level("qwen2", add_bos_token=None), False),
    ],
)  # fmt: skip
def test_without_that_the_kind_decides(metadata, adds_bos):
    tokenizer = load(metadata)
    assert (tokenizer.encode("the")[0] == tokenizer.special_tokens["<s>"]) is adds_bos


@pytest.mark.parametrize("make", MAKERS)
def test_a_token_to_put_around_a_text_must_be_named(make):
    with pytest.raises(ModelRefused, match=r"bos_token_id is missing, although"):
        load(make(add_bos_token=True, bos_token_id=None))


def test_a_token_around_a_text_may_have_any_spelling():
    tokens = list(byte_level()["tokenizer.ggml.tokens"])
    tokens[0] = "$A:1"
    tokenizer = load(byte_level(tokens=tokens, add_bos_token=True, bos_token_id=0))
    assert tokenizer.encode("a") == [0, *tokenizer.encode("a", add_special_tokens=False)]


@pytest.mark.parametrize("make", MAKERS)
@given(text=TEXTS)
def test_streams_are_the_decoding_of_all_tokens(make, text):
    tokenizer = load(make())
    token_ids = [*tokenizer.encode(text + "<s>é 🙂"), *tokenizer.encode("</s>x")]
    detokenizer = tokenizer.new_detokenizer()
    assert type(detokenizer).__name__ == "PieceDetokenizer"
    released = "".join([*map(detokenizer.append, token_ids), detokenizer.flush()])
    assert released == tokenizer.decode(token_ids)
    assert "<s>" not in released


@pytest.mark.parametrize("make", MAKERS)
def test_tokens_are_longer_than_their_texts(make):
    """A text is known to be too long without encoding it, as with other tokenizers."""
    assert 2 <= load(make()).max_token_chars <= 64


@pytest.mark.parametrize("make", MAKERS)
def test_special_tokens_add_no_text_and_keep_their_ids(make):
    tokenizer = load(make())
    token_ids = tokenizer.encode("the<s>dog</s>", add_special_tokens=False)
    assert token_ids.count(tokenizer.special_tokens["<s>"]) == 1
    assert tokenizer.decode(token_ids).replace(" ", "") == "thedog"
    assert tokenizer.vocab_size == len(make()["tokenizer.ggml.tokens"])


def test_user_defined_tokens_are_found_before_words_and_add_text():
    tokenizer = load(sentencepiece())
    token_id = tokenizer.vocab_size - 1
    assert tokenizer.encode("a<think>b").count(token_id) == 1
    assert tokenizer.decode([token_id]) == "<think>"
    assert "<think>" not in tokenizer.special_tokens


def test_an_end_of_type_normal_is_special_as_in_transformers():
    tokens = byte_level()["tokenizer.ggml.tokens"]
    tokenizer = load(byte_level(eot_token_id=tokens.index("<|im_end|>"), token_type=[1] * len(tokens)))
    assert set(tokenizer.special_tokens) == {"<s>", "</s>", "<|im_end|>"}


def test_spaces_are_not_added_where_the_metadata_say_so():
    tokenizer = load(sentencepiece(add_space_prefix=False))
    assert tokenizer.decode(tokenizer.encode(" the")) == " the"
    assert tokenizer.encode("the dog")[1:] != load(sentencepiece()).encode("the dog")[1:]


def test_special_tokens_of_phi_3_drop_the_spaces_after_them():
    plain, phi = load(sentencepiece()), load({**sentencepiece(), "general.architecture": "phi3"})
    for text, is_same in (("</s>\n\nthe", False), ("<s>\n\nthe", True)):
        assert (plain.encode(text) == phi.encode(text)) is is_same


def test_a_template_renders_with_the_named_tokens():
    template = ChatTemplate("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", load(byte_level()))
    token_ids = template.render([{"role": "user", "content": "the <s> dog"}])
    assert token_ids[0] == 0
    assert token_ids.count(0) == 1, "the text of a special token in a message is text"
