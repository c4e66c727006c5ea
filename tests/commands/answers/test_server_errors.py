"""What servers say of a failure, in the forms that they have for it."""

import json

import pytest

from app.commands.answers.server_errors import MAX_WORDS, refusal

NO = "the server returned status 400"


@pytest.mark.parametrize(
    ("body", "message", "code", "param"),
    [
        ({"error": {"message": "No.", "type": "x", "param": "n", "code": "bad"}}, "No.", "bad", "n"),  # OpenAI
        ({"error": {"message": "No.", "type": "x"}}, "No.", "engine_error", None),
        ({"error": {"message": "No.", "type": "x", "param": None, "code": None}}, "No.", "engine_error", None),
        ({"error": {"code": 400, "message": "No.", "type": "x"}}, "No.", "400", None),  # llama.cpp
        ({"error": "model not found"}, f"{NO}: model not found", "engine_error", None),  # Ollama
        ({"object": "error", "message": "No.", "param": None, "code": 400}, f"{NO}: No.", "engine_error", None),  # vLLM
        ({"detail": "Not Found"}, f"{NO}: Not Found", "engine_error", None),  # FastAPI
        ({"detail": [{"loc": ["body"], "msg": "field required"}]}, f"{NO}: field required", "engine_error", None),
        (
            [{"error": {"code": 400, "message": "No.", "status": "INVALID"}}],
            f"{NO}: No.",
            "engine_error",
            None,
        ),  # Google
        ({"error": {"message": {"a": 1}, "param": ["n"]}}, NO, "engine_error", None),
        ({"error": None, "detail": []}, NO, "engine_error", None),
        ([], NO, "engine_error", None),
        (7, NO, "engine_error", None),
    ],
)
def test_an_error_is_told_in_the_servers_words(body, message, code, param):
    told = refusal(400, json.dumps(body).encode())
    assert (told.message, told.code, told.param, told.http_status) == (message, code, param, 400)


@pytest.mark.parametrize("body", [b"", b"<html>Bad Gateway</html>", b"\xff", b"[" * 100_000])
def test_a_page_is_told_by_its_status(body):
    assert refusal(502, body).message == "the server returned status 502"


def test_a_long_error_is_cut():
    assert len(refusal(400, json.dumps({"error": {"message": "x" * 10**6}}).encode()).message) == MAX_WORDS
