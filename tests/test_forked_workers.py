"""Files are run in forked processes, each file in one of them, and reported as one process reports them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
KEPT = """
import os

import pytest

@pytest.fixture(scope="session")
def of_process():
    yield os.getpid()
    with open("torn", "a") as file:
        file.write(f"{os.getpid()}\\n")
"""
# Each test notes where it ran, and with which folder.
NOTING = """
import os
import sys
from pathlib import Path

import pytest

FOUND_BY = os.getpid()

@pytest.fixture(scope="module")
def of_file(request):
    yield request.node.name
    assert Path(request.node.name + ".ran").read_text().count("\\n") == 3

@pytest.mark.parametrize("number", range(3))
def test_it(number, of_process, of_file, tmp_path):
    assert FOUND_BY != of_process == os.getpid() and not hasattr(sys.modules["__main__"], "pytest")
    with Path(of_file + ".ran").open("a") as file:
        file.write(f"{number} {os.getpid()} {tmp_path}\\n")
"""
TALKING = """
import os
import signal

def test_says():
    print("said by", __name__)
    assert __name__ == "no"

def test_ends():
    if os.path.exists({name!r}):
        os.kill(os.getpid(), signal.SIGKILL)

def test_goes_on():
    pass
"""


@pytest.fixture(name="run")
def _run(tmp_path: Path):
    """Run pytest in three processes on files of tests by name; return its exit status and what it prints."""

    def run(*arguments: str, **files: str) -> tuple[int, str]:
        (tmp_path / "pytest.ini").write_text("[pytest]\n")
        for name, text in files.items():
            (tmp_path / f"test_{name}.py").write_text(text)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.forked_workers", "--workers", "3", *arguments]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        ended = subprocess.run(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return ended.returncode, ended.stdout.decode()

    return run


def test_a_file_stays_in_a_process_with_its_fixtures_and_folders(run, tmp_path: Path):
    (tmp_path / "conftest.py").write_text(KEPT)
    code, said = run(**dict.fromkeys("abcdefg", NOTING))
    assert code == pytest.ExitCode.OK and "21 passed" in said, said
    files = [[line.split() for line in file.read_text().splitlines()] for file in tmp_path.glob("*.ran")]
    assert [[number for number, *_ in file] for file in files] == 7 * [["0", "1", "2"]]
    assert all(len({process for _, process, _ in file}) == 1 for file in files)
    assert len({folder for file in files for *_, folder in file}) == 21
    processes = {process for file in files for _, process, _ in file}
    assert sorted((tmp_path / "torn").read_text().split()) == sorted(processes)


def test_a_process_that_ends_fails_its_test_and_those_behind_it_run_in_another(run, tmp_path: Path):
    texts = {name: TALKING.format(name="test_b.py" if name == "b" else "no such file") for name in "abc"}
    code, said = run(**texts)
    assert code == pytest.ExitCode.TESTS_FAILED and "4 failed, 5 passed" in said, said
    assert "test_b.py::test_ends: its process ended with -9" in said
    assert sorted(re.findall("^said by (.*)$", said, re.MULTILINE)) == ["test_a", "test_b", "test_c"]


def test_a_run_that_is_to_stop_begins_no_more_files(run):
    code, said = run("-x", **dict.fromkeys("abcdefg", "def test_it():\n    assert False\n"))
    assert code == pytest.ExitCode.TESTS_FAILED and re.search(r"stopping after \d failures", said), said
    assert 1 <= int(re.search(r"(\d+) failed", said)[1]) <= 6  # three that had begun, and perhaps three more


def test_a_process_that_fails_behind_its_last_test_is_an_error(run):
    ends = "import atexit, os\n\ndef test_it():\n    atexit.register(os._exit, 5)\n"
    code, said = run(a=ends)
    assert code == pytest.ExitCode.INTERNAL_ERROR and "ended with 5 behind its last test" in said, said
