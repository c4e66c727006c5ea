"""`make setup` compiles the kernels before the first start; without a compiler it prints a line and continues."""

import io
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from app.observe.console import Console
from tests.house.source import ROOT
from tools import kernels


def test_the_available_kernels_are_printed(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(kernels, "supported_sets", lambda: ["avx2"])
    monkeypatch.setattr(kernels, "load_library", lambda: SimpleNamespace(instruction_set="avx2"))
    assert kernels.main(Console(stream)) == 0
    assert stream.getvalue() == "CPU kernels: avx2\n"


def test_a_machine_without_kernels_is_no_failure(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(kernels, "supported_sets", list)
    assert kernels.main(Console(stream)) == 0
    assert stream.getvalue().startswith("CPU kernels: none, the slower torch path")


def test_a_missing_compiler_gives_one_line_and_no_failure(tmp_path):
    """In a new process without compiled kernels and with an empty path, as on a bare machine."""
    environment = {"XDG_CACHE_HOME": str(tmp_path), "PATH": str(tmp_path), "HOME": str(tmp_path)}
    code = (
        "from app.kernels.cpu import library; library.existing_file = lambda name: None\n"  # none in the package
        "from tools import kernels; import sys; sys.exit(kernels.main(kernels.Console(sys.stdout)))"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    if kernels.supported_sets():
        (line,) = (result.stdout + result.stderr).splitlines()
        assert "the slower torch path is used" in line and "install g++" in line


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_without_a_traceback(monkeypatch, number, code):
    monkeypatch.setattr(kernels, "supported_sets", lambda: ["avx2"])
    monkeypatch.setattr(kernels, "prepare_library", lambda report: signal.raise_signal(number))
    monkeypatch.setattr(kernels, "load_library", lambda: pytest.fail("it continued"))
    with pytest.raises(SystemExit) as exit_info:
        sys.exit(kernels.main(Console(io.StringIO())))
    assert exit_info.value.code == code


def test_make_serve_compiles_the_kernels_first_and_names_the_command():
    output = subprocess.run(["make", "-n", "-B", "serve"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert output.index("tools.kernels") < output.index("quire serve")
    assert "The command is .venv/bin/quire" in output
