"""The first token of a turn is a token, whatever comes before it; and each model's figures are judged and kept."""

import json

import pytest

from benchmarks import kv_disk
from benchmarks.__main__ import main
from benchmarks.kv_disk import ENDS, NUM_PROMPT, Restart, TokenReader, Turn

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(text: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(text), text)


def test_a_heartbeat_is_no_token():
    reader = TokenReader()
    pieces = [b": \n", b'data: {"prompt_token_ids":[1,2],"token_ids":[]}\n\n', b'data: {"token_ids":', b"[7]}\n\n"]
    for now, piece in enumerate([HEAD, *map(chunk, pieces)]):
        assert reader.first_token_at is None
        reader.feed(piece, float(now))
    assert reader.first_token_at == 4.0 and reader.times[0] == 1.0


def restarts(*warm_s: float) -> list[Restart]:
    """Restarts by both ends in turn, where a cold turn takes a second."""
    return [
        Restart(ENDS[number % 2].name, Turn([1], seconds, NUM_PROMPT, 0.1), Turn([1], 1.0, 0, 1.0), 2**20)
        for number, seconds in enumerate(warm_s)
    ]


@pytest.fixture
def measured(tmp_path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Restart]]:
    """What `measure` finds of each model."""
    found = {"s135": restarts(0.1, 0.1), "smollm2": restarts(0.125, 0.125)}
    monkeypatch.setattr(kv_disk, "measure", lambda name, repeat: found[name])
    monkeypatch.setattr(kv_disk, "FILE", tmp_path / "kv_disk.json")
    return found


def test_one_run_measures_both_models_and_a_run_of_one_keeps_the_other(measured: dict[str, list[Restart]]):
    assert main(["kv_disk"]) == 0
    measured["s135"] = restarts(0.05, 0.05)
    assert main(["kv_disk", "--models", "s135"]) == 0
    found = json.loads(kv_disk.FILE.read_text())["models"]
    ratios = {name: {one["end"]: one["ratio"] for one in model["restarts"]} for name, model in found.items()}
    assert ratios == {"s135": {"SIGTERM": 20, "SIGKILL": 20}, "smollm2": {"SIGTERM": 8, "SIGKILL": 8}}


def test_each_end_of_a_server_is_judged(measured: dict[str, list[Restart]], capsys: pytest.CaptureFixture[str]):
    measured["smollm2"] = restarts(0.1, 0.25, 0.1, 0.25)
    assert main(["kv_disk"]) == 1
    assert "missed: smollm2, SIGKILL: next turn sooner after a restart is 4 times" in capsys.readouterr().out


def test_other_tokens_and_a_model_that_is_not_there_are_faults(
    measured: dict[str, list[Restart]], capsys: pytest.CaptureFixture[str]
):
    first, second = measured["s135"]
    measured["s135"] = [first, second._replace(warm=second.warm._replace(token_ids=[2]))]
    measured["smollm2"] = []
    assert main(["kv_disk"]) == 1
    out = capsys.readouterr().out
    assert "missed: s135: other tokens warm than cold after SIGKILL" in out
    assert "missed: smollm2 is not there" in out
