"""The files that cost most are printed, with the time of their fixtures and of the processes that they started.

Below them stands what the machine has done meanwhile: it has the processes in it that nobody waits for.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slowest_files import KEPT, NUM_FILES

ROOT = Path(__file__).resolve().parents[1]
FIXTURE = """
import subprocess
import sys

import pytest

def work():
    subprocess.run([sys.executable, "-c", "import time\\nwhile time.process_time() < 0.5: pass"])

@pytest.fixture
def busy():
    work()

@pytest.fixture(scope="session")
def kept():
    yield
    work()
"""


@pytest.mark.parametrize("arguments", [(), ("-p", "tests.forked_workers", "--workers", "2")], ids=["one", "two"])
def test_the_ten_files_that_cost_most_are_printed_and_the_sum_of_all(tmp_path, arguments):
    (tmp_path / "test_busy.py").write_text(f"{FIXTURE}\ndef test_it(busy, kept):\n    pass\n")
    for number in range(NUM_FILES + 1):
        (tmp_path / f"test_{number}.py").write_text("def test_it():\n    pass\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.slowest_files", *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    text = subprocess.run(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True).stdout
    found = re.findall(r"^ *([0-9.]+) s of processor time, +([0-9.]+) s of wall time  (.+)$", text, re.MULTILINE)
    assert f" slowest of {NUM_FILES + 2} files " in text
    assert len(found) == NUM_FILES + 2
    (busy_s, busy_wall_s, first), *_, (kept_s, _, kept), (all_s, _, last) = found
    assert (first, kept, last) == ("test_busy.py", KEPT, "all files")
    assert float(busy_s) >= 0.5 and float(kept_s) >= 0.5 and float(busy_s) + float(kept_s) <= float(all_s) + 0.1
    assert float(busy_wall_s) >= 0.5
    machine_s = re.search(r"^ *([0-9.]+) s of processor time of the whole machine$", text, re.MULTILINE)
    assert machine_s and float(machine_s[1]) >= 0.9 * (float(busy_s) + float(kept_s))  # it is counted in ticks
