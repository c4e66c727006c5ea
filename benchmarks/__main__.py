"""The benchmarks of a checkout: `python -m benchmarks NAME [OPTIONS]`; without a name it lists them."""

from __future__ import annotations

import sys
from argparse import RawDescriptionHelpFormatter
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from app.cli import report_failures
from app.commands.options import Parser
from app.config.nearest import nearest
from app.contract.errors import ConfigurationError

BENCHMARKS = {
    "cpu": "this machine, Quire, and the peers that `make peers` set up, on the same weights, turn by turn",
    "gpu": "a GPU: its limits, Quire beside them, and transformers; at most 19 minutes, `make gpu` in parts",
    "gpu_host": "what the host spends beside a GPU, without one: a scripted device, 256 streams, threads told apart",
    "streams": "what a stream costs the server, apart from the model: CPU, latency, memory, slow clients",
    "scheduler": "what the engine spends outside the model: a step of 256 sequences, an event, a token",
    "live": "what the live view costs the engine thread, and watchers the event loop of a server",
    "itl": "times between tokens while long prompts arrive",
    "prompts": "how soon prompts get their first token beside decodes, and beside one of 250,000 tokens",
    "isolation": "cost of one client for the others, for several attacks",
    "hostile": "cost of grammars that a search has made costly, for the others",
    "fairness": "how long a short request waits beside another client's 1,000 starts or 300 sleeping streams",
    "busy_loop": "what a busy event loop costs a step, and a step the loop",
    "busy_process": "cost of another program that uses a core",
    "serve_share": "how much of the offline throughput is left over the network",
    "start": "seconds from process start to the page and to the first token",
    "sampling": "what a step costs with everything that a request can ask of sampling",
    "grammar": "what schemas and grammars cost a decode, and hostile ones before they are rejected",
    "forced_tokens": "steps and time that tokens without a choice save under schemas",
    "schemas": "whether a real model's answers under a hundred schemas end and validate, and its calls of tools",
    "defaults": "whether a small real model answers forty plain questions best at its sampling defaults",
    "memory": "how much KV memory is wasted, and how many blocks sharing saves, beside the PagedAttention paper",
    "prefix": "time to the first token of a second turn, with the prefix cache and without",
    "kv_disk": "time to the first token of a next turn after a restart, with the prefix cache on disk and without",
    "answer_memory": "memory for the largest answer, and for readers that never read",
    "kept_memory": "memory of 2,000 answers that are kept for readers that come back",
    "journal": "what recording answers costs: its thread, a token, a commit, the first token, the restart",
    "chaos": "kill -9 at fifty points: whether every answer goes on with the same bytes",
    "growth": "whether a server grows with the requests that it has answered",
    "overload": "five times as many requests as a server can answer",
    "open_files": "more clients than a server may open files",
    "soak": "half an hour of all kinds of clients, with kills and without: does every answer arrive, does nothing grow",
    "resets": "how soon requests of disconnected clients end, and leaks after 10,000 of them",
    "perplexity": "how much worse quantized weights predict",
    "sse": "CPU time per event of three ways to stream",
    "kernels.linear": "how near the CPU's matrix products are to the machine's limits",
    "kernels.attention": "the same for attention",
}
"""Each is a module of this folder, or a folder with a module `command`: `run(args) -> int`, perhaps `add_options`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one benchmark and return its exit code: 0, 1 where a limit was missed, else as `quire` does."""
    return report_failures("benchmarks", lambda: _run(list(sys.argv[1:] if argv is None else argv)))


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        width = max(map(len, BENCHMARKS)) + 2
        print("usage: python -m benchmarks NAME [OPTIONS]\n")
        print("\n".join(f"  {name:<{width}}{asks}" for name, asks in BENCHMARKS.items()))
        return 0
    name = arguments[0]
    if name not in BENCHMARKS:
        raise ConfigurationError(f"unknown benchmark {name!r}{nearest(name, BENCHMARKS)} (see python -m benchmarks)")
    is_folder = (Path(__file__).parent / name).is_dir()
    module = import_module(f"benchmarks.{name}.command" if is_folder else f"benchmarks.{name}")
    parser = Parser(prog=f"python -m benchmarks {name}", description=module.__doc__ or "")
    parser.formatter_class = RawDescriptionHelpFormatter
    if hasattr(module, "add_options"):
        module.add_options(parser)
    return int(module.run(parser.parse(arguments[1:])))


if __name__ == "__main__":
    sys.exit(main())
