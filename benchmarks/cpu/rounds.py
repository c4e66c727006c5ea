"""The rounds of the benchmark `cpu`: all sides in turn, repeatedly, so that disturbances affect all sides.

In each round of a cell the machine is measured first, then each side once; the side that begins changes from round to
round. A peer that fails is left out from then on, with one line; if Quire fails, so does the run, when all is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from app.commands.measuring.workload import random_workload
from benchmarks.cpu.cells import (
    FORMATS,
    MIXED_FORMAT,
    MIXED_SHAPE,
    NUM_MIXED,
    NUM_ONE_BY_ONE,
    OURS,
    Cell,
    Probe,
    Rates,
    draw_prompts,
    vocab_size,
    weight_bytes,
)
from benchmarks.cpu.figures import CellFigures, Figures
from benchmarks.side import SideFailed


class Measured(Protocol):
    """A side whose rates are measured."""

    @property
    def name(self) -> str:
        """Its name in the figures."""

    @property
    def settings(self) -> str:
        """How it was started."""

    def measure(self, cell: Cell, turn: str) -> Rates:
        """Measure a cell once, with prompts that only this `turn` has."""

    def close(self) -> None:
        """End it. Idempotent."""


class Generating(Measured, Protocol):
    """A side that answers any prompts, in one of the ways it knows."""

    def generate(self, prompts: Sequence[Sequence[int]], num_new_tokens: Sequence[int], how: str = "") -> float:
        """Return the seconds that all answers take."""


class Quire(Generating, Protocol):
    """Quire's side, which measures the machine as well."""

    def probe(self, num_bytes: int) -> Probe:
        """Measure the machine, reading so many bytes."""


class Openers(Protocol):
    """Opens sides on a checkpoint; each raises SideFailed where it cannot."""

    def quire(self, model: Path, format_name: str) -> Quire:
        """Open Quire."""

    def vllm(self, model: Path) -> Generating:
        """Open vLLM."""

    def llama_cpp(self, model: Path, format_name: str) -> Measured:
        """Open llama.cpp."""

    def transformers(self, model: Path) -> Generating:
        """Open transformers."""


class Watcher(Protocol):
    """Shows the progress of the rounds."""

    def begin(self, what: str) -> None:
        """`what` begins."""

    def turn_done(self) -> None:
        """One side was measured once."""

    def say(self, line: str) -> None:
        """Show a line."""

    def part_done(self) -> None:
        """A cell, or the mixed load, is complete."""


class Way(NamedTuple):
    """How a side runs the mixed load, and how many of its requests."""

    name: str
    side: Generating
    how: str = ""
    num_requests: int = NUM_MIXED


@dataclass(frozen=True, slots=True)
class Plan:
    """The cells, the rounds, and the peers."""

    cells: Sequence[Cell]
    rounds: int
    mixed_rounds: int
    peers: frozenset[str]

    def rounds_of(self, cell: Cell) -> int:
        """Return how often a cell is measured: less often if no ratio is required."""
        return self.rounds if cell.required("decode") else max(1, self.rounds // 2)

    @property
    def has_mixed(self) -> bool:
        """Whether the mixed load is measured: with the model it needs."""
        return self.mixed_rounds > 0 and any(map(is_mixed, self.cells))

    @property
    def num_turns(self) -> int:
        """The number of measurements, if no side fails."""
        turns = 0
        for cell in self.cells:
            peers = {"llama.cpp"} if FORMATS[cell.format].quantization else {"llama.cpp", "vLLM"}
            turns += self.rounds_of(cell) * (1 + len(peers & self.peers))
        ways = 1 + ("vLLM" in self.peers) + NUM_WAYS * ("transformers" in self.peers)
        return turns + self.mixed_rounds * ways * self.has_mixed


NUM_WAYS = 3  # of transformers
Found = TypeVar("Found")
Opened = TypeVar("Opened", bound=Measured)


class Rounds:
    """Runs a plan and fills its figures; `checkpoint` returns the folder of a shape's weights."""

    def __init__(
        self, plan: Plan, openers: Openers, checkpoint: Callable[[str], Path], figures: Figures, watcher: Watcher
    ) -> None:
        self._plan, self._openers, self._checkpoint = plan, openers, checkpoint
        self._figures, self._watcher = figures, watcher

    def run(self) -> None:
        """Measure model by model; all sides have the model open at the same time."""
        for (shape, format_name), cells in groupby(self._plan.cells, key=lambda cell: (cell.shape, cell.format)):
            self._watcher.begin(f"{shape}: writing its weights")
            model, what = self._checkpoint(shape), f"{shape} {format_name}"
            with ExitStack() as stack:
                try:
                    self._model(stack, model, what, list(cells))
                except SideFailed as error:
                    self._leave_out(OURS, what, error)
                    self._figures.has_failed = True

    def _model(self, stack: ExitStack, model: Path, what: str, cells: Sequence[Cell]) -> None:
        openers, format_name = self._openers, cells[0].format
        quire = self._open(stack, OURS, what, partial(openers.quire, model, format_name))
        assert quire is not None
        llama_cpp = self._open(stack, "llama.cpp", what, partial(openers.llama_cpp, model, format_name))
        vllm = None
        if FORMATS[format_name].quantization is None:
            vllm = self._open(stack, "vLLM", what, partial(openers.vllm, model))
        peers: list[Measured] = [peer for peer in (llama_cpp, vllm) if peer is not None]
        for cell in cells:
            self._cell(cell, quire, peers)
            self._watcher.part_done()
        if self._plan.mixed_rounds and is_mixed(cells[0]):
            transformers = self._open(stack, "transformers", what, partial(openers.transformers, model))
            self._mixed([Way(OURS, quire), *_ways(vllm if vllm in peers else None, transformers)])
            self._watcher.part_done()

    def _cell(self, cell: Cell, quire: Quire, peers: list[Measured]) -> None:
        """Measure a cell; a peer that fails is taken out of `peers`."""
        figures = CellFigures(cell)
        self._figures.cells.append(figures)
        num_bytes = round(weight_bytes(cell.shape, cell.format))
        for turn in range(self._plan.rounds_of(cell)):
            what = f"{cell}, round {turn + 1}"
            self._watcher.begin(f"{what}: the machine")
            figures.probes.append(quire.probe(num_bytes))
            for side in _beginning_with(turn, [quire, *peers]):
                rates = self._attempt(side.name, what, partial(side.measure, cell, str(turn)))
                if rates is None:
                    peers.remove(side)
                else:
                    figures.rates.setdefault(side.name, []).append(rates)
                self._watcher.turn_done()

    def _mixed(self, ways: list[Way]) -> None:
        """Measure the mixed load, whose lengths are the same in every round."""
        size = vocab_size(MIXED_SHAPE)
        load = random_workload(NUM_MIXED, size)
        for turn in range(self._plan.mixed_rounds):
            prompts = draw_prompts([len(prompt) for prompt in load.prompts], size, f"mixed load {turn}")
            for way in _beginning_with(turn, ways):
                prompts_of_way, new = prompts[: way.num_requests], load.num_new_tokens[: way.num_requests]
                what = f"mixed load, round {turn + 1}"
                seconds = self._attempt(way.name, what, partial(way.side.generate, prompts_of_way, new, way.how))
                if seconds is None:
                    ways.remove(way)
                else:
                    self._figures.mixed.rates.setdefault(way.name, []).append(sum(new) / seconds)
                self._watcher.turn_done()

    def _open(self, stack: ExitStack, name: str, what: str, opener: Callable[[], Opened]) -> Opened | None:
        """Open a side until `stack` is left; None if it is not chosen, or fails."""
        if name != OURS and name not in self._plan.peers:
            return None
        side = self._attempt(name, f"loading {what}", opener)
        if side is not None:
            stack.callback(side.close)
            self._figures.commands[f"{name}, {what}"] = side.settings
        return side

    def _attempt(self, name: str, what: str, work: Callable[[], Found]) -> Found | None:
        """Do something of a side; a peer that fails is left out, and None returned. Quire's failures go on upwards."""
        self._watcher.begin(f"{what}: {name}")
        try:
            return work()
        except SideFailed as error:
            if name == OURS:
                raise
            self._leave_out(name, what, error)
            return None

    def _leave_out(self, name: str, what: str, error: SideFailed) -> None:
        line = f"{name} is left out ({what}): {error}"
        self._figures.left_out.append(line)
        self._watcher.say(line)


def is_mixed(cell: Cell) -> bool:
    """Whether the mixed load is measured on the model of `cell`."""
    return (cell.shape, cell.format) == (MIXED_SHAPE, MIXED_FORMAT)


def _ways(vllm: Generating | None, transformers: Generating | None) -> Iterator[Way]:
    """Yield how peers answer the mixed load."""
    if vllm is not None:
        yield Way("vLLM", vllm)
    if transformers is not None:
        yield Way("transformers, continuous", transformers, "continuous")
        yield Way("transformers, static batch", transformers, "static")
        yield Way("transformers, one by one", transformers, "one by one", NUM_ONE_BY_ONE)


def _beginning_with(turn: int, sides: Sequence[Found]) -> list[Found]:
    """Return the sides in their order, another one first in each turn."""
    first = turn % len(sides)
    return [*sides[first:], *sides[:first]]
