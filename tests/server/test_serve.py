"""`quire serve` in a process of its own, from the start to each way it can end."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path

import httpx
import pytest

from app.checkpoint.names import resolve
from app.journal.store import JournalStore
from app.runtime.start_timings import PHASES
from tests.house.source import ROOT
from tests.server import quick_start
from tests.server.processes import HANG_S, serving
from tests.server.quick_start import quire

GUIDE = resolve("guide")


def question(**fields: object) -> dict[str, object]:
    """A chat body."""
    return {"messages": [{"role": "user", "content": "What is Quire?"}], "stream": True, "temperature": 0, **fields}


def test_the_embedded_model_is_served_and_sigterm_exits_with_0():
    with serving() as server:
        assert httpx.get(server.url, timeout=HANG_S).status_code == 200
        assert httpx.get(f"{server.url}/livez", timeout=HANG_S).status_code == 200
        server.wait_until_ready()
        with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=question(), timeout=HANG_S) as response:
            assert response.status_code == 200
            events = (line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: "))
            contents = (json.loads(event)["choices"][0]["delta"].get("content") for event in events)
            assert next(filter(None, contents))
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0


def test_the_page_of_metrics_lists_every_family_that_a_server_shows_and_no_other():
    """If this fails: `make docs`."""
    page = (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\S+)` \| (\w+) \|", page, re.MULTILINE)
    with serving() as server:
        server.wait_until_ready()
        text = httpx.get(f"{server.url}/metrics", timeout=HANG_S).text
    shown = re.findall(r"^# TYPE (\S+) (\w+)$", text, re.MULTILINE)
    assert len(shown) == len(set(shown)) and sorted(listed) == sorted(shown)
    assert 'quire_memory_bytes{engine="0",kind="weights",model_name="guide"} 0.0' not in text
    assert re.findall(r'^quire_startup_seconds{.*phase="(\w+)"}', text, re.MULTILINE) == list(PHASES)


def test_a_command_line_of_vllm_is_served_and_what_differs_is_logged():
    options = [
        "--tensor-parallel-size",
        "1",
        "--trust-remote-code",
        "--dtype",
        "half",
        "--enable-auto-tool-choice",
        "--tool-call-parser",
        "hermes",
        "--max-num-batched-tokens",
        "1024",
        "--enable-prefix-caching",
        "--served-model-name",
        "mine",
        "--disable-log-requests",
        "--block-size",
        "128",
        "--generation-config",
        "vllm",
        "--override-generation-config",
    ]
    with quick_start.serving("guide", *options, '{"temperature": 0.25}', stderr=subprocess.PIPE) as server:
        server.wait_until_ready()
        (model,) = httpx.get(f"{server.url}/v1/models", timeout=HANG_S).json()["data"]
        body = question(stream=False, max_tokens=2)
        assert httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=HANG_S).status_code == 200
        server.process.send_signal(signal.SIGTERM)
        lines = [json.loads(line) for line in server.process.stderr if line.startswith("{")]
        assert server.end() == 0
    assert model["id"] == "mine" and model["default_sampling_params"]["temperature"] == 0.25
    warnings = [line["message"] for line in lines if line["level"] == "warning"]
    assert len(warnings) == 1 and warnings[0].startswith("trust_remote_code is true: no effect;")


def test_timings_are_printed_with_the_option_timings():
    with serving("--timings") as server:
        server.wait_until_ready()
        assert server.process.stdout is not None
        output = ""
        while "open_server" not in output:
            output += server.process.stdout.readline()
        httpx.post(f"{server.url}/v1/chat/completions", json=question(stream=False, max_tokens=1), timeout=HANG_S)
        server.process.send_signal(signal.SIGTERM)
        output += server.process.stdout.read()
        assert server.end() == 0
    for part in (*PHASES, "First token: "):
        assert output.count(part) == 1, part


def test_page_and_health_routes_are_served_while_the_model_loads():
    with serving(program=("tests.server.hanging", "load")) as server:
        connection = HTTPConnection(server.url.removeprefix("http://"))
        for path, status in (("/readyz", 503), ("/livez", 200), ("/", 200)):
            connection.request("GET", path)
            response = connection.getresponse()
            body = response.read()
            assert response.status == status
            assert path == "/" or json.loads(body)["status"] == "loading"
        connection.close()
        server.process.send_signal(signal.SIGUSR1)
        server.wait_until_ready()


def test_after_a_signal_open_requests_finish_and_readyz_is_503():
    """The answer exceeds all buffers, so that it cannot end before the client has read on, and has seen the 503."""
    with (
        quick_start.serving("--drain-timeout", str(HANG_S), "--stall-timeout", "0") as server,
        httpx.Client(base_url=server.url, timeout=HANG_S) as client,
    ):
        server.wait_until_ready()
        body = question(max_tokens=1000, ignore_eos=True, logprobs=True, top_logprobs=5)
        with client.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = (line for line in response.iter_lines() if line.startswith("data: "))
            # Ctrl-C waits for requests that have a token.
            next(line for line in lines if '"content":"' in line and '"content":""' not in line)
            server.process.send_signal(signal.SIGINT)
            status = 200
            for line in lines:
                if status == 200:
                    status = client.get("/readyz").status_code
                last = line
        assert status == 503
        assert last == "data: [DONE]"
        assert server.end() == 0


def test_a_second_signal_ends_the_server_at_once():
    with quick_start.serving("--drain-timeout", "600") as server:
        server.wait_until_ready()
        body = question(max_tokens=1900, ignore_eos=True)
        with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=HANG_S) as response:
            next(response.iter_lines())
            server.process.send_signal(signal.SIGTERM)
            assert server.process.stdout is not None
            while not server.process.stdout.readline().startswith("Shutting down"):
                pass
            server.process.send_signal(signal.SIGTERM)
            assert server.end() == 0


def test_a_closed_stdout_does_not_change_the_exit_code():
    with quick_start.serving() as server:
        server.wait_until_ready()
        assert server.process.stdout is not None
        server.process.stdout.close()
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0


def test_sigterm_before_listening_exits_with_0(tmp_path):
    """The settings file is a pipe, so that the test can wait until the server reads it."""
    settings = tmp_path / "quire.toml"
    os.mkfifo(settings)
    command = [sys.executable, "-m", "app", "serve", "--port", "0", "--config", str(settings)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    with settings.open("w"):  # opens when the server reads the pipe; the read never ends
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANG_S) == 0
    assert process.communicate()[0] == b""


def test_a_signal_while_the_model_loads_exits_with_0():
    with serving() as server:
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0


def test_a_signal_while_a_large_model_loads_ends_the_server_at_once(tmp_path):
    """Generating these weights takes far longer than the limit below, and so may the wait for the engine."""
    shape = json.loads((GUIDE / "config.json").read_text()) | {
        "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 300,
        "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 64,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(shape))
    with quick_start.serving(str(tmp_path), "--load-format", "dummy") as server:
        with httpx.Client(base_url=server.url, timeout=HANG_S) as client:
            while client.get("/readyz").json()["progress"] == 0:
                assert server.process.poll() is None
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0


def test_sighup_does_not_end_the_server():
    with quick_start.serving() as server:
        for _ in range(2):  # while the model loads, and when it is ready
            server.process.send_signal(signal.SIGHUP)
            server.wait_until_ready()
        body = question(stream=False, max_tokens=1)
        assert httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=HANG_S).status_code == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0


def test_without_a_writable_folder_the_server_says_so_and_answers():
    """It has no place for compiled kernels then; torch computes."""
    with quick_start.serving(program=("tests.server.hanging", "folders"), stderr=subprocess.PIPE) as server:
        server.wait_until_ready()
        body = question(stream=False, max_tokens=1)
        assert httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=HANG_S).status_code == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0
        lines = [json.loads(line) for line in server.process.stderr]
    messages = [line["message"] for line in lines if line["level"] != "info"]
    assert [message.startswith("no native kernels") and "TMPDIR" in message for message in messages] == [True]


def test_a_port_in_use_exits_with_75():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = quire("serve", "--port", str(taken.getsockname()[1]))
    assert result.returncode == 75
    assert_one_line(result.stderr, "in use")


def test_a_journal_that_another_process_has_exits_with_75(tmp_path):
    path = tmp_path / "journal"
    store = JournalStore(path)
    try:
        result = quire("serve", "--port", "0", "--quiet", "--journal", str(path))
    finally:
        store.close()
    assert result.returncode == 75
    assert_one_line(result.stderr, f"The journal {path} is in use by another process")


def broken(tmp_path: Path, damage: str) -> Path:
    """A copy of the embedded model with one thing wrong."""
    folder = tmp_path / "model"
    shutil.copytree(GUIDE, folder)
    weights, config = folder / "model.safetensors", folder / "config.json"
    match damage:
        case "missing":
            shutil.rmtree(folder)
        case "empty":
            shutil.rmtree(folder)
            folder.mkdir()
        case "truncated":
            weights.write_bytes(weights.read_bytes()[:-1000])
        case "no safetensors":
            weights.write_bytes(b"\x80\x04")
        case "pickled":
            weights.rename(folder / "pytorch_model.bin")
        case "architecture":
            fields = json.loads(config.read_text())
            config.write_text(json.dumps(fields | {"architectures": ["Foo"], "model_type": "foo"}))
        case "config":
            config.write_text("{")
        case "tokenizer":
            (folder / "tokenizer.json").unlink()
        case "template depth":
            (folder / "chat_template.jinja").write_text("{% if a %}" * 400 + "{% endif %}" * 400)
    return folder


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ("missing", "no folder"),
        ("empty", "config.json"),
        ("truncated", "model.safetensors"),
        ("no safetensors", "model.safetensors"),
        ("pickled", "safetensors"),
        ("architecture", "Foo"),
        ("config", "config.json"),
        ("tokenizer", "tokenizer.json"),
        ("template depth", "nested too deeply"),
    ],
)
def test_a_damaged_model_folder_is_rejected_in_one_line(tmp_path, damage, says):
    result = quire("serve", "--port", "0", "--model", str(broken(tmp_path, damage)))
    assert result.returncode == 2
    assert result.stdout == ""
    assert_one_line(result.stderr, says)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--device", "cuda"), "--device cuda is set, but "),
        (("--kv-cache-memory", "5"), "--kv-cache-memory is 5 bytes, and one KV block takes"),
    ],
)
def test_what_prevents_the_start_is_said_once(options, says):
    result = quire("serve", "--port", "0", *options, CUDA_VISIBLE_DEVICES="")
    assert result.returncode == 75
    assert (result.stdout + result.stderr).count(says) == 1


def test_a_missing_gpu_is_told_before_the_server_listens():
    result = quire("serve", "--port", "0", "--device", "cuda", CUDA_VISIBLE_DEVICES="")
    assert (result.stdout, result.stderr.count("\n")) == ("", 1)


def test_too_little_memory_exits_with_75():
    """Found while the model loads, on the engine thread."""
    result = quire("serve", "--port", "0", "--kv-cache-memory", "1KiB")
    assert result.returncode == 75
    assert "quire: error:" in result.stderr
    assert "Traceback" not in result.stderr


def assert_one_line(stderr: str, says: str) -> None:
    """The error is one line that names the cause."""
    lines = stderr.strip().splitlines()
    assert len(lines) == 1, stderr
    assert lines[0].startswith("quire: error: ")
    assert says in lines[0]
