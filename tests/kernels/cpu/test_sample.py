"""The native sampler against the Python one, which has its own oracle, and its promises on every instruction set."""

from __future__ import annotations

import ctypes
import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import Tensor

from app.contract.sampling_params import SamplingParams
from app.engine.execute.host_sampler import Sampler
from app.engine.execute.noise import gumbel, noise_bits
from app.engine.schedule.row_sampling import RowSampling
from app.engine.schedule.step_plan import RowStart
from app.kernels.cpu import records
from app.kernels.cpu.compiling import INSTRUCTION_SETS
from app.kernels.cpu.library import NativeLibrary, load_library
from app.kernels.cpu.records import MAX_LOGPROBS, Adjustments, Code, Draw, Matrix
from tests.engine.execute.test_noise import FROZEN

TINIEST = 1e-5  # temperatures that are smaller count as this one
GUARD = 64


@pytest.fixture(params=INSTRUCTION_SETS, scope="module")
def library(request: pytest.FixtureRequest) -> NativeLibrary:
    """The kernels for each instruction set that this machine has."""
    found = load_library(request.param)
    if found is None:
        pytest.skip(f"no kernels for {request.param} here")
    return found


@dataclass
class Way:
    """How a row draws: a Draw, in Python."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    choice: int = 0
    is_on_host: bool = False
    num_logprobs: int = -1
    adjustments: Adjustments | None = None

    def draw(self) -> Draw:
        """As the kernel takes it."""
        temperature = max(self.temperature, TINIEST) if self.temperature else 0.0
        adjustments = None if self.adjustments is None else ctypes.addressof(self.adjustments)
        filters = (self.top_p, self.min_p, self.top_k)
        return Draw(self.seed, self.choice, adjustments, temperature, *filters, self.num_logprobs, self.is_on_host)

    def start(self, row: int) -> RowStart:
        """As the Python sampler takes it."""
        params = SamplingParams(
            temperature=self.temperature, top_k=self.top_k, top_p=self.top_p, min_p=self.min_p, seed=self.seed
        )
        return RowStart(row, row, self.choice, RowSampling.of(params), (1,), ())


@dataclass
class Batch:
    """Output rows: logits [R, V], who draws from each, and from which of the step's token rows each comes."""

    logits_RV: Tensor
    ways: Sequence[Way]
    positions: Sequence[int]  # of the token rows; the drawn tokens stand one further
    rows: Sequence[int] = field(default_factory=list)  # token row of each output; by default their order
    ids: Sequence[int] = ()  # of the token rows; by default 0
    logprobs_RX: Tensor = field(init=False)  # of the last draw, as the kernel writes them
    logprob_ids_RX: Tensor = field(init=False)

    def sample(self, library: NativeLibrary, num_threads: int = 1, num_rows: int | None = None) -> list[int]:
        """The tokens of the first `num_rows` rows (default: all), and -7 for the others."""
        count, width = self.logits_RV.shape
        output_rows = torch.tensor(self.rows or range(count), dtype=torch.int64)
        positions = torch.tensor(self.positions, dtype=torch.int64)
        state_rows = torch.arange(count).flip(0)  # each one's own, in another order
        draws = (Draw * count)(*(way.draw() for way in reversed(self.ways)))
        ids = torch.tensor(self.ids or [0] * len(self.positions), dtype=torch.int64)
        tokens = torch.full((count,), -7)
        self.logprobs_RX = torch.full((count, 1 + MAX_LOGPROBS), math.nan)
        self.logprob_ids_RX = torch.full((count, 1 + MAX_LOGPROBS), -7, dtype=torch.int32)
        scratch = torch.full((num_threads * -(-width // 64) * 65 + GUARD,), math.nan)
        fields = records.Sample(
            logits=Matrix.of(self.logits_RV), output_rows=output_rows.data_ptr(), positions=positions.data_ptr(),
            ids=ids.data_ptr(), state_rows=state_rows.data_ptr(), draws=ctypes.addressof(draws),
            token_ids=tokens.data_ptr(), logprobs=self.logprobs_RX.data_ptr(),
            logprob_ids=self.logprob_ids_RX.data_ptr(), scratch=scratch.data_ptr(), width=width,
        )  # fmt: skip
        library.run(Code.SAMPLE, fields, count if num_rows is None else num_rows, num_threads)
        assert scratch[-GUARD:].isnan().all(), "wrote behind its scratch"
        return tokens.tolist()


def one(library: NativeLibrary, logits_V: Tensor, way: Way, position: int = 5) -> int:
    """The token of a single row."""
    return Batch(logits_V[None].float(), [way], [position]).sample(library)[0]


def reference(batch: Batch) -> list[int]:
    """The tokens that the engine's sampler draws."""
    sampler = Sampler(())
    for row, way in enumerate(batch.ways):
        sampler.start(way.start(row))
    places = [batch.positions[row] + 1 for row in batch.rows or range(len(batch.ways))]
    return [token for token, _ in sampler.sample(batch.logits_RV, range(len(batch.ways)), places)]


def score(logits_V: Tensor, way: Way, position: int, token: int) -> float:
    """Score and noise of a token."""
    noise = gumbel(noise_bits(way.seed, way.choice, position, np.array([token], dtype=np.uint32)))
    return float(logits_V[token] / max(way.temperature, TINIEST) + noise[0])


# --- The same tokens as the Python sampler -------------------------------------------------------------------------


def random_way(rng: random.Random) -> Way:
    """Any mixture of parameters, the extremes of each among them."""
    way = Way(rng.choice((0.0, 1e-6, 1e-3, 0.3, 0.7, 1.0, 1.3, 2.0)), seed=rng.getrandbits(64), choice=rng.randrange(3))
    if rng.random() < 0.4:
        way.top_k = rng.choice((-1, 1, 2, 5, 50, 300, 5000, 2**31 - 1))
    if rng.random() < 0.4:
        way.top_p = rng.choice((1e-6, 0.1, 0.5, 0.9, 0.99, 0.9999, 1 - 1e-7))
    if rng.random() < 0.3:
        way.min_p = rng.choice((1e-4, 0.01, 0.05, 0.3, 1.0))
    return way


def random_batch(rng: random.Random) -> Batch:
    """Some rows of one kind of logits: smooth, with ties, with values that are no numbers, or all the same."""
    count, width = rng.choice((1, 3, 8)), rng.choice((1, 7, 63, 64, 65, 129, 1000, 4099, 20_000))
    generator = torch.Generator().manual_seed(rng.getrandbits(40))
    logits_RV = torch.randn(count, width, generator=generator) * rng.choice((0.1, 1, 3, 10, 1e4, 1e30))
    logits_RV += rng.choice((0, -20, 50))
    kind = rng.randrange(6)
    if kind == 0:
        logits_RV = (logits_RV * 4).round() / 4
    elif kind == 1:
        for _ in range(5):
            logits_RV[rng.randrange(count), rng.randrange(width)] = rng.choice((math.inf, -math.inf, math.nan))
    elif kind == 2:
        logits_RV[:] = rng.choice((math.inf, -math.inf, math.nan, 0.0))
    ways = [random_way(rng) for _ in range(count)]
    return Batch(logits_RV, ways, [rng.randrange(5000) for _ in range(count)])


def test_tokens_are_those_of_the_engine_s_sampler(library: NativeLibrary):
    """All parameters mixed; they may differ where scores are equal but for rounding, less than once in a thousand."""
    rng = random.Random(library.instruction_set)
    num_rows = num_ties = 0
    for _ in range(250):
        batch = random_batch(rng)
        num_rows += len(batch.ways)
        drawn, expected = batch.sample(library), reference(batch)
        for row, (way, token, other) in enumerate(zip(batch.ways, drawn, expected, strict=True)):
            if token != other:
                place = (batch.logits_RV[row], way, batch.positions[row] + 1)
                assert score(*place, token) == pytest.approx(score(*place, other), rel=1e-6, abs=1e-5), way
                num_ties += 1
    assert num_ties < num_rows / 1000


@pytest.mark.parametrize("scale", [0.0, 0.02, 1.0, 4.0])
def test_no_token_that_wins_is_passed_by(library: NativeLibrary, scale: float):
    """The noise of all tokens, against that of those alone that seem able to win; flat logits leave it the say."""
    logits_RV = torch.randn(20, 49_152, generator=torch.Generator().manual_seed(4)) * scale
    ways = [Way(seed=row) for row in range(20)]
    batch = Batch(logits_RV, ways, [9] * 20)
    tokens = np.arange(49_152, dtype=np.uint32)
    noise_RV = np.stack([gumbel(noise_bits(way.seed, 0, 10, tokens)) for way in ways])
    assert batch.sample(library) == np.argmax(logits_RV.numpy() + noise_RV, axis=1).tolist()


@pytest.mark.parametrize("place", FROZEN)
def test_noise_is_that_of_the_frozen_vector(library: NativeLibrary, place: tuple[int, int, int, int]):
    seed, choice, position, token = place
    way, noise = Way(seed=seed & 2**64 - 1, choice=choice), FROZEN[place][1]
    if noise > -math.inf:
        check_noise(library, way, position, [token], np.array([noise]))
    else:  # u rounds to 1: the token is not drawn however likely it is
        logits_V = torch.full((token + 2,), -math.inf)
        logits_V[token:] = torch.tensor([1000.0, -1000.0])
        assert one(library, logits_V, way, position - 1) == token + 1


def test_noise_is_that_of_the_engine_s_sampler(library: NativeLibrary):
    """Of tokens of all kinds, and of those whose noise is nearest to what the kernel takes for its upper bound."""
    tokens = np.arange(60_000, dtype=np.uint32)
    bits = noise_bits(11, 0, 77, tokens)
    noise = gumbel(bits)
    u = (bits + 0.5) * 2.0**-32
    slack = (1 - np.frexp(u)[1] - (2 * np.frexp(u)[0] - 1)) * math.log(2) - noise
    for which in (tokens[:400], np.argsort(slack)[:400], np.argsort(u)[:100]):
        check_noise(library, Way(seed=11), 77, which.tolist(), noise[which])


def check_noise(library: NativeLibrary, way: Way, position: int, tokens: list[int], expected: np.ndarray) -> None:
    """Each token loses to one whose score and noise are just ahead of its own, and wins from one just behind."""
    rivals = [token + 1 for token in tokens]
    rival_noise = gumbel(noise_bits(way.seed, way.choice, position, np.array(rivals, dtype=np.uint32)))
    rows = range(len(tokens))
    for ahead in (-1, 1):
        logits_RV = torch.full((len(tokens), max(rivals) + 1), -math.inf)
        logits_RV[rows, tokens] = 0.0
        edge = expected - rival_noise + ahead * 4e-7 * np.maximum(1.0, np.maximum(abs(expected), abs(rival_noise)))
        logits_RV[rows, rivals] = torch.from_numpy(edge).float()
        drawn = Batch(logits_RV, [way] * len(tokens), [position - 1] * len(tokens)).sample(library)
        assert drawn == (rivals if ahead > 0 else tokens)


def test_draws_follow_the_softmax(library: NativeLibrary):
    """8,000 draws at fixed seeds against the probabilities after temperature, by chi-square (11 degrees of freedom)."""
    logits_V = torch.linspace(-1.5, 1.5, 12)
    batch = Batch(logits_V.expand(8000, 12).contiguous(), [Way(1.4, seed=3)] * 8000, range(8000))
    counts = np.bincount(batch.sample(library), minlength=12)
    expected = torch.softmax(logits_V / 1.4, dim=-1).numpy() * 8000
    assert float(((counts - expected) ** 2 / expected).sum()) < 31.3  # one in a thousand is larger


# --- One rule each -------------------------------------------------------------------------------------------------


def drawable(library: NativeLibrary, logits_V: Tensor, **way: float) -> set[int]:
    """All tokens that 2,000 draws give."""
    rows = Batch(logits_V.expand(2000, -1).contiguous(), [Way(**way, seed=8)] * 2000, range(2000))
    return set(rows.sample(library))


def test_greedy_takes_the_lowest_id_of_equals(library: NativeLibrary):
    for width in (31, 64, 1000):
        logits_V = torch.full((width,), -math.inf)
        assert one(library, logits_V, Way(0.0)) == -1
        logits_V[[7, 9, width - 1]] = 2.0
        assert one(library, logits_V, Way(0.0)) == 7
        logits_V[[7, 9]] = math.nan
        assert one(library, logits_V, Way(0.0)) == width - 1
        assert one(library, torch.full((width,), math.nan), Way(0.0)) == -1


def test_a_number_is_drawn_however_many_are_none(library: NativeLibrary):
    for way in (Way(0.0), Way(), Way(top_k=2, top_p=0.9, min_p=0.1)):
        for place in range(0, 200, 7):
            logits_V = torch.full((200,), math.nan)
            logits_V[place] = -3.0
            assert one(library, logits_V, way) == place


def test_filters_keep_what_equals_the_last_one_in(library: NativeLibrary):
    logits_V = torch.tensor([0.0, 2.0, 1.0, 1.0, -3.0, 1.0, 2.0, 0.5])
    assert drawable(library, logits_V, top_k=1) == {1, 6}
    assert drawable(library, logits_V, top_k=3) == {1, 2, 3, 5, 6}
    assert drawable(library, logits_V, top_k=6) == {1, 2, 3, 5, 6, 7}
    assert drawable(library, logits_V, top_k=8) == set(range(8))
    assert drawable(library, logits_V, top_p=1e-9) == {1, 6}
    assert drawable(library, logits_V, top_p=0.7) == {1, 2, 3, 5, 6}
    assert drawable(library, logits_V, min_p=math.exp(-1.75)) == {1, 2, 3, 5, 6, 7}
    assert drawable(library, logits_V, min_p=1.0) == {1, 6}


def test_top_p_counts_only_what_top_k_has_left(library: NativeLibrary):
    logits_V = torch.cat([torch.tensor([1.0, 0.0]), torch.full((5000,), -1.0)])
    assert drawable(library, logits_V, top_p=0.7, top_k=2) == {0}, "0.73 of the two, and nearly nothing of all"
    assert len(drawable(library, logits_V, top_p=0.7)) > 1000
    logits_V = torch.cat([torch.linspace(0, -1.2, 64), torch.full((640,), -1.5)])
    assert drawable(library, logits_V, top_p=0.9999, top_k=64) == set(range(64))


@pytest.mark.parametrize("scale", [0.01, 1.0, 5.0])
@pytest.mark.parametrize("top_p", [0.003, 0.3, 0.95, 0.9999])
def test_top_p_leaves_the_smallest_set_and_what_wins_in_it(library: NativeLibrary, scale: float, top_p: float):
    """Of 20,000 tokens, flat and steep, in float64: the winner is that of the smallest set whose shares reach top-p."""
    logits_RV = torch.randn(30, 20_000, generator=torch.Generator().manual_seed(2)) * scale
    drawn = Batch(logits_RV, [Way(top_p=top_p, seed=row) for row in range(30)], [7] * 30).sample(library)
    for row, token in enumerate(drawn):
        scores, order = torch.softmax(logits_RV[row].double(), dim=-1).sort(descending=True)
        size = int((scores.cumsum(dim=0) < top_p).sum()) + 1
        nearest = float((scores.cumsum(dim=0)[max(0, size - 2) : size] - top_p).abs().min())
        noise = gumbel(noise_bits(row, 0, 8, order.numpy().astype(np.uint32)))
        best = int(np.argmax(logits_RV[row][order[:size]].numpy() + noise[:size]))
        assert token == int(order[best]) or nearest < 1e-6


def test_min_p_is_a_share_of_the_best_one_s_probability(library: NativeLibrary):
    logits_V = torch.log(torch.tensor([0.5, 0.24, 0.26, 0.2]))
    assert drawable(library, logits_V, min_p=0.5) == {0, 2}


def test_where_nothing_is_possible_no_token_is_drawn(library: NativeLibrary):
    for way in (Way(), Way(top_k=3), Way(top_p=0.5), Way(min_p=0.5)):
        assert one(library, torch.full((200,), -math.inf), way) == -1
        assert one(library, torch.full((200,), math.nan), way) == -1


def test_a_row_for_the_host_gives_minus_one(library: NativeLibrary):
    logits_RV = torch.randn(3, 100, generator=torch.Generator().manual_seed(1))
    ways = [Way(0.0), Way(is_on_host=True), Way(0.0)]
    tokens = Batch(logits_RV, ways, [1, 2, 3]).sample(library)
    assert tokens == [int(logits_RV[0].argmax()), -1, int(logits_RV[2].argmax())]


def test_several_rows_draw_from_one_token_row_each_with_its_own_noise(library: NativeLibrary):
    logits_RV = torch.zeros(12, 500)
    ways = [Way(seed=5, choice=choice) for choice in range(12)]
    batch = Batch(logits_RV, ways, [3, 8, 2], [1] * 12)
    tokens = batch.sample(library)
    assert tokens == reference(batch) and len(set(tokens)) > 9


def test_one_sequence_draws_at_several_positions_in_one_step(library: NativeLibrary):
    logits_RV = torch.zeros(6, 500)
    together = Batch(logits_RV, [Way(seed=5)] * 6, range(40, 46)).sample(library)
    assert together == [one(library, logits_RV[0], Way(seed=5), position) for position in range(40, 46)]
    assert len(set(together)) > 4


# --- Company, threads, memory --------------------------------------------------------------------------------------


def test_a_token_depends_neither_on_company_nor_on_threads(library: NativeLibrary):
    rng = random.Random(0)
    ways = [random_way(rng) for _ in range(40)]
    logits_RV = torch.randn(40, 3001, generator=torch.Generator().manual_seed(0)) * 2
    positions = [rng.randrange(900) for _ in range(40)]
    alone = [one(library, logits_RV[row], ways[row], positions[row]) for row in range(40)]
    assert len(set(alone)) > 10
    for num_threads in (1, 2, 3, 5):
        for _ in range(5):
            rows = rng.choices(range(40), k=rng.randrange(1, 40))
            batch = Batch(logits_RV[rows], [ways[row] for row in rows], [positions[row] for row in rows])
            assert batch.sample(library, num_threads) == [alone[row] for row in rows]


def test_rows_beyond_those_of_the_step_are_left_alone(library: NativeLibrary):
    batch = Batch(torch.zeros(5, 100), [Way(0.0)] * 5, [1] * 5)
    for num_threads in (1, 3):
        assert batch.sample(library, num_threads, 0) == [-7] * 5
        assert batch.sample(library, num_threads, 2) == [0, 0, -7, -7, -7]


@pytest.mark.parametrize("width", [1, 15, 63, 64, 65, 100])
def test_what_lies_behind_the_width_is_not_drawn(library: NativeLibrary, width: int):
    wide = torch.full((9, 192), 1e9)
    wide[:, :width] = torch.linspace(0, 1, width)
    ways = [Way(temperature, top_k=top_k, top_p=top_p) for temperature in (0.0, 1.0, 2.0) for top_k, top_p in
            ((0, 1.0), (60, 1.0), (0, 0.99))]  # fmt: skip
    assert max(Batch(wide[:, :width], ways, [4] * 9).sample(library, 2)) < width


def test_every_token_of_a_flat_row_can_be_drawn(library: NativeLibrary):
    counts = Counter(Batch(torch.zeros(6000, 100), [Way(seed=1)] * 6000, range(6000)).sample(library))
    assert set(counts) == set(range(100)) and max(counts.values()) < 110
