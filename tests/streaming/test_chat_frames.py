"""The shapes of the server's frames; test_chat_protocol.py has the others."""

import json

from app.contract.errors import InvalidValue, Overloaded
from app.contract.events import TokenDelta, Usage
from app.contract.packed_logprobs import Logprobs, TokenLogprobs
from app.streaming import chat_frames
from app.streaming.openai_shapes import logprobs_entries
from app.streaming.session import StreamTimings


def test_logprobs_have_openais_shape():
    logprobs = Logprobs.of([TokenLogprobs(7, float("-inf"), 2, (8,), (-0.5,))], 1)
    entries = logprobs_entries(logprobs, {7: b"\xe2\x82", 8: b"ok"}.__getitem__)
    frame = json.loads(chat_frames.delta("a", TokenDelta("r", 0, 1, (7,), "", logprobs), entries))
    assert frame["lp"] == [
        {
            "token": "\ufffd",
            "logprob": -9999.0,
            "bytes": [0xE2, 0x82],
            "top_logprobs": [{"token": "ok", "logprob": -0.5, "bytes": [111, 107]}],
        }
    ]


def test_a_delta_without_logprobs_has_no_lp():
    assert "lp" not in json.loads(chat_frames.delta("a", TokenDelta("r", 0, 1, (7,), "x")))


def test_usage_has_openais_shape():
    frame = json.loads(chat_frames.done("a", Usage(5, 3, 2), StreamTimings(1.23456, 2, 3, 4, 5)))
    assert frame["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 3,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    assert frame["timings"]["queue_ms"] == 1.235


def test_an_error_names_its_stream_only_if_it_has_one():
    info = InvalidValue("top_k is 'x'; it must be an integer.", param="top_k").info()
    assert json.loads(chat_frames.error(None, info, is_fatal=True)) == {
        "t": "error",
        "code": "invalid_value",
        "status": 400,
        "message": info.message,
        "param": "top_k",
        "fatal": True,
    }
    assert json.loads(chat_frames.error("a", Overloaded("Full.").info()))["id"] == "a"


def test_text_is_sent_unchanged():
    text = "\u2028 \x00 \r\n </script> \U0001f642"
    assert json.loads(chat_frames.delta("a", TokenDelta("r", 0, 1, (7,), text)))["x"] == text
