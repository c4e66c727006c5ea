"""`python -m tests.simulation`: simulate consecutive seeds until a number of steps is done, or repeat one seed."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter

from tests.simulation.dump import SimulationFailed
from tests.simulation.simulation import run_seed


def main() -> int:
    """Run; exit code 1 if a rule was violated."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed, or with --steps 0 the only one")
    parser.add_argument("--steps", type=int, default=0, help="minimum number of scheduler steps")
    parser.add_argument("--log", action="store_true", help="also show the log lines of the product")
    args = parser.parse_args()
    if not args.log:
        logging.disable(logging.CRITICAL)
    counts: Counter[str] = Counter()
    seed, num_steps, trace, start = args.seed, 0, 0, time.perf_counter()
    while seed == args.seed or num_steps < args.steps:
        try:
            simulation = run_seed(seed)
        except SimulationFailed as error:
            print(error)
            print(f"repeat: python -m tests.simulation --seed {seed}")
            return 1
        counts += simulation.counts
        num_steps += simulation.num_steps
        trace = hash((trace, simulation.trace.value))
        seed += 1
    seconds = time.perf_counter() - start
    print(f"seeds {args.seed} to {seed - 1}: {num_steps} steps, {num_steps / seconds:.0f}/s, trace {trace:016x}")
    print(", ".join(f"{name} {number}" for name, number in sorted(counts.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
