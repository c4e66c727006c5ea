"""Every command and snippet of the README works as it is written, in a fresh clone.

The clone has the files of this checkout that git does not ignore; .venv and the page's libraries are shared with it.
The address is replaced, since port 8000 may be in use. A command that takes more than a minute, or needs a network, a
GPU, peers or Docker, is replaced by its entry in `SUBSTITUTES`, with a reason; a command in neither list fails.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.house.source import ROOT
from tests.server.processes import serving

README = (ROOT / "README.md").read_text(encoding="utf-8")
ADDRESS = "127.0.0.1:8000"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)

# Command -> a part of its output.
AS_WRITTEN = {
    ". .venv/bin/activate": "",
    "curl -N http://127.0.0.1:8000/v1/chat/completions -H 'content-type: application/json' "
    '-d \'{"messages": [{"role": "user", "content": "What is Quire?"}], "stream": true}\'': "data: [DONE]",
    "quire chat": "",
    'quire generate "What is Quire?"': "chat server",
    "quire models": "guide",
    "quire doctor": "python",
    "quire warm path/to/model": "CPU kernels",
    "python -m benchmarks": "isolation",
}


class Substitute(NamedTuple):
    """The command that runs instead, and why."""

    command: str
    reason: str


SUBSTITUTES = {
    "make serve": Substitute("make -n serve", "installs from the network, and does not end"),
    "make test": Substitute("make -n test", "takes up to half an hour"),
    "quire serve Qwen/Qwen3-0.6B": Substitute("quire serve --help", "loads 1.5 GB from the network, and does not end"),
    "QUIRE_API_KEY=choose-one quire serve --host 0.0.0.0": Substitute(
        "quire serve --help", "does not end, and listens to the network; tests of the server do it"
    ),
    "quire serve smollm2": Substitute("quire serve --help", "loads 93 MB from the network, and does not end"),
    "quire plan owner/name": Substitute("quire plan path/to/model", "needs the network"),
    "quire pull owner/name:Q4_K_M": Substitute("quire pull guide", "needs the network"),
    "quire models rm owner/name": Substitute("quire models rm --help", "deletes a model"),
    "quire serve model.gguf": Substitute("quire serve --help", "does not end; other tests serve GGUF files"),
    "quire serve path/to/model": Substitute("quire serve --help", "does not end; other tests serve models"),
    "quire top": Substitute("quire top --help", "does not end; its own tests read a server"),
    "quire bench throughput": Substitute("quire bench throughput --help", "takes minutes"),
    "quire bench serve http://127.0.0.1:8000": Substitute(
        "quire bench serve http://127.0.0.1:8000 --num-requests 2 --output-len 4", "a hundred requests take a minute"
    ),
    "pip wheel --no-deps --wheel-dir dist .": Substitute("pip wheel --help", "compiles for minutes"),
    "export PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu": Substitute(
        "grep -q download.pytorch.org/whl/cpu tools/setup.sh", "would act on the commands after it"
    ),
    "pipx install dist/quire_server-*.whl": Substitute("pip install --help", "needs pipx and the wheel"),
    "pip install -e '.[gpu]'": Substitute("pip install --help", "takes gigabytes from the network"),
    "docker build -t quire .": Substitute("test -f Dockerfile", "needs Docker"),
    "docker run -p 8000:8000 -e QUIRE_API_KEY=choose-one quire": Substitute(
        "grep 'EXPOSE 8000' Dockerfile", "needs Docker"
    ),
    "docker build -t quire:cuda --build-arg DEVICE=cuda .": Substitute("grep 'ARG DEVICE' Dockerfile", "needs Docker"),
    "docker run --gpus all -p 8000:8000 -e QUIRE_API_KEY=choose-one "
    "-v quire-kernels:/var/cache/quire quire:cuda": Substitute(
        "grep CACHE_DIR=/var/cache/quire Dockerfile", "needs Docker"
    ),
}  # fmt: skip


def blocks(*languages: str) -> list[str]:
    """The fenced blocks of the README in any of `languages`."""
    return [text for language, text in BLOCK.findall(README) if language in languages]


def commands() -> list[str]:
    """Every command of the README's shell blocks, without its comment."""
    lines = [line for block in blocks("sh") for line in block.replace("\\\n", " ").splitlines()]
    bare = [re.sub(r"\s+", " ", re.sub(r"(^|\s)# .*$", "", line)).strip() for line in lines]
    return [command for command in bare if command]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files after `git clone` and `make setup`, and a model at path/to/model."""
    folder = tmp_path_factory.mktemp("clone")
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0"):
        source = ROOT / name
        if name and source.is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, folder / name)
    (folder / ".venv").symlink_to(Path(sys.prefix))
    (folder / "app/static/vendor").symlink_to(ROOT / "app/static/vendor")
    (folder / "path/to").mkdir(parents=True)
    (folder / "path/to/model").symlink_to(folder / "app/models/guide")
    return folder


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of a server that was started as by `make serve`."""
    with serving() as server:
        server.wait_until_ready()
        yield server.url.removeprefix("http://")


def run(clone: Path, command: list[str] | str) -> str:
    """Run something in the clone with .venv activated; return its output; asserts that it succeeds."""
    # PYTHONPATH: .venv is the checkout's, whose editable install would be imported otherwise.
    path = f"{clone / '.venv/bin'}{os.pathsep}{os.environ['PATH']}"
    result = subprocess.run(
        command,
        shell=isinstance(command, str),
        cwd=clone,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(clone), "OPENAI_API_KEY": ""},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    # `quire doctor` exits with 1 if a check of this machine fails, such as that of port 8000.
    allowed = (0, 1) if command == "quire doctor" else (0,)
    assert result.returncode in allowed, f"{command}: {result.returncode}\n{result.stdout}{result.stderr}"
    return result.stdout + result.stderr


def test_the_lists_contain_every_command_and_no_other():
    assert sorted(set(commands())) == sorted({*AS_WRITTEN, *SUBSTITUTES})
    assert {language for language, _ in BLOCK.findall(README)} == {"sh", "python", "js"}


@pytest.mark.parametrize("command", AS_WRITTEN)
def test_a_command_works_as_it_is_written(clone, address, command):
    assert AS_WRITTEN[command] in run(clone, command.replace(ADDRESS, address))


@pytest.mark.parametrize("command", dict.fromkeys(substitute.command for substitute in SUBSTITUTES.values()))
def test_the_substitute_of_a_command_works(clone, address, command):
    run(clone, command.replace(ADDRESS, address))


@pytest.mark.parametrize("snippet", blocks("python"), ids=lambda snippet: snippet.splitlines()[0])
def test_a_python_snippet_works_as_it_is_written(clone, address, snippet):
    (clone / "snippet.py").write_text(snippet.replace(ADDRESS, address), encoding="utf-8")
    output = run(clone, [sys.executable, "snippet.py"])
    assert "chat server" in output


@pytest.mark.parametrize("snippet", blocks("js"), ids=lambda snippet: snippet.splitlines()[0])
def test_a_node_snippet_works_as_it_is_written_and_ends(clone, address, snippet):
    node = shutil.which("node")
    if node is None:
        pytest.skip("no Node on this machine")
    # Node 22 has WebSocket by default, Node 20 behind a flag.
    version = int(run(clone, [node, "--version"]).lstrip("v").split(".")[0])
    flags = [] if version >= 22 else ["--experimental-websocket"]
    (clone / "snippet.mjs").write_text(snippet.replace(ADDRESS, address), encoding="utf-8")
    assert "chat server" in run(clone, [node, *flags, "snippet.mjs"]).replace("\n", "")
