"""Loading, encoding and decoding, compared with transformers on the same folder."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from app.checkpoint.text_files import FolderText
from app.contract.errors import InvalidValue, ModelRefused
from app.text.tokens import tokenizer as tokenizer_module
from app.text.tokens.tokenizer import Part, Tokenizer
from tests.text.toys import KINDS, SPECIAL, oracle, toy, write_folder

TEXT = "Hello <s>world</s>, the dog sleeps.<think> 🙂 é\u0301  two\n\n<|im_start|>"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("config", [{}, {"add_bos_token": True, "add_eos_token": True}, {"add_bos_token": False}])
def test_ids_are_those_of_transformers(tmp_path, kind, config):
    write_folder(tmp_path, kind, **config)
    ours, theirs = Tokenizer.load(FolderText(tmp_path)), oracle(tmp_path)
    for text in (TEXT, "", " ", "the dog"):
        assert ours.encode(text) == theirs.encode(text)
        assert ours.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False)


def test_the_post_processor_is_used_and_stored_padding_and_truncation_are_not(tmp_path):
    write_folder(tmp_path, add_bos_token=False)
    backend = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    backend.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", backend.token_to_id("<s>"))])
    backend.enable_padding(length=64)
    backend.enable_truncation(3)
    backend.save(str(tmp_path / "tokenizer.json"))
    ours, theirs = Tokenizer.load(FolderText(tmp_path)), oracle(tmp_path)
    assert ours.encode("the dog sleeps") == theirs.encode("the dog sleeps", truncation=False)
    assert ours.encode("the dog sleeps")[0] == ours.special_tokens["<s>"]


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(max_size=40))
def test_texts_decode_as_in_the_tokenizers_library(kind, text):
    ours, backend = toy(kind)
    token_ids = ours.encode(text + "<s>")
    for skip in (True, False):
        assert ours.decode(token_ids, skip_special_tokens=skip) == backend.decode(token_ids, skip_special_tokens=skip)


@given(st.text(max_size=20))
def test_the_bytes_of_all_tokens_are_those_of_the_text(text):
    ours, _ = toy("byte_level")
    assert b"".join(map(ours.token_bytes, ours.encode(text))) == text.encode()
    ours, _ = toy("sentencepiece")
    assert (
        b"".join(map(ours.token_bytes, ours.encode(text))).removeprefix(b" ")
        == ours.decode(ours.encode(text), skip_special_tokens=False).encode()
    )


@pytest.mark.parametrize("kind", KINDS)
def test_ids_outside_the_vocabulary_are_empty(kind):
    ours, _ = toy(kind)
    assert ours.token_bytes(10**6) == b""
    assert ours.decode([10**6]) == ours.new_detokenizer().append(10**6) == ""


def test_named_tokens_come_from_the_configuration(tmp_path):
    write_folder(tmp_path, pad_token={"content": "<|pad|>", "lstrip": False}, unk_token=None)
    ours = Tokenizer.load(FolderText(tmp_path))
    assert ours.eos_token_id == ours.special_tokens["</s>"]
    assert ours.named_tokens == {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<|pad|>"}
    assert set(ours.special_tokens) == set(SPECIAL)
    assert ours.vocab_size == 421


def test_special_tokens_map_is_used_if_the_configuration_names_no_token(tmp_path):
    write_folder(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "special_tokens_map.json").write_text('{"eos_token": "<|im_end|>"}')
    ours = Tokenizer.load(FolderText(tmp_path))
    assert ours.eos_token_id == ours.special_tokens["<|im_end|>"]


def test_special_tokens_of_the_configuration_add_no_text(tmp_path):
    write_folder(tmp_path, eos_token="e", additional_special_tokens=["<think>", "not in the vocabulary"])
    ours, theirs = Tokenizer.load(FolderText(tmp_path)), oracle(tmp_path)
    token_ids = [ours.eos_token_id, *ours.encode("the <think>dog")]
    assert ours.eos_token_id == theirs.eos_token_id
    assert ours.decode(token_ids) == "th dog"
    assert ours.vocab_size == 421


def test_another_process_makes_the_tokenizer_of_a_folder_from_its_file(tmp_path):
    """As it was read, for a large one takes long to write; what the configuration says goes with it."""
    folder = write_folder(tmp_path, additional_special_tokens=["<think>"])
    tokenizer = Tokenizer.load(FolderText(folder))
    assert tokenizer.read_source().file == (folder / "tokenizer.json").read_bytes()
    other = Tokenizer.from_source(tokenizer.read_source())
    assert other.special_tokens == tokenizer.special_tokens and "<think>" in other.special_tokens
    assert other.named_tokens == tokenizer.named_tokens
    assert other.encode("the <think>dog</s>") == tokenizer.encode("the <think>dog</s>")


def test_a_lone_surrogate_is_rejected():
    with pytest.raises(InvalidValue, match="surrogate"):
        toy("byte_level")[0].encode("a\ud800b")


def test_literal_parts_contain_no_special_tokens():
    ours, _ = toy("byte_level")
    token_ids = ours.encode_parts([Part("<s>a", False), Part("<s>", True), Part("b</s>", False)])
    assert token_ids.count(ours.special_tokens["<s>"]) == 1
    assert ours.decode(token_ids, skip_special_tokens=False) == "<s>a<s>b</s>"


def test_a_literal_part_that_can_only_be_a_special_token_is_rejected():
    backend = tokenizers.Tokenizer(models.WordLevel({"<s>": 0, "a": 1, "\n": 2}, unk_token="a"))
    backend.pre_tokenizer = pre_tokenizers.Split("\n", "isolated")
    backend.add_special_tokens(["<s>"])
    with pytest.raises(InvalidValue, match="<s>") as caught:
        Tokenizer(backend, {}).encode_parts([Part("a", False), Part("<s>", True)])
    assert caught.value.param == "messages"


WORDS = st.lists(st.sampled_from(["the", "dog", "é", "猫", "x1"]), min_size=1, max_size=3).map("".join)


@pytest.mark.parametrize("kind", KINDS)
@given(st.lists(st.tuples(WORDS, st.sampled_from([" ", "\n", ". ", " (", ",\n\n"])), max_size=30), st.booleans())
def test_the_tokens_of_a_long_text_are_counted_piece_by_piece(kind, words, is_literal_first):
    ours, _ = toy(kind)
    text = "".join(part for pair in words for part in pair)
    parts = [Part("<s>", True)] * is_literal_first + [Part(text, False), Part("</s>", True), Part(f"\n{text}", False)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer_module, "COUNT_CHARS", 24)
        pieces = [*tokenizer_module._pieces(text)]
        counted = ours.count_parts(parts)
    assert "".join(pieces) == text and max(map(len, pieces)) <= 24
    assert counted == len(ours.encode_parts(parts))


def test_a_word_that_is_longer_than_a_piece_is_cut(monkeypatch):
    ours, _ = toy("byte_level")
    monkeypatch.setattr(tokenizer_module, "COUNT_CHARS", 16)
    count = ours.count_parts([Part("the" * 100, False)])
    assert 0 <= count - len(ours.encode("the" * 100, add_special_tokens=False)) <= 2 * 300 // 16


@pytest.mark.parametrize(
    "content", [b"", b"{", b"{}", b"[]", b"\xff\xfe", b'{"version": "1.0", "model": {"type": "?"}}']
)
def test_a_damaged_file_is_rejected_by_name(tmp_path, content):
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(ModelRefused, match=r"tokenizer\.json.*download"):
        Tokenizer.load(FolderText(tmp_path))


def test_a_file_that_makes_the_library_panic_is_rejected_by_name(tmp_path, monkeypatch):
    class Panic(BaseException):
        """The exception of a panic in Rust."""

    class Library:
        """A tokenizer library that panics."""

        @staticmethod
        def from_buffer(raw: bytes) -> None:
            """Panic."""
            raise Panic("index out of bounds")

    write_folder(tmp_path)
    monkeypatch.setattr(tokenizer_module.tokenizers, "Tokenizer", Library)
    with pytest.raises(ModelRefused, match=r"tokenizer\.json is damaged \(index out of bounds\)"):
        Tokenizer.load(FolderText(tmp_path))


def test_a_missing_file_is_rejected_with_advice(tmp_path):
    with pytest.raises(ModelRefused, match=r"no tokenizer\.json.*save_pretrained"):
        Tokenizer.load(FolderText(tmp_path))


def test_a_folder_instead_of_the_file_is_rejected(tmp_path):
    (tmp_path / "tokenizer.json").mkdir()
    with pytest.raises(ModelRefused, match="Cannot read"):
        Tokenizer.load(FolderText(tmp_path))


def test_a_file_over_the_limit_is_rejected_unread(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizer_module, "MAX_TOKENIZER_BYTES", 100)
    with pytest.raises(ModelRefused, match="larger than 100 bytes"):
        Tokenizer.load(FolderText(write_folder(tmp_path)))


def test_a_damaged_configuration_is_rejected_by_name(tmp_path):
    write_folder(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ModelRefused, match=r"tokenizer_config\.json"):
        Tokenizer.load(FolderText(tmp_path))


def test_threads_share_one_tokenizer():
    ours, _ = toy("byte_level")
    texts = [f"the dog {i} sleeps 🙂" for i in range(64)]

    def round_trip(text: str) -> str:
        return ours.decode(ours.encode(text))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(round_trip, texts)) == texts


@pytest.mark.parametrize("unit", ["a", " ", "👩‍👩‍👧", "e\u0301", "<|im_start|>", "<|", "\x00"])
def test_long_repetitive_texts_survive_a_round_trip(unit):
    ours, _ = toy("byte_level")
    text = unit * 20_000
    assert ours.decode(ours.encode(text), skip_special_tokens=False) == text


def test_the_decoder_decides_the_detokenizer(tmp_path):
    kinds = {kind: json.loads(KINDS[kind]().to_str())["decoder"] for kind in KINDS}
    assert [kind for kind, decoder in kinds.items() if decoder is None] == ["words"]
    assert type(toy("word_pieces")[0].new_detokenizer()).__name__ == "WindowDetokenizer"
    assert type(toy("sentencepiece")[0].new_detokenizer()).__name__ == "PieceDetokenizer"


def test_a_pointer_of_git_lfs_is_no_tokenizer(tmp_path):
    write_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(ModelRefused, match=r"tokenizer\.json is only a pointer .*git lfs pull"):
        Tokenizer.load(FolderText(tmp_path))
