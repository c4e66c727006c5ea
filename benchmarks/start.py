"""Seconds from process start to the first token of `guide`: `python -m benchmarks.start [--repeat N]`.

Exits 1 when the median is over the limit. The first run warms the caches and does not count.
"""

import argparse
import http.client
import json
import signal
import statistics
import subprocess
import sys
import time
from typing import NamedTuple

LIMIT_S = 5.0
POLL_S = 0.01
BODY = {"messages": [{"role": "user", "content": "What is Quire?"}], "stream": True, "temperature": 0}


class Start(NamedTuple):
    """Seconds since the process was started, at each stage."""

    listening: float
    ready: float
    first_token: float


def measure() -> Start:
    """Start a server, ask it one question and end it."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "app", "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        url = next(word for word in process.stdout.readline().split() if word.startswith("http://"))
        listening = time.perf_counter() - started
        connection = http.client.HTTPConnection(url.removeprefix("http://"))
        while status(connection) != 200:
            time.sleep(POLL_S)
        ready = time.perf_counter() - started
        wait_for_token(connection)
        first_token = time.perf_counter() - started
        connection.close()
        process.send_signal(signal.SIGTERM)
    return Start(listening, ready, first_token)


def status(connection: http.client.HTTPConnection) -> int:
    """Return the status of /readyz."""
    connection.request("GET", "/readyz")
    response = connection.getresponse()
    response.read()
    return response.status


def wait_for_token(connection: http.client.HTTPConnection) -> None:
    """Ask the question and return when the first text is there."""
    connection.request("POST", "/v1/chat/completions", json.dumps(BODY), {"content-type": "application/json"})
    response = connection.getresponse()
    assert response.status == 200, response.read()
    for line in response:
        if line.startswith(b"data: {") and json.loads(line[len(b"data: ") :])["choices"][0]["delta"].get("content"):
            return
    raise AssertionError("the answer was empty")


def main() -> int:
    """Measure, print one line per run, and judge the median."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    repeat = parser.parse_args().repeat
    measure()
    runs = []
    for _ in range(repeat):
        runs.append(measure())
        print("  ".join(f"{name} {seconds:.2f} s" for name, seconds in runs[-1]._asdict().items()), flush=True)
    median = statistics.median(run.first_token for run in runs)
    print(f"median to the first token {median:.2f} s, limit {LIMIT_S} s")
    return int(median > LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())
