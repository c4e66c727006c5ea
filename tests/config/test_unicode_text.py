"""Bytes that are no UTF-8 are one sentence and exit code 2, wherever they come from."""

import io
import os

import pytest

from app import cli
from app.commands.answers.remote import Listing
from app.config.settings import load_config
from app.config.unicode_text import as_unicode
from app.contract.errors import ConfigurationError
from tests.checkpoints import tiny

LATIN1 = os.fsdecode(b"caf\xe9")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (LATIN1, "the question is not UTF-8: it has the byte 0xe9 after 'caf'; convert it"),
        ("\udce9", "it has the byte 0xe9; convert it"),
        ("a\n\udcff", "the byte 0xff after 'a'"),
        ("\ud800", "the surrogate U+D800;"),
        ("x" * 10**5 + "\udce9", f"after '{'x' * 40}';"),
    ],
    ids=ascii,
)
def test_the_first_wrong_byte_is_named_with_what_is_before_it(text, words):
    with pytest.raises(ConfigurationError) as caught:
        as_unicode(text, "the question")
    assert words in caught.value.message


@pytest.mark.parametrize("text", ["", "café", "重要 🙂", "a\x00b"])
def test_unicode_stays_as_it_is(text):
    assert as_unicode(text, "x") == text


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
@pytest.mark.parametrize(
    "arguments",
    [
        ("chat", "--url", "http://127.0.0.1:1"),
        ("chat", "--url", "http://127.0.0.1:1", "--ws"),
        ("chat", "--model", "MODEL", "--num-kv-blocks", "64"),
        ("generate", "-", "--model", "MODEL"),
    ],
    ids=" ".join,
)
def test_standard_input_that_is_no_utf8_is_one_line(capsys, monkeypatch, arguments, errors):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9\n"), "utf-8", errors))
    # As of a server that is there.
    monkeypatch.setattr("app.commands.answers.remote.listed_models", lambda *_: Listing())
    assert cli.main([str(tiny("Llama")) if each == "MODEL" else each for each in arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "is not UTF-8: it has the byte 0xe9 after 'caf'" in error


@pytest.mark.parametrize(
    "arguments", [("generate", LATIN1), ("chat", "--system", LATIN1), ("plan", LATIN1), ("pull", LATIN1), (LATIN1,)]
)
def test_arguments_that_are_no_utf8_are_one_line(capsys, arguments):
    assert cli.main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"quire: error: argument {len(arguments)} is not UTF-8: ")


@pytest.mark.parametrize("variable", ["QUIRE_MODEL", "QUIRE_SERVED_MODEL_NAME", "QUIRE_API_KEY"])
def test_variables_that_are_no_utf8_are_rejected_by_name(variable):
    with pytest.raises(ConfigurationError, match=rf"^{variable} is .*UTF-8"):
        load_config({}, {variable: LATIN1})


@pytest.mark.parametrize("key", ["ключ", LATIN1, "two\nlines"])
def test_a_key_that_no_header_can_have_is_one_line(capsys, monkeypatch, key):
    monkeypatch.setenv("QUIRE_API_KEY", key)
    assert cli.main(["chat", "--url", "http://127.0.0.1:1"]) == 2
    assert "ASCII" in capsys.readouterr().err


@pytest.mark.parametrize("setting", ["--config", "--chat-template", "--pin-prefix"])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'api_key = "secret"\r\nmodel = "caf\xe9"\n', "the byte 0xe9 at line 2, column 13;"),
        ("a = 1".encode("utf-16"), "the byte 0xff at line 1, column 1;"),
        (b"# \xed\xa0\x80", "the byte 0xed at line 1, column 3;"),
    ],
    ids=["latin-1", "utf-16", "a surrogate"],
)
def test_files_that_are_no_utf8_are_one_line_with_the_place_and_no_text(capsys, tmp_path, setting, content, words):
    file = tmp_path / "file"
    file.write_bytes(content)
    assert cli.main(["serve", "--port", "0", setting, str(file)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and f"{file} is not UTF-8: it has {words} convert it" in error
    assert "secret" not in error and "codec" not in error
