"""Where requests go: URLs as people write them, and what a request begins with."""

import asyncio
import socket
from unittest.mock import Mock

import pytest

from app.contract.errors import CannotStart, ConfigurationError
from app.loadgen.target import find_target, first_model
from tests.loadgen.made import chunked, free_port, http, refusal, serving


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8000", "http://127.0.0.1:8000/", "http://127.0.0.1:8000/v1", "127.0.0.1:8000/v1/"]
)
def test_a_url_is_taken_with_or_without_its_version(url):
    target = find_target(url)
    assert (target.url, target.address, target.port, target.path) == ("http://127.0.0.1:8000", "127.0.0.1", 8000, "")
    assert target.connecting == {"host": "127.0.0.1", "port": 8000}


def test_a_client_may_have_an_address_of_its_own():
    target = find_target("http://127.0.0.1:8000")._replace(source="127.0.0.2")
    assert target.connecting["local_addr"] == ("127.0.0.2", 0)


def test_a_path_before_the_version_is_kept():
    assert (
        find_target("http://127.0.0.1:8000/llm/v1")
        .post("/v1/models", b"")
        .startswith(b"POST /llm/v1/models HTTP/1.1\r\n")
    )


def test_https_checks_the_certificate_of_the_name():
    target = find_target("https://127.0.0.1")
    assert (target.port, target.connecting["server_hostname"]) == (443, "127.0.0.1")
    assert target.connecting["ssl"].check_hostname


@pytest.mark.parametrize(
    "url", ["", "ftp://127.0.0.1", "http://", "http://127.0.0.1:99999", "http://127.0.0.1:0", "http://127.0.0.1/?a=1"]
)
def test_other_addresses_are_refused(url):
    with pytest.raises(ConfigurationError, match=r"must look like http://127\.0\.0\.1:8000"):
        find_target(url)


def test_a_password_in_the_url_is_refused_and_not_repeated():
    with pytest.raises(ConfigurationError, match="use --api-key") as refused:
        find_target("http://user:secret@127.0.0.1:8000")
    assert "secret" not in refused.value.message


def test_a_name_that_nobody_knows_is_said(monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", Mock(side_effect=socket.gaierror(-2, "Name or service not known")))
    with pytest.raises(CannotStart, match="cannot find nowhere: Name or service not known"):
        find_target("http://nowhere:8000")


def test_a_name_that_is_none_is_said():
    with pytest.raises(CannotStart, match=r"cannot find a\.\.b"):
        find_target("http://a..b")


def test_a_post_has_its_length_and_the_key():
    head, _, body = (
        find_target("http://127.0.0.1:8000", "k-1").post("/v1/completions", b'{"a": 1}').partition(b"\r\n\r\n")
    )
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /v1/completions HTTP/1.1"
    assert {"host: 127.0.0.1:8000", "connection: close", "content-length: 8", "authorization: Bearer k-1"} < set(lines)
    assert body == b'{"a": 1}'


def test_without_a_key_none_is_sent():
    assert b"authorization" not in find_target("http://127.0.0.1:8000").post("/v1/models", b"")


@pytest.mark.parametrize("key", ["a\r\nx: y", "schlüssel"])
def test_a_key_that_is_no_header_is_refused(key):
    with pytest.raises(ConfigurationError, match="--api-key"):
        find_target("http://127.0.0.1:8000", key)


def test_an_address_of_version_6_is_bracketed_in_the_host():
    assert b"\r\nhost: [::1]:8000\r\n" in find_target("http://[::1]:8000").post("/v1/models", b"")


async def test_the_first_model_is_asked_for_with_the_key():
    async with serving(b"") as server:
        assert await asyncio.to_thread(first_model, find_target(server.url, "k-1")) == "fake"
    assert server.heads[0].startswith("GET /v1/models HTTP/1.1\r\n")
    assert "authorization: Bearer k-1" in server.heads[0]


async def model_of(models: bytes) -> str:
    async with serving(b"", models) as server:
        return await asyncio.to_thread(first_model, find_target(server.url))


async def test_the_models_may_come_in_chunks():
    assert await model_of(chunked(b'{"data": [{', b'"id": "m"}]}')) == "m"


@pytest.mark.parametrize(
    "models", [http(b'{"data": []}'), http(b"[]"), http(b"hello"), refusal("401 Unauthorized", "no"), b"x"]
)
async def test_a_server_that_names_no_model_is_refused(models):
    with pytest.raises(ConfigurationError, match="give --model"):
        await model_of(models)


async def test_a_server_without_time_cannot_be_measured_now():
    with pytest.raises(CannotStart, match=r"503 overloaded: Too many requests\."):
        await model_of(refusal())


def test_a_server_that_is_not_there_cannot_be_measured_now():
    with pytest.raises(CannotStart, match=r"cannot connect to http.*: Connection refused"):
        first_model(find_target(f"http://127.0.0.1:{free_port()}"))
