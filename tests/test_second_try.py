"""A run whose failures pass alone succeeds and names them; a test that fails twice and a broken tree stay red."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.second_try import MOST

ROOT = Path(__file__).resolve().parents[1]
TWO_PROCESSES = ("-p", "tests.forked_workers", "--workers", "2")
# A test whose first try ends in another way than its second.
TRIED = """
import os
from pathlib import Path

def test_it(request):
    tried = Path(__file__).with_suffix(".tried")
    is_second = tried.exists()
    tried.touch()
    {}
"""
GOOD = "def test_it():\n    pass\n"
BAD = "def test_it():\n    raise ValueError('always')\n"
MANY = (
    f"import pytest\n\n@pytest.mark.parametrize('number', range({MOST + 1}))\ndef test_it(number):\n    assert False\n"
)


@pytest.fixture(name="run")
def _run(tmp_path):
    """Run pytest with the plugin on files of tests by name; return its exit status and its lines."""

    def run(*arguments: str, **files: str) -> tuple[int, list[str]]:
        (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -m 'not long'\nmarkers = long\n")
        for name, text in files.items():
            (tmp_path / f"test_{name}.py").write_text(text)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.second_try", *arguments]
        # Without the plugins that are installed here pytest starts ten times as fast.
        environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        ended = subprocess.run(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
        return ended.returncode, ended.stdout.splitlines()

    return run


@pytest.mark.parametrize("arguments", [(), TWO_PROCESSES], ids=["one", "two"])
def test_what_passes_alone_counts_as_passed_and_is_named_last(run, arguments):
    code, lines = run(*arguments, a=TRIED.format("assert is_second"), b=TRIED.format("assert is_second"), good=GOOD)
    assert code == pytest.ExitCode.OK
    assert lines[-4].startswith("2 failed, 1 passed in ")
    assert sorted(lines[-3:-1]) == [f"passed at the second try: test_{name}.py::test_it" for name in ("a", "b")]
    assert lines[-1] == "All tests passed, 2 of them at the second try."


def test_an_error_after_a_test_and_the_end_of_its_process_are_tried_again(run):
    error = TRIED.format("request.addfinalizer(lambda: 1 / is_second)")
    code, lines = run(*TWO_PROCESSES, error=error, crash=TRIED.format("is_second or os._exit(1)"))
    assert code == pytest.ExitCode.OK
    assert {f"passed at the second try: test_{name}.py::test_it" for name in ("error", "crash")} <= set(lines)


def test_a_test_that_is_not_run_by_default_is_tried_again_by_its_name(run):
    long = "import pytest\n\npytestmark = pytest.mark.long\n" + TRIED.format("assert is_second")
    code, lines = run("-m", "long", long=long, good=GOOD)
    assert code == pytest.ExitCode.OK
    assert "passed at the second try: test_long.py::test_it" in lines


def test_what_fails_twice_is_red_and_says_why_beside_others_that_pass(run):
    code, lines = run(*TWO_PROCESSES, bad=BAD, once=TRIED.format("assert is_second"))
    assert code == pytest.ExitCode.TESTS_FAILED
    assert lines[-2:] == ["passed at the second try: test_once.py::test_it", "failed twice: test_bad.py::test_it"]
    assert lines.count("E       ValueError: always") == 2


def test_a_green_run_says_nothing_more(run):
    code, lines = run(good=GOOD)
    assert code == pytest.ExitCode.OK
    assert lines[-1].startswith("1 passed in ")


@pytest.mark.parametrize(
    ("arguments", "files"),
    [
        (TWO_PROCESSES, {"many": MANY}),
        ((), {"broken": "import no_such_module\n", "once": TRIED.format("assert is_second")}),
        (TWO_PROCESSES, {"broken": "import no_such_module\n", "once": TRIED.format("assert is_second")}),
        ((), {}),
    ],
    ids=["many failures", "a file that cannot be collected", "such a file, in two", "no tests"],
)
def test_a_broken_tree_is_red_at_once(run, arguments, files):
    code, lines = run(*arguments, **files)
    assert code != pytest.ExitCode.OK
    assert lines
    assert not [line for line in lines if "second try" in line]
