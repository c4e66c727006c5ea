"""Pages of other origins may use the server if `--allowed-origins` names them, and only then."""

import pytest

from tests.api.serving import client_of, make_app

FRIEND = "https://friend.example"
PREFLIGHT = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-lang",
}


async def asked(
    origin: str | None, path: str = "/v1/models", method: str = "GET", more: dict | None = None, **settings
):
    """The response to a request of a page of `origin`."""
    app = await make_app(**settings)
    async with client_of(app) as client:
        return await client.request(method, path, headers={**({"origin": origin} if origin else {}), **(more or {})})


def cors_headers(answer) -> set[str]:
    """The names of the headers for pages of other origins."""
    return {name for name in answer.headers if name.startswith("access-control")}


@pytest.mark.parametrize("origin", [FRIEND, "https://stranger.example", None])
async def test_without_the_setting_no_origin_is_named(origin: str | None):
    answer = await asked(origin)
    assert answer.status_code == 200
    assert cors_headers(answer) == set()
    preflight = await asked(origin, method="OPTIONS", more=PREFLIGHT)
    assert preflight.status_code == 405
    assert cors_headers(preflight) == set()


async def test_an_allowed_origin_is_named_also_in_errors():
    for settings, status in (({}, 200), ({"api_key": ["secret"]}, 401)):
        answer = await asked(FRIEND.upper(), allowed_origins=[f"{FRIEND}/"], **settings)
        assert answer.status_code == status
        assert answer.headers["access-control-allow-origin"] == FRIEND.upper()
        assert {"x-request-id", "request-id"} < {*answer.headers["access-control-expose-headers"].split(", ")}
        assert "Origin" in answer.headers["vary"]
        assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize("origin", ["https://stranger.example", "null", "https://friend.example.evil", None])
async def test_other_origins_are_not_named(origin: str | None):
    answer = await asked(origin, allowed_origins=[FRIEND])
    assert answer.status_code == 200
    assert cors_headers(answer) == set()
    assert answer.headers["vary"] == "Origin"
    preflight = await asked(origin, method="OPTIONS", more=PREFLIGHT, allowed_origins=[FRIEND])
    assert preflight.status_code == 405
    assert cors_headers(preflight) == set()


async def test_a_preflight_is_answered_without_a_key_and_allows_the_headers_of_sdks():
    answer = await asked(
        FRIEND, "/v1/chat/completions", "OPTIONS", PREFLIGHT, allowed_origins=[FRIEND], api_key=["secret"]
    )
    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["access-control-allow-origin"] == FRIEND
    assert answer.headers["access-control-allow-headers"] == PREFLIGHT["access-control-request-headers"]
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert answer.headers["vary"] == "Origin, Access-Control-Request-Headers"
    assert "access-control-allow-credentials" not in answer.headers
    assert "access-control-allow-private-network" not in answer.headers
    assert "x-request-id" in answer.headers


async def test_a_preflight_with_odd_headers_allows_none_of_them():
    more = {**PREFLIGHT, "access-control-request-headers": "a; b", "access-control-request-private-network": "true"}
    answer = await asked(FRIEND, "/v1/models", "OPTIONS", more, allowed_origins=[FRIEND])
    assert answer.status_code == 204
    assert "access-control-allow-headers" not in answer.headers
    assert answer.headers["access-control-allow-private-network"] == "true"


async def test_any_origin_is_named_with_a_star_but_the_key_is_still_needed():
    answer = await asked("https://any.example", allowed_origins=["*"], api_key=["secret"])
    assert answer.status_code == 401
    assert answer.headers["access-control-allow-origin"] == "https://any.example"


async def test_options_that_is_no_preflight_is_an_ordinary_request():
    answer = await asked(FRIEND, method="OPTIONS", allowed_origins=[FRIEND])
    assert answer.status_code == 405
    assert answer.headers["access-control-allow-origin"] == FRIEND


async def test_the_page_itself_varies_by_encoding_and_origin():
    answer = await asked(FRIEND, "/", allowed_origins=[FRIEND])
    assert answer.headers["vary"] == "Accept-Encoding, Origin"
