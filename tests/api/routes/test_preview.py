"""The frame for previews: what its headers allow, and that it is served as the page's files are."""

import pytest

from tests.api.serving import client_of, make_app


@pytest.fixture
async def client():
    async with client_of(await make_app(api_key=("right",))) as client:
        yield client


async def test_the_frame_may_run_its_own_text_and_reach_nothing(client):
    answer = await client.get("/preview")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = dict(one.split(" ", 1) for one in answer.headers["content-security-policy"].split("; "))
    assert policy == {
        "default-src": "'none'",
        "script-src": "'unsafe-inline'",
        "style-src": "'unsafe-inline'",
        "img-src": "data:",
        "font-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'self'",
        "sandbox": "allow-scripts",
    }
    assert answer.headers["connection-allowlist"] == "()"
    assert answer.headers["x-dns-prefetch-control"] == "off"


async def test_the_frame_is_asked_for_again_and_sent_once(client):
    first = await client.get("/preview")
    assert first.headers["cache-control"] == "no-cache"
    again = await client.get("/preview", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    head = await client.head("/preview")
    assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", first.headers["etag"])
    assert head.headers["content-security-policy"] == first.headers["content-security-policy"]


@pytest.mark.parametrize("path", ["/preview/", "/preview/x", "/PREVIEW", "/preview;x"])
async def test_no_other_path_is_open_with_it(client, path):
    assert (await client.get(path)).status_code == 401


async def test_the_frame_is_read_and_not_written(client):
    assert (await client.post("/preview")).status_code == 405
