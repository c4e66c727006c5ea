"""The rounds: all sides in turn on the same prompts; a side that fails is left out."""

from pathlib import Path

import pytest

from benchmarks.cpu.cells import CELLS, Cell, Probe, Rates
from benchmarks.cpu.figures import Figures
from benchmarks.cpu.rounds import Plan, Rounds
from benchmarks.side import SideFailed

ALL_PEERS = frozenset({"llama.cpp", "vLLM", "transformers"})
S135 = [Cell("s135", "bf16", 1), Cell("s135", "bf16", 8)]


class FakeSide:
    """A side that records its calls, and fails at its n-th measurement."""

    def __init__(self, name: str, calls: list[str], fails_at: int) -> None:
        self.name, self.settings = name, f"{name} started"
        self._calls, self._left = calls, fails_at

    def measure(self, cell: Cell, turn: str) -> Rates:
        self._calls.append(f"{self.name} {cell} {turn}")
        self._count()
        return Rates(100.0, 1000.0)

    def generate(self, prompts, num_new_tokens, how="") -> float:
        self._calls.append(f"{self.name} mixed {how} {len(prompts)} {sum(map(len, prompts))} {prompts[0][:3]}")
        self._count()
        return 2.0

    def probe(self, num_bytes: int) -> Probe:
        self._calls.append(f"machine {num_bytes}")
        return Probe(38e9, 468e9, 900e9, "by hand")

    def close(self) -> None:
        self._calls.append(f"{self.name} closed")

    def _count(self) -> None:
        self._left -= 1
        if self._left == 0:
            raise SideFailed("planted failure")


class FakeOpeners:
    """Opens fake sides; `missing` cannot be opened, `failing` fail at a measurement."""

    def __init__(self, missing: str = "", **failing: int) -> None:
        self.calls: list[str] = []
        self._missing, self._failing = missing, failing

    def quire(self, model, format_name):
        return self._open("Quire", f"{model.name} {format_name}")

    def vllm(self, model):
        return self._open("vLLM", model.name)

    def llama_cpp(self, model, format_name):
        return self._open("llama.cpp", f"{model.name} {format_name}")

    def transformers(self, model):
        return self._open("transformers", model.name)

    def _open(self, name: str, what: str) -> FakeSide:
        self.calls.append(f"{name} opens {what}")
        if name == self._missing:
            raise SideFailed("cannot start")
        return FakeSide(name, self.calls, self._failing.get(name.replace(".", "_"), 0))


class FakeWatcher:
    """Counts turns and parts, and keeps the lines."""

    def __init__(self) -> None:
        self.turns, self.parts, self.lines = 0, 0, []

    def begin(self, what: str) -> None:
        pass

    def turn_done(self) -> None:
        self.turns += 1

    def say(self, line: str) -> None:
        self.lines.append(line)

    def part_done(self) -> None:
        self.parts += 1


def run(plan: Plan, openers: FakeOpeners) -> tuple[Figures, FakeWatcher]:
    """Run a plan on fakes."""
    figures, watcher = Figures({}), FakeWatcher()
    Rounds(plan, openers, Path, figures, watcher).run()
    return figures, watcher


def test_sides_take_turns_and_each_round_begins_with_another_one():
    openers = FakeOpeners()
    run(Plan(S135[:1], 2, 0, ALL_PEERS), openers)
    assert [call for call in openers.calls if " batch " in call or "machine" in call] == [
        "machine 268959744",
        "Quire s135 bf16 batch 1 0",
        "llama.cpp s135 bf16 batch 1 0",
        "vLLM s135 bf16 batch 1 0",
        "machine 268959744",
        "llama.cpp s135 bf16 batch 1 1",
        "vLLM s135 bf16 batch 1 1",
        "Quire s135 bf16 batch 1 1",
    ]


def test_all_sides_are_closed_after_a_model():
    openers = FakeOpeners()
    run(Plan([*S135, Cell("tiny", "bf16", 1)], 1, 1, ALL_PEERS), openers)
    closed = [call for call in openers.calls if "closed" in call]
    assert sorted(closed[:4]) == [f"{name} closed" for name in ("Quire", "llama.cpp", "transformers", "vLLM")]
    assert openers.calls.index("Quire opens tiny bf16") > openers.calls.index("Quire closed")


def test_only_bf16_is_compared_with_vllm():
    openers = FakeOpeners()
    run(Plan([Cell("s135", "int8", 1)], 1, 1, ALL_PEERS), openers)
    assert openers.calls[:2] == ["Quire opens s135 int8", "llama.cpp opens s135 int8"]
    assert not [call for call in openers.calls if "vLLM" in call or "mixed" in call]


def test_peers_that_are_not_chosen_are_not_opened():
    openers = FakeOpeners()
    figures, _ = run(Plan(S135, 1, 1, frozenset()), openers)
    assert {call.split()[0] for call in openers.calls} == {"Quire", "machine"}
    assert list(figures.mixed.rates) == ["Quire"]


def test_the_mixed_load_is_the_same_for_all_sides_and_differs_between_rounds():
    openers = FakeOpeners()
    figures, _ = run(Plan(S135, 1, 2, ALL_PEERS), openers)
    mixed = [call.split(" mixed ") for call in openers.calls if " mixed " in call]
    assert [name for name, _ in mixed] == [
        "Quire",
        "vLLM",
        *["transformers"] * 3,
        "vLLM",
        *["transformers"] * 3,
        "Quire",
    ]
    loads = [what.split(" ", 1)[1] for _, what in mixed if "one by one" not in what]
    prompts = [what.split("[")[1] for what in loads]
    assert len(set(prompts[:4])) == len(set(prompts[4:])) == 1
    assert prompts[0] != prompts[4]
    assert "one by one 8 " in mixed[4][1]
    assert figures.mixed.rates["transformers, continuous"] == figures.mixed.rates["Quire"]


def test_a_peer_that_cannot_be_opened_is_left_out_with_one_line():
    figures, watcher = run(Plan(S135[:1], 1, 0, ALL_PEERS), FakeOpeners(missing="vLLM"))
    assert watcher.lines == figures.left_out == ["vLLM is left out (loading s135 bf16): cannot start"]
    assert figures.cells[0].sides == ["Quire", "llama.cpp"]
    assert not figures.has_failed


def test_a_peer_that_fails_keeps_its_rates_and_is_not_measured_again():
    figures, watcher = run(Plan(S135, 3, 0, ALL_PEERS), FakeOpeners(llama_cpp=2))
    first, second = figures.cells
    assert len(first.rates["llama.cpp"]) == 1
    assert len(first.rates["Quire"]) == 3
    assert second.sides == ["Quire", "vLLM"]
    assert watcher.lines == ["llama.cpp is left out (s135 bf16 batch 1, round 2): planted failure"]


def test_after_a_failure_of_quire_the_next_model_is_measured():
    openers = FakeOpeners(Quire=1)
    figures, watcher = run(Plan([S135[0], Cell("tiny", "bf16", 1)], 1, 0, ALL_PEERS), openers)
    assert figures.has_failed
    assert "Quire is left out" in watcher.lines[0]
    assert "Quire opens tiny bf16" in openers.calls
    assert openers.calls[-1] == "Quire closed"


@pytest.mark.parametrize("peers", [ALL_PEERS, frozenset({"vLLM"}), frozenset()])
def test_the_number_of_turns_is_known_in_advance(peers):
    plan = Plan(CELLS, 4, 2, peers)
    figures, watcher = run(plan, FakeOpeners())
    assert watcher.turns == plan.num_turns
    assert watcher.parts == len(CELLS) + 1
    assert {len(cell.probes) for cell in figures.cells if not cell.cell.required("decode")} == {2}


def test_the_command_of_each_side_is_kept():
    figures, _ = run(Plan(S135[:1], 1, 0, ALL_PEERS), FakeOpeners())
    assert figures.commands["vLLM, s135 bf16"] == "vLLM started"
