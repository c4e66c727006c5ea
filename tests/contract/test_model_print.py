"""The print of a model and its settings."""

from dataclasses import replace

from app.config.settings import make_config
from app.contract.model_print import model_print
from tests.fake_port import MODEL_INFO


def test_what_changes_tokens_changes_the_print_and_nothing_else_does():
    config = make_config({})
    same = [(MODEL_INFO, config), (replace(MODEL_INFO, created=5), make_config({"port": 1}))]
    others = [
        (replace(MODEL_INFO, revision="1"), config),
        (replace(MODEL_INFO, vocab_size=9), config),
        (replace(MODEL_INFO, quantization="int8"), config),
        (MODEL_INFO, make_config({"dtype": "float32"})),
        (MODEL_INFO, make_config({"kv_cache_dtype": "int8"})),
        (MODEL_INFO, make_config({"load_format": "dummy"})),
        (MODEL_INFO, make_config({"seed": 3})),
    ]
    assert len({model_print(*each) for each in same}) == 1
    assert len({model_print(*each) for each in (*same, *others)}) == 1 + len(others)
