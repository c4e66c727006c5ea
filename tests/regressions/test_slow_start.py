"""A server responds while it loads, accepts requests as soon as it reports ready, and compiles nothing before that.

Others: vllm#19824, vllm#20264 and vllm#20451 (half a minute and more for a warm start), vllm#34399 (37 minutes of
compiling), vllm#20342. The page and its progress: tests/server/test_serve.py, tests/e2e/test_page.py.
"""

from __future__ import annotations

import signal
from pathlib import Path

import httpx
import pytest

from tests.checkpoints import tiny
from tests.regressions.running_server import completion
from tests.server.processes import HANG_S, serving

COMPILERS = ("torch._inductor.compile_fx", "torch.utils.cpp_extension", "triton.compiler")


def test_a_loading_server_responds_serves_once_ready_and_compiles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")  # every module that is imported is written to stderr
    log = tmp_path / "stderr"
    program = ("tests.server.hanging", "load")
    with log.open("w") as file, serving(str(tiny("Llama")), program=program, stderr=file) as server:
        with httpx.Client(base_url=server.url, timeout=HANG_S) as client:
            early = client.post("/v1/completions", json=completion())
            assert (early.status_code, early.json()["error"]["code"]) == (503, "model_loading")
            assert int(early.headers["retry-after"]) > 0
            assert client.get("/readyz").json()["status"] == "loading"
            server.process.send_signal(signal.SIGUSR1)
            server.wait_until_ready()
            assert client.post("/v1/completions", json=completion()).status_code == 200
        server.process.terminate()
        assert server.end() == 0
    imported = {line.rpartition("|")[2].strip() for line in log.read_text().splitlines() if line.startswith("import")}
    assert "torch" in imported
    assert imported.isdisjoint(COMPILERS)
