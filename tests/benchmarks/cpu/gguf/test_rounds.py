"""The rounds: sides in turn, the quality of each cell, and cells that are left out."""

from contextlib import nullcontext
from pathlib import Path

import pytest

from benchmarks.cpu.cells import OURS
from benchmarks.cpu.gguf import rounds as module
from benchmarks.cpu.gguf.cells import LOADS, Cell
from benchmarks.cpu.gguf.figures import Figures
from benchmarks.cpu.gguf.rounds import Plan, Rounds
from benchmarks.cpu.gguf.sides import THEIRS
from benchmarks.side import SideFailed
from tests.benchmarks.cpu.gguf.samples import CONTENTS, MIXED

RATES = {load.name: 5.0 for load in LOADS}


class FakeSides:
    """Fakes of both sides, of the files and of the quality; `events` is what was done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder) -> None:
        self.events: list[tuple[object, ...]] = []
        self.folder = folder
        self.failing: str | None = None
        monkeypatch.setattr(module, "contents", lambda file: MIXED if "mixtral" in file.name else CONTENTS)
        monkeypatch.setattr(module, "LlamaCppFile", lambda file, name, log: self.side(THEIRS, file, name))
        monkeypatch.setattr(
            module.QuireFile, "open", lambda file, how, name, log, is_dummy: self.side(OURS, file, name, how, is_dummy)
        )
        monkeypatch.setattr(module, "measure_quality", self.quality)

    def file(self, shape, kind):
        return self.folder / f"{shape}.{kind}"

    def discard(self, shape, kind):
        self.events.append(("discard", f"{shape}.{kind}"))

    def side(self, name, file, *opening):
        """Open a fake side."""
        fakes = self

        class Side:
            settings = "as opened"
            loading_s = [1.5]  # noqa: RUF012
            passing_bytes = 1000

            def measure(self, turn):
                fakes.events.append(("measure", name, turn))
                if fakes.failing == name:
                    raise SideFailed("it broke")
                return RATES

            def read_rate(self, num_bytes):
                return 1e9

            def distinct_experts(self, load):
                return [2.0] * load.batch

            def close(self):
                fakes.events.append(("close", name))

        self.events.append(("open", name, file.name, *opening))
        Side.name = name
        return Side()

    def quality(self, reference, ours, theirs, log, num_windows, set_name):
        """Answer like the program."""
        self.events.append(("quality", reference.name, ours.get("quantization"), theirs.name, num_windows, set_name))
        return {"ours": 1e-4, "theirs": 1e-3}


@pytest.fixture
def fakes(monkeypatch, tmp_path) -> FakeSides:
    """The fakes."""
    return FakeSides(monkeypatch, tmp_path)


def run(fakes: FakeSides, *cells: Cell, rounds: int = 2) -> Figures:
    """Run a plan."""
    figures, done = Figures({}), []
    Rounds(Plan(cells, rounds), fakes, figures, lambda what: None, lambda: done.append(1)).run()
    assert len(done) == len(cells)
    return figures


def test_the_side_that_begins_changes_and_quire_ends_with_its_cell(fakes):
    figures = run(fakes, Cell("q06", "Q4_0", "avx2"))
    assert [event[1:] for event in fakes.events if event[0] == "measure"] == [
        (OURS, "0"), (THEIRS, "0"), (THEIRS, "1"), (OURS, "1"),
    ]  # fmt: skip
    assert fakes.events[-2:] == [("close", OURS), ("discard", "q06.Q4_0")]
    assert ("open", OURS, "q06.Q4_0", "avx2", None, False) in fakes.events
    (cell,) = figures.cells
    assert cell.is_complete and cell.read_rates == [1e9, 1e9] and cell.rates[THEIRS] == [RATES, RATES]
    assert set(figures.commands) == {"Quire, q06 Q4_0 avx2", "llama.cpp, q06 Q4_0 avx2"}


def test_the_quality_is_measured_with_the_instructions_of_the_cell(fakes):
    figures = run(fakes, Cell("smollm2", "Q8_0", "native"), Cell("smollm2", "Q8_0", "avx2"), rounds=2)
    assert [event for event in fakes.events if event[0] == "quality"] == [
        ("quality", "smollm2.Q8_0", None, "smollm2.Q8_0", 4, name) for name in ("native", "avx2")
    ]
    assert all(cell.quality == {"ours": 1e-4, "theirs": 1e-3} for cell in figures.cells)


def test_int8_is_compared_with_q8_0_by_the_weights_before_both(fakes):
    run(fakes, Cell("q06", "int8", "native"), rounds=1)
    assert ("quality", "q06.source", "int8", "q06.Q8_0", 1, "native") in fakes.events
    assert ("open", OURS, "q06.source", "native", "int8", False) in fakes.events
    assert ("open", THEIRS, "q06.Q8_0", "native") in fakes.events


def test_of_dummies_experts_are_counted_and_no_quality_is_measured(fakes):
    mixture, dense = run(fakes, Cell("mixtral", "Q8_0", "native"), Cell("olmo2", "BF16", "native"), rounds=1).cells
    assert not [event for event in fakes.events if event[0] == "quality"]
    assert ("open", OURS, "mixtral.Q8_0", "native", None, True) in fakes.events
    assert {name: len(counts) for name, counts in mixture.distinct.items()} == {"1 row": 1, "8 rows": 8, "32 rows": 32}
    assert dense.distinct == {} and dense.quality is None
    assert dense.loading_s == {OURS: [1.5], THEIRS: [1.5]} and dense.passing_bytes == 1000


def test_a_cell_that_fails_is_left_out_with_one_line(fakes):
    fakes.failing = THEIRS
    figures = run(fakes, Cell("q06", "Q4_0", "avx2"), Cell("q06", "Q6_K", "avx2"))
    assert figures.left_out == [f"q06 {kind} avx2 is left out: it broke" for kind in ("Q4_0", "Q6_K")]
    assert not any(cell.is_complete for cell in figures.cells)
    assert figures.verdicts() == []


def test_both_sides_of_the_quality_have_the_same_instructions(monkeypatch, tmp_path):
    asked = []

    class FakeProgram(nullcontext):
        def __init__(self, command, log, environ):
            super().__init__(self)
            asked.append(environ.get("ATEN_CPU_CAPABILITY"))

        def ask(self, **request):
            asked.extend((request["instruction_set"], Path(request["program"]).parent.name))
            return {}

    monkeypatch.setattr(module, "Program", FakeProgram)
    for name in ("native", "avx2"):
        module.measure_quality(tmp_path, {}, tmp_path, tmp_path / "log", 1, name)
    assert asked == [None, None, "llama.cpp", "avx2", "avx2", "llama.cpp-avx2"]
