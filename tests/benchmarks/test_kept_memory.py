"""The benchmark `kept_memory`: what it makes of three measurements."""

import json

from app.streaming.kept.live_stream import PROMPT_TOKEN_BYTES
from benchmarks import kept_memory
from benchmarks.__main__ import main
from benchmarks.kept_memory import NUM_PROMPT, Taken
from benchmarks.streams.client_group import RESUMABLE
from benchmarks.streams.script import TOKEN_CHARS

NUM_STREAMS = 2000


def test_tokens_and_streams_are_told_apart(monkeypatch, capsys, tmp_path):
    def measure(kind, num_tokens, folder):
        left = 3 << 20  # by connections
        each = 5000 + NUM_PROMPT * PROMPT_TOKEN_BYTES + num_tokens * (17 + TOKEN_CHARS)
        return Taken(left + NUM_STREAMS * each * (kind == RESUMABLE), NUM_STREAMS * num_tokens)

    monkeypatch.setattr(kept_memory, "measure", measure)
    file = tmp_path / "kept_memory.json"
    assert main(["kept_memory", "--output", str(file)]) == 1
    assert json.loads(file.read_text())["bytes"] == {
        "a token, beside its text": 17, "a stream, beside its tokens and its prompt": 5000
    }  # fmt: skip
    assert "a token, beside its text is 17 bytes, at most 16 bytes: MISSED by 1 bytes" in capsys.readouterr().out
