"""`quire bench throughput`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from statistics import median_low
from typing import Any

from app.checkpoint.names import served_name
from app.commands.measuring.machine import machine
from app.commands.measuring.workload import SHAPES, random_workload, write_shape
from app.commands.options import Parser, add_settings, engine_settings, read_config
from app.config.nearest import nearest
from app.config.settings import Config
from app.contract.errors import ConfigurationError
from app.runtime.torch_needs import load_torch

BENCHMARKS = ("throughput", "serve")


def add_options(parser: Parser) -> None:
    """Add the benchmark's name and its options."""
    parser.usage = "quire bench throughput [OPTIONS]\n       quire bench serve URL [OPTIONS]"
    parser.add_argument(
        "benchmark",
        metavar="BENCHMARK",
        help="throughput: offline tokens per second, compared with a peer, with the options below. serve: latency and "
        "throughput of a running server (see quire bench serve --help).",
    )
    parser.add_argument(
        "--shape",
        default="s135",
        metavar="NAME",
        help=f"Model shape, run with random weights: {', '.join(SHAPES)}. Default s135.",
    )
    parser.add_argument("--num-requests", type=int, default=32, metavar="N", help="Number of requests. Default 32.")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="Number of runs of each side. Default 1.")
    parser.add_argument(
        "--peer",
        choices=("transformers", "none"),
        default="transformers",
        help="Implementation to compare with. Default transformers.",
    )
    parser.add_argument(
        "--peer-requests",
        type=int,
        metavar="N",
        help="Run only the first N requests on the peer, which is slow. Default all.",
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="Write the results to FILE as JSON.")
    add_settings(parser, "model", "sampling", "cache", "scheduler")


def run(args: argparse.Namespace) -> int:
    """Measure and print the table."""
    if (name := args.benchmark) in BENCHMARKS[1:]:  # commands of their own
        raise ConfigurationError(
            f"the options of `quire bench {name}` come after the name (see quire bench {name} --help)"
        )
    if args.benchmark not in BENCHMARKS:
        raise ConfigurationError(
            f"unknown benchmark {name!r}{nearest(name, BENCHMARKS)}; it must be one of {', '.join(BENCHMARKS)}"
        )
    for name in ("num_requests", "repeat", "peer_requests"):
        if (value := getattr(args, name)) is not None and value < 1:
            raise ConfigurationError(f"--{name.replace('_', '-')} is {value}; it must be at least 1")
    config = read_config(args)
    if args.output is not None:
        _check_file(args.output)
    if "model" in vars(args):
        return _throughput(args, config)
    if args.shape not in SHAPES:
        raise ConfigurationError(
            f"--shape is {args.shape!r}{nearest(args.shape, SHAPES)}; it must be one of {', '.join(SHAPES)}"
        )
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as folder:
        model = str(write_shape(args.shape, Path(folder)))
        shaped = dataclasses.replace(config.model, model=model, load_format="dummy", served_model_name=args.shape)
        return _throughput(args, dataclasses.replace(config, model=shaped))


def _throughput(args: argparse.Namespace, config: Config) -> int:
    if args.peer == "transformers" and find_spec("transformers") is None:
        raise ConfigurationError(
            "transformers, the peer, is not installed: run `.venv/bin/pip install transformers`, or measure Quire "
            "alone with --peer none"
        )
    load_torch()
    from app.checkpoint.inspection import inspect
    from app.checkpoint.model_files import SAFETENSORS
    from app.commands.measuring.throughput import measure, quire_side, transformers_side
    from app.llm import LLM

    files = inspect(config.model)
    spec = files.spec
    load = random_workload(args.num_requests, spec.vocab_size)
    sides = {}
    if args.peer == "transformers":
        if files.format != SAFETENSORS:
            raise ConfigurationError(f"--peer transformers cannot load {config.model.model}; set --peer none")
        has_weights = config.model.load_format != "dummy"
        part = load.first(args.peer_requests or args.num_requests)
        sides["transformers"] = transformers_side(files.path, part, has_weights=has_weights, dtype=spec.dtype)
    llm = LLM(**engine_settings(config))
    rates = measure({"quire": quire_side(llm, load), **sides}, args.repeat)
    llm.close()
    ours = median_low(rates["quire"])
    figures = {
        "benchmark": "throughput",
        "model": served_name(config.model),
        "dtype": spec.dtype,
        "num_requests": len(load.prompts),
        "num_prompt_tokens": load.num_prompt_tokens,
        "num_new_tokens": sum(load.num_new_tokens),
        "machine": machine(),
        "output_tokens_per_second": rates,
        "ratio": {peer: ours / median_low(rates[peer]) for peer in sides},
    }
    _print_table(figures)
    if args.output:
        args.output.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


def _check_file(file: Path) -> None:
    """Check before the measurement that its results can be written."""
    was_there = file.exists()
    try:
        with file.open("a"):
            pass
        if not was_there:
            file.unlink()
    except OSError as error:
        raise ConfigurationError(f"--output {file} cannot be written to: {error.strerror}") from None


def _print_table(figures: dict[str, Any]) -> None:
    sys.stderr.flush()
    machine = figures["machine"]
    print(
        f"\n{figures['model']}, {figures['dtype']}: {figures['num_requests']} requests, "
        f"{figures['num_prompt_tokens']:,} tokens in, {figures['num_new_tokens']:,} tokens out, greedy"
    )
    print(f"{machine['cpu']}, {machine['cores']} cores, torch {machine['torch']}, Python {machine['python']}\n")
    print(f"{'':14}{'output tok/s':>14}{'min':>10}{'max':>10}{'repeats':>9}")
    for side, rates in figures["output_tokens_per_second"].items():
        print(f"{side:14}{median_low(rates):>14,.1f}{min(rates):>10,.1f}{max(rates):>10,.1f}{len(rates):>9}")
    for peer, ratio in figures["ratio"].items():
        print(f"\nquire is {ratio:.2f} times as fast as {peer} with one request at a time")
