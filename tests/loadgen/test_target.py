"""Targets: the accepted URLs, and the head of a request."""

import asyncio
import socket
from unittest.mock import Mock

import pytest

from app.contract.errors import CannotStart, ConfigurationError
from app.loadgen.target import find_target, first_model
from tests.loadgen.fakes import chunked, free_port, http, rejection, serving


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8000", "http://127.0.0.1:8000/", "http://127.0.0.1:8000/v1", "127.0.0.1:8000/v1/"]
)
def test_a_url_may_end_with_v1(url):
    target = find_target(url)
    assert (target.url, target.address, target.port, target.path) == ("http://127.0.0.1:8000", "127.0.0.1", 8000, "")
    assert target.connecting == {"host": "127.0.0.1", "port": 8000}


def test_a_target_may_have_a_source_address():
    target = find_target("http://127.0.0.1:8000")._replace(source="127.0.0.2")
    assert target.connecting["local_addr"] == ("127.0.0.2", 0)


def test_a_path_before_the_version_is_kept():
    assert (
        find_target("http://127.0.0.1:8000/llm/v1")
        .post("/v1/models", b"")
        .startswith(b"POST /llm/v1/models HTTP/1.1\r\n")
    )


def test_https_checks_the_host_name_of_the_certificate():
    target = find_target("https://127.0.0.1")
    assert (target.port, target.connecting["server_hostname"]) == (443, "127.0.0.1")
    assert target.connecting["ssl"].check_hostname


@pytest.mark.parametrize(
    "url", ["", "ftp://127.0.0.1", "http://", "http://127.0.0.1:99999", "http://127.0.0.1:0", "http://127.0.0.1/?a=1"]
)
def test_other_urls_are_rejected(url):
    with pytest.raises(ConfigurationError, match=r"must look like http://127\.0\.0\.1:8000"):
        find_target(url)


def test_a_password_in_the_url_is_rejected_and_not_repeated():
    with pytest.raises(ConfigurationError, match="use --api-key") as caught:
        find_target("http://user:secret@127.0.0.1:8000")
    assert "secret" not in caught.value.message


def test_an_unknown_host_is_named(monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", Mock(side_effect=socket.gaierror(-2, "Name or service not known")))
    with pytest.raises(CannotStart, match="cannot find nowhere: Name or service not known"):
        find_target("http://nowhere:8000")


def test_an_invalid_host_is_named():
    with pytest.raises(ConfigurationError, match=r"URL is 'http://a\.\.b'"):
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
def test_a_key_that_cannot_be_a_header_is_rejected(key):
    with pytest.raises(ConfigurationError, match="--api-key"):
        find_target("http://127.0.0.1:8000", key)


def test_an_ipv6_address_has_brackets_in_the_host_header():
    assert b"\r\nhost: [::1]:8000\r\n" in find_target("http://[::1]:8000").post("/v1/models", b"")


async def test_the_request_for_the_models_has_the_key():
    async with serving(b"") as server:
        assert await asyncio.to_thread(first_model, find_target(server.url, "k-1")) == "fake"
    assert server.heads[0].startswith("GET /v1/models HTTP/1.1\r\n")
    assert "authorization: Bearer k-1" in server.heads[0]


async def model_of(models: bytes) -> str:
    async with serving(b"", models) as server:
        return await asyncio.to_thread(first_model, find_target(server.url))


async def test_the_list_of_models_may_be_chunked():
    assert await model_of(chunked(b'{"data": [{', b'"id": "m"}]}')) == "m"


@pytest.mark.parametrize(
    "models", [http(b'{"data": []}'), http(b"[]"), http(b"hello"), rejection("401 Unauthorized", "no"), b"x"]
)
async def test_a_server_without_a_model_is_rejected(models):
    with pytest.raises(ConfigurationError, match="give --model"):
        await model_of(models)


async def test_an_overloaded_server_cannot_start_a_measurement():
    with pytest.raises(CannotStart, match=r"503 overloaded: Too many requests\."):
        await model_of(rejection())


def test_an_unreachable_server_cannot_start_a_measurement():
    with free_port() as port, pytest.raises(CannotStart, match=r"cannot connect to http.*: Connection refused"):
        first_model(find_target(f"http://127.0.0.1:{port}"))
