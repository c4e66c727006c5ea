"""`make setup` compiles the kernels, so that the first start need not; without a compiler it says so and goes on."""

import io
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from app.observe.console import Console
from tests.house.source import ROOT
from tools import kernels


def test_it_names_the_kernels_that_there_are(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(kernels, "supported_sets", lambda: ["avx2"])
    monkeypatch.setattr(kernels, "load_library", lambda: SimpleNamespace(instruction_set="avx2"))
    assert kernels.main(Console(stream)) == 0
    assert stream.getvalue() == "CPU kernels: avx2\n"


def test_a_machine_that_can_have_none_is_no_failure(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(kernels, "supported_sets", list)
    assert kernels.main(Console(stream)) == 0
    assert stream.getvalue().startswith("CPU kernels: none, the slower torch path")


def test_without_a_compiler_it_is_one_line_that_says_what_it_means_and_no_failure(tmp_path):
    """In a process of its own, with no kernels yet and an empty path: everything as on a bare machine."""
    environment = {"XDG_CACHE_HOME": str(tmp_path), "PATH": str(tmp_path), "HOME": str(tmp_path)}
    code = (
        "from app.kernels.cpu import library; library.existing_file = lambda name: None\n"  # also none in the package
        "from tools import kernels; import sys; sys.exit(kernels.main(kernels.Console(sys.stdout)))"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    if kernels.supported_sets():
        (line,) = (result.stdout + result.stderr).splitlines()
        assert "the slower torch path is used" in line and "install g++" in line


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_when_it_is_told_to_end_it_gives_up_without_a_traceback(monkeypatch, number, code):
    monkeypatch.setattr(kernels, "supported_sets", lambda: ["avx2"])
    monkeypatch.setattr(kernels, "prepare_library", lambda report: signal.raise_signal(number))
    monkeypatch.setattr(kernels, "load_library", lambda: pytest.fail("it went on"))
    with pytest.raises(SystemExit) as ended:
        sys.exit(kernels.main(Console(io.StringIO())))
    assert ended.value.code == code


def test_make_compiles_them_before_it_serves_and_says_how_to_run_the_command():
    said = subprocess.run(["make", "-n", "-B", "serve"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert said.index("tools.kernels") < said.index("quire serve")
    assert "The command is .venv/bin/quire" in said
