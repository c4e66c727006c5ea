"""The command: each question with each seed, what a row shows, and what ends it with a fault."""

from types import SimpleNamespace

from app.contract.sampling_params import SamplingParams
from benchmarks.defaults.command import compared, faults, measure
from benchmarks.defaults.parameter_sets import OFF, SETS
from benchmarks.defaults.questions import QUESTIONS

PUBLISHER = next(iter(SETS.values()))


class FakeLLM:
    """Answers every question with Paris where its seed is even, and has `defaults`."""

    def __init__(self, **defaults: float) -> None:
        self.defaults = defaults
        self.engine = SimpleNamespace(model_info=SimpleNamespace(defaults=defaults))

    def chat(self, messages, params, use_tqdm):
        assert len(messages) == len(params)
        texts = ("Paris." if one.seed % 2 == 0 else "Rome?" for one in params)
        return [SimpleNamespace(outputs=[SimpleNamespace(text=text)]) for text in texts]

    def get_default_sampling_params(self):
        return SamplingParams(**self.defaults)


def test_each_question_is_asked_with_each_seed():
    right = measure(FakeLLM(), PUBLISHER, 5)
    assert len(right) == len(QUESTIONS)
    assert (right[0], right[2], right[1]) == (3, 2, 0), "Paris, Rome, and neither"


def test_a_surely_better_set_and_another_default_are_faults():
    counts = [2, 3] * (len(QUESTIONS) // 2)
    rows = dict.fromkeys(SETS, counts) | {"greedy": [count + 1 for count in counts]}
    default, *others = compared(rows, 5)
    assert default["right"].value == 0.5 and default["better"] == (0, 0, 0)
    (better,) = faults(FakeLLM(**(OFF | PUBLISHER)), others)
    assert better.startswith("greedy is better by 20.0%")
    (other,) = faults(FakeLLM(**OFF, temperature=1.0), [default])
    assert other.startswith("the defaults of smollm2 are not those that were measured")
