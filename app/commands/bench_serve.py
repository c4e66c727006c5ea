"""`quire bench serve URL`: sends load to a running server with an OpenAI-compatible API, and measures its responses.

It only uses HTTP, so it measures Quire and other servers (vLLM, SGLang, llama.cpp, TGI) in the same way.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from app.commands.answers.server_connection import read_key
from app.commands.measuring.bench_serve_options import add_arrivals, add_requests, read_load
from app.commands.measuring.machine import cpu_name, describe_run
from app.commands.options import Parser
from app.contract.errors import ConfigurationError
from app.loadgen import plots
from app.loadgen.chart import chart
from app.loadgen.figures import rate_text
from app.loadgen.files import Result, to_csv, to_json
from app.loadgen.load import Load
from app.loadgen.load_client import Client
from app.loadgen.report import prompt_length, report, sweep_report
from app.loadgen.sweep import sweep
from app.loadgen.target import Target, find_target, first_model
from app.observe.terminal import Terminal, own_terminal
from app.runtime.process_limits import raise_file_limit

KEY_OPTION = "--api-key"


def add_options(parser: Parser) -> None:
    """Add the server, the load, and the folder of the results."""
    parser.add_argument("url", metavar="URL", help="Server to measure, for example http://127.0.0.1:8000.")
    parser.add_argument("--output", type=Path, metavar="DIR", help="Folder for serve.json, serve.csv and serve.svg.")
    add_arrivals(parser)
    add_requests(parser)


def run(args: argparse.Namespace) -> int:
    """Measure, print and write the results."""
    load, rates = read_load(args), args.rate or [math.inf]
    target = find_target(args.url, read_key(args.api_key))
    if args.output is not None:
        _make_folder(args.output)
    raise_file_limit()
    load = dataclasses.replace(load, model=load.model or first_model(target))
    results = Results(target, load, rates, args.output, own_terminal())
    try:
        asyncio.run(sweep(target, load, Client(target, load.timeout_s), rates, results.add))
    finally:
        results.close()
    return 0


class Results:
    """The results so far: printed and written after each run, so that an interrupt loses none."""

    def __init__(
        self, target: Target, load: Load, rates: Sequence[float], output: Path | None, terminal: Terminal
    ) -> None:
        self._load = load
        self._output = output
        self._terminal = terminal
        self._results: list[Result] = []
        self._about = {
            "benchmark": "serve",
            "command": " ".join(["quire", *without_key(sys.argv[1:])]),
            "url": target.url,
            "settings": dataclasses.asdict(load) | {"rates": [rate_text(rate) for rate in rates]},
            **describe_run(),
        }
        self._title = f"{load.model}, {load.endpoint}, {load.describe()}"
        print(f"{target.url}: {self._title}", flush=True)

    def add(self, result: Result) -> None:
        """Print the result of a run, and write the files with all results so far."""
        self._results.append(result)
        _print(report(result.figures, self._terminal))
        if self._output is not None:
            (self._output / "serve.json").write_text(to_json(self._about, self._results))
            (self._output / "serve.csv").write_text(to_csv(self._results))
            title = f"{self._load.model} under load, measured by its clients"
            counted = prompt_length(result.figures)
            about = f"{self._title}{f' ({counted})' if counted else ''}; {cpu_name()}"
            picture = chart([each.figures for each in self._results], title, about)
            plots.save(picture, self._output / "serve.svg")

    def close(self) -> None:
        """Print a table of the rates, and the paths of the files."""
        if len(self._results) > 1:
            _print(sweep_report([each.figures for each in self._results], self._terminal))
        if self._results and self._output is not None:
            _print(["", plots.written(*(self._output / f"serve.{kind}" for kind in ("json", "csv", "svg")))])


def without_key(arguments: Sequence[str]) -> list[str]:
    """Return a command line with the API key replaced by `***`."""
    before = ["", *arguments]
    shown = ["***" if last == KEY_OPTION else word for last, word in zip(before, arguments, strict=False)]
    return [f"{KEY_OPTION}=***" if word.startswith(f"{KEY_OPTION}=") else word for word in shown]


def _print(lines: Sequence[str]) -> None:
    for line in lines:
        print(line)
    sys.stdout.flush()


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "serve.csv").touch()
    except OSError as error:
        raise ConfigurationError(f"--output {folder} cannot be written to: {error.strerror}") from None
