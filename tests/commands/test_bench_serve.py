"""`quire bench serve` against the server over a fake engine, and against scripted servers."""

import asyncio
import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from app import cli
from app.commands.answers.server_connection import KEY_VARIABLES
from app.commands.bench_serve import without_key
from tests.api.serving import make_app, until
from tests.api.serving import serving as serving_app
from tests.fakes import FakeEngine
from tests.loadgen.fakes import FINISH, HANG_S, chunked, rejection, serving, stream, text


async def bench(url: str, *options: str) -> int:
    """Run the command while this loop serves; returns its exit code."""
    return await asyncio.to_thread(cli.main, ["bench", "serve", url, *options])


def lines_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "serve.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(autouse=True)
def _no_key(monkeypatch):
    for name in KEY_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
async def test_quires_server_is_measured_token_by_token(endpoint, tmp_path, capsys):
    engine = FakeEngine()
    async with serving_app(await make_app(engine)) as url:
        code = await bench(
            url, "--endpoint", endpoint, "--num-requests", "5", "--output-len", "7", "--ignore-eos", "--warm-up", "2",
            "--rate", "200", "--rate", "inf", "--output", str(tmp_path),
        )  # fmt: skip
    assert code == 0
    assert len(engine.requests) == 2 + 5 + 5
    assert {request.params.max_tokens for request in engine.requests} == {7}
    lines = lines_of(tmp_path)
    assert [line["rate"] for line in lines] == ["200"] * 5 + ["inf"] * 5
    assert {(line["status"], line["output_tokens"], line["error"]) for line in lines} == {("completed", "7", "")}
    assert all(int(line["prompt_tokens"]) > 0 and 1 <= int(line["chunks"]) <= 7 for line in lines)
    found = json.loads((tmp_path / "serve.json").read_text())
    assert [run["output_tokens"] for run in found["runs"]] == [35, 35]
    assert found["settings"]["endpoint"] == endpoint and found["settings"]["rates"] == ["200", "inf"]
    assert found["machine"]["cores"] >= 1 and found["url"] == url
    ElementTree.parse(tmp_path / "serve.svg")
    captured = capsys.readouterr().out
    assert "5 completed, 0 failed, 0 cancelled" in captured
    assert "35 out (7 each), counted by the server" in captured
    assert f"written: {tmp_path / 'serve.json'}" in captured


async def test_prompts_can_be_token_ids_of_quires_server(tmp_path):
    engine = FakeEngine()
    async with serving_app(await make_app(engine)) as url:
        options = ("--num-requests", "3", "--input-len", "11", "--warm-up", "0", "--prompt-token-ids")
        assert await bench(url, *options, "--output", str(tmp_path)) == 0
    assert [len(request.prompt_token_ids) for request in engine.requests] == [11] * 3
    assert [line["prompt_tokens"] for line in lines_of(tmp_path)] == ["11"] * 3


async def test_a_cancel_aborts_the_request_in_quires_server(tmp_path, capsys):
    engine = FakeEngine(held=True)
    options = "--endpoint chat --num-requests 4 --input-len 9 --output-len 900 --warm-up 0 --cancel 1 --ignore-eos"
    async with serving_app(await make_app(engine)) as url:
        task = asyncio.create_task(bench(url, *options.split(), "--output", str(tmp_path)))
        await until(lambda: len(engine.requests) == 4)
        while not task.done():
            engine.step()
            await asyncio.sleep(0.001)
        await until(lambda: len(engine.aborted) == 4)
        assert await task == 0
    lines = lines_of(tmp_path)
    assert [line["status"] for line in lines] == ["cancelled"] * 4
    assert len({line["output_tokens"] for line in lines}) > 1, "at random points"
    assert "0 completed, 0 failed, 4 cancelled" in capsys.readouterr().out


async def test_failures_are_counted_and_the_first_message_is_printed(tmp_path, capsys):
    async with serving(lambda number: rejection() if number % 3 == 1 else stream()) as server:
        assert await bench(server.url, "--num-requests", "6", "--warm-up", "0", "--output", str(tmp_path)) == 0
    captured = capsys.readouterr().out
    assert "4 completed, 2 failed, 0 cancelled" in captured
    assert "failed: 2 503 overloaded\nfirst message: Too many requests.\n" in captured
    assert sorted(line["error"] for line in lines_of(tmp_path)) == [""] * 4 + ["503 overloaded"] * 2


async def test_truncated_streams_are_failures(capsys):
    truncated = chunked(text(), text(), is_complete=False)
    async with serving(lambda number: stream() if number else truncated) as server:
        assert await bench(server.url, "--num-requests", "3", "--warm-up", "0") == 0
    assert "failed: 1 cut\nfirst message: the answer was cut after 2 chunks\n" in capsys.readouterr().out


async def test_without_usage_chunks_are_counted(capsys):
    async with serving(chunked(text(), text(), FINISH)) as server:
        assert await bench(server.url, "--num-requests", "3") == 0
    captured = capsys.readouterr().out
    assert "tokens                  6 out (2 each), chunks" in captured
    assert "Warning: the server does not report token counts" in captured


async def test_the_model_is_the_servers_first_unless_given():
    async with serving(stream()) as server:
        await bench(server.url, "--num-requests", "1", "--warm-up", "0")
        await bench(server.url, "--num-requests", "1", "--warm-up", "0", "--model", "mine")
    assert [body["model"] for body in server.bodies] == ["fake", "mine"]
    assert [head.split(" ")[0] for head in server.heads] == ["GET", "POST", "POST"]


async def test_a_key_is_sent_and_never_written(tmp_path, monkeypatch, capsys):
    arguments = ["bench", "serve", "URL", "--api-key", "k-secret", "--num-requests", "1", "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["quire", *arguments])
    async with serving(stream()) as server:
        assert await bench(server.url, *arguments[3:]) == 0
        monkeypatch.setenv("OPENAI_API_KEY", "k-other")
        assert await bench(server.url, "--num-requests", "1", "--warm-up", "0") == 0
        monkeypatch.setenv("QUIRE_API_KEY", "k-first,k-second")
        assert await bench(server.url, "--num-requests", "1", "--warm-up", "0") == 0
    keys = [line for head in server.heads for line in head.splitlines() if line.startswith("authorization")]
    assert (
        keys
        == ["authorization: Bearer k-secret"] * 3
        + ["authorization: Bearer k-other"] * 2
        + ["authorization: Bearer k-first"] * 2
    )
    assert json.loads((tmp_path / "serve.json").read_text())["command"].startswith(
        "quire bench serve URL --api-key *** "
    )
    captured = capsys.readouterr()
    texts = [captured.out, captured.err, *(file.read_text() for file in tmp_path.iterdir())]
    assert not any("k-secret" in each for each in texts)


def test_a_key_is_masked_however_it_is_given():
    assert without_key(["--api-key", "k", "--seed", "1"]) == ["--api-key", "***", "--seed", "1"]
    assert without_key(["--api-key=k"]) == ["--api-key=***"]


async def test_a_server_that_rejects_everything_is_a_one_line_error(capsys):
    async with serving(rejection("401 Unauthorized", "invalid_api_key")) as server:
        assert await bench(server.url) == 2
    captured = capsys.readouterr()
    assert captured.err.splitlines()[-1] == (
        f"quire: error: {server.url} has failed the request: 401 invalid_api_key, Too many requests."
    )
    assert "completed" not in captured.out


async def test_an_unreachable_server_is_a_one_line_error(capsys):
    async with serving(b"") as server:
        url = server.url
    assert await bench(url) == 75
    assert await bench(url, "--model", "m") == 75
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first == f"quire: error: cannot connect to {url}: Connection refused"
    assert last == f"quire: error: {url} has failed the request: no connection, Connection refused"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["serve"], "URL"),
        (["serve", "ftp://x"], "must look like http://127.0.0.1:8000"),
        (["serve", "http://127.0.0.1:1", "--rat", "2"], "'--rate'"),
        (["serve", "http://127.0.0.1:1", "--cancel", "2"], "--cancel is 2"),
        (["serve", "http://127.0.0.1:1", "--output", "/dev/null/x"], "--output /dev/null/x cannot be written to"),
        (["--seed", "0", "serve"], "serve"),
        (["--num-requests", "2", "serve"], "quire bench serve --help"),
    ],
)
def test_invalid_options_are_rejected_before_anything_is_sent(arguments, says, capsys):
    assert cli.main(["bench", *arguments]) == 2
    assert says in capsys.readouterr().err


async def test_an_interrupt_keeps_the_results(tmp_path):
    """SIGINT while the second of three answers hangs."""
    async with serving(lambda number: stream() if number == 0 else chunked(text(), is_complete=False)) as server:
        server.hold()
        command = [sys.executable, "-m", "app", "bench", "serve", server.url, "--num-requests", "3", "--warm-up", "0"]
        environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
        process = await asyncio.create_subprocess_exec(
            *command, "--output", str(tmp_path), env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        async with asyncio.timeout(2 * HANG_S):
            await until(lambda: server.num_open == 2 and server.lost == [0])
            process.send_signal(signal.SIGINT)
            out, err = await process.communicate()
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert b"1 completed, 0 failed, 0 cancelled" in out
    assert sorted(line["status"] for line in lines_of(tmp_path)) == ["completed", "open", "open"]
