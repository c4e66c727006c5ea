"""Seconds from process start to the page and to the first token of `guide`: `python -m benchmarks start [--repeat N]`.

Writes `results/start.json`, and exits 1 when the median time to the first token is over the limit. The first run warms
the caches and does not count. While the model loads, the server is asked for its state all the time: the slowest of
these answers says how long a page may have to wait then. What other programs do to the figures, the cores that were
busy before each run and the CPU time of the server's process show.
"""

import argparse
import http.client
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from app.commands.machine import busy_cores, cpu_name, num_cores

RESULTS = Path(__file__).parent / "results"
LIMIT_S = 3.0
POLL_S = 0.01
LOOK_S = 0.5
COMMAND = (sys.executable, "-m", "app", "serve", "--port", "0", "--timings")
BODY = {"messages": [{"role": "user", "content": "What is Quire?"}], "stream": True, "temperature": 0}


class Start(NamedTuple):
    """One start: when the stages were reached, in seconds since the process was started; and what it took."""

    page: float
    ready: float
    first_token: float
    slowest_answer: float  # while the model loaded
    cpu: float  # of the process until the first token, on all cores
    busy_cores: float  # used by other programs before
    timings: tuple[str, ...]  # what the server said about it


def measure() -> Start:
    """Start a server, ask it one question and end it."""
    busy = busy_cores(LOOK_S)
    began = time.perf_counter()
    with serving() as process:
        connection = http.client.HTTPConnection(address(process))
        assert get(connection, "/") == 200
        page = time.perf_counter() - began
        slowest_answer = wait_until_ready(connection)
        ready = time.perf_counter() - began
        wait_for_token(connection)
        first_token = time.perf_counter() - began
        cpu = cpu_time(process.pid)
        connection.close()
        process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        timings = tuple(process.stdout.read().splitlines())
    return Start(page, ready, first_token, slowest_answer, cpu, busy, timings)


@contextmanager
def serving() -> Iterator[subprocess.Popen[str]]:
    """Run `quire serve` for the length of a block, with compiled Python files like an installed one."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with subprocess.Popen(
        COMMAND, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def address(process: subprocess.Popen[str]) -> str:
    """Wait until the server listens, and return its host and port."""
    assert process.stdout is not None
    url = next(word for word in process.stdout.readline().split() if word.startswith("http://"))
    return url.removeprefix("http://")


def get(connection: http.client.HTTPConnection, path: str) -> int:
    """Return the status of a whole answer."""
    connection.request("GET", path)
    response = connection.getresponse()
    response.read()
    return response.status


def wait_until_ready(connection: http.client.HTTPConnection) -> float:
    """Ask again and again until the model is loaded; return the seconds that the slowest answer took."""
    slowest = 0.0
    while True:
        asked = time.perf_counter()
        status = get(connection, "/readyz")
        slowest = max(slowest, time.perf_counter() - asked)
        if status == 200:
            return slowest
        time.sleep(POLL_S)


def wait_for_token(connection: http.client.HTTPConnection) -> None:
    """Ask the question and return when the first text is there."""
    connection.request("POST", "/v1/chat/completions", json.dumps(BODY), {"content-type": "application/json"})
    response = connection.getresponse()
    assert response.status == 200, response.read()
    for line in response:
        if line.startswith(b"data: {") and json.loads(line[len(b"data: ") :])["choices"][0]["delta"].get("content"):
            return
    raise AssertionError("the answer was empty")


def cpu_time(pid: int) -> float:
    """Return the CPU seconds that a process has used; nan where the system does not tell."""
    try:
        # The name in field 2 may hold spaces, so count behind it: user and system time are fields 14 and 15.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return float("nan")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


STAGES = ("page", "ready", "first_token", "slowest_answer", "cpu", "busy_cores")


def describe(run: Start) -> str:
    """Return one run in words."""
    return (
        f"page {run.page:.2f} s  ready {run.ready:.2f} s  first token {run.first_token:.2f} s  slowest answer "
        f"{1e3 * run.slowest_answer:.0f} ms  CPU {run.cpu:.2f} s  others on {run.busy_cores:.1f} cores"
    )


def figures(runs: list[Start]) -> dict[str, object]:
    """Return what is written: medians, all runs, and where the time of the run in the middle went."""
    middle = sorted(runs, key=lambda run: run.first_token)[len(runs) // 2]
    machine = {"cpu": cpu_name(), "cores": num_cores(), "python": platform.python_version(), "torch": version("torch")}
    return {
        "benchmark": "start",
        "machine": machine,
        "limit_s": LIMIT_S,
        "medians": {stage: statistics.median(getattr(run, stage) for run in runs) for stage in STAGES},
        "runs": {stage: [getattr(run, stage) for run in runs] for stage in STAGES},
        "timings": middle.timings,
    }


def main() -> int:
    """Measure, print one line per run, write the figures, and judge the median."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    repeat = parser.parse_args().repeat
    measure()
    runs = []
    for _ in range(repeat):
        runs.append(measure())
        print(describe(runs[-1]), flush=True)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "start.json").write_text(json.dumps(figures(runs), indent=2, ensure_ascii=False) + "\n")
    median = statistics.median(run.first_token for run in runs)
    print(f"median to the first token {median:.2f} s, limit {LIMIT_S} s")
    return int(median > LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())
