"""The URL of a server is understood as people type it."""

import pytest

from app.config.base_url import read_base_url
from app.contract.errors import ConfigurationError


@pytest.mark.parametrize(
    "given",
    [
        "http://127.0.0.1:8000", "http://127.0.0.1:8000/", "http://127.0.0.1:8000/v1", "http://127.0.0.1:8000/v1/",
        "http://127.0.0.1:8000/v1/chat", "http://127.0.0.1:8000/v1/chat/completions/", "127.0.0.1:8000/v1/models",
        "127.0.0.1:8000", "127.0.0.1:8000/v1//", " 127.0.0.1:8000\n", "ws://127.0.0.1:8000/ws",
    ],
)  # fmt: skip
def test_slashes_v1_and_the_scheme_make_no_difference(given):
    assert str(read_base_url(given, "--url")) == "http://127.0.0.1:8000"


def test_the_path_of_a_proxy_and_ports_stay():
    assert str(read_base_url("https://example.org/llm/v1", "--url")) == "https://example.org/llm"
    assert str(read_base_url("https://example.org/für%20uns/v1", "--url")) == "https://example.org/f%C3%BCr%20uns"
    assert str(read_base_url("https://example.org/chat/v1", "--url")) == "https://example.org/chat"
    assert read_base_url("https://example.org", "--url").port == 443
    assert read_base_url("http://[::1]:9", "--url")[1:3] == ("::1", 9)


@pytest.mark.parametrize(
    "given",
    [
        "",
        "ftp://x",
        "http://",
        "http://x:99999",
        "http://x:y",
        "http://x?a=1",
        "http://[x",
        "http://x#y",
        "http://local host:8000",
        "http://x/a b",
        "http://x\ty",
        "http://x\n.org",
        f"http://{'x' * 64}.org",
        "http://x..y",
    ],
)
def test_other_urls_are_rejected_with_what_was_given(given):
    with pytest.raises(ConfigurationError, match=r"--url is .*; it must look like"):
        read_base_url(given, "--url")


def test_a_password_is_not_repeated():
    with pytest.raises(ConfigurationError) as caught:
        read_base_url("http://me:secret@x", "--url")
    assert "secret" not in caught.value.message and "--api-key" in caught.value.message
