"""A test is reported once, with the time of its fixtures; what fails or is skipped is reported as pytest does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TESTS = """
import time

import pytest

@pytest.fixture
def slow():
    time.sleep(0.2)
    yield
    time.sleep(0.2)

@pytest.fixture
def broken_before():
    raise ValueError("before")

@pytest.fixture
def broken_after():
    yield
    raise ValueError("after")

def test_passes(slow):
    pass

def test_fails():
    raise ValueError("here")

def test_has_an_error_before(broken_before):
    pass

def test_has_an_error_after(broken_after):
    pass

def test_has_both(broken_after):
    raise ValueError("here")

@pytest.mark.skip
def test_is_skipped():
    pass

@pytest.mark.xfail
def test_is_expected_to_fail():
    raise ValueError
"""
# Writes down what arrives at the process that prints.
ARRIVING = """
import os

PRINTS = os.getpid()

def pytest_runtest_logreport(report):
    if os.getpid() == PRINTS:
        name, has_all_time = report.nodeid.partition("::")[2], report.duration > 0.4
        with open("arrived", "a") as file:
            file.write(f"{name} {report.when} {report.outcome} {has_all_time}\\n")
"""
OUTCOMES = [
    "test_fails call failed False",
    "test_has_an_error_after call passed False",
    "test_has_an_error_after teardown failed False",
    "test_has_an_error_before setup failed False",
    "test_has_both call failed False",
    "test_has_both teardown failed False",
    "test_is_expected_to_fail call skipped False",
    "test_is_skipped setup skipped False",
    "test_passes call passed True",
]


@pytest.mark.parametrize("arguments", [(), ("-p", "tests.forked_workers", "--workers", "2")], ids=["one", "two"])
def test_each_test_is_reported_once_and_what_did_not_pass_beside_it(tmp_path, arguments):
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(ARRIVING)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.one_report", "-p", "tests.slowest_files", *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    assert ended.returncode == pytest.ExitCode.TESTS_FAILED
    assert "2 failed, 2 passed, 1 skipped, 1 xfailed, 3 errors" in ended.stdout
    assert sorted((tmp_path / "arrived").read_text().splitlines()) == OUTCOMES
