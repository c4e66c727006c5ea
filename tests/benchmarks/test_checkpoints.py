import pytest

from app import LLM, SamplingParams
from app.checkpoint.checkpoint_folder import Checkpoint
from tests.checkpoint.reading import read_spec
from tests.checkpoints import real_size


@pytest.mark.parametrize(("name", "context", "vocabulary"), [("long", 262_144, 3_584), ("wide", 32_768, 151_936)])
def test_a_checkpoint_of_a_real_size_has_its_shape_and_generates_text(name: str, context: int, vocabulary: int):
    spec = read_spec(Checkpoint.open(real_size(name), with_weights=False))
    assert (spec.max_position, spec.vocab_size) == (context, vocabulary)

    llm = LLM(str(real_size(name)), load_format="dummy", num_kv_blocks=64, max_num_seqs=2)
    [output] = llm.chat([[{"role": "user", "content": "Hello"}]], SamplingParams(temperature=1.0, seed=1, max_tokens=9))
    assert len(output.outputs[0].token_ids) == 9
    assert output.outputs[0].text
    assert not llm.engine.output._eos_token_ids, "only max_tokens ends an output"
