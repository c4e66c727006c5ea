"""Answers at temperature 1 under generated schemas, from `guide` and from random weights: those that stop validate."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from app.config.settings import make_config
from app.engine.build import build_engine
from app.engine.engine import Engine
from tests.cases import long
from tests.checkpoints import tiny
from tests.engine.constrained import Constrained, answer_all
from tests.text.grammar.made_schemas import make_schema

SHORT, LONG = 24, 500
MAX_TOKENS = 700  # the longest bounded answer of the embedded model is shorter


def models() -> dict[str, Path | str]:
    """The embedded model, and one with random weights, whose samples are nearly uniform."""
    return {"guide": "guide", "random": tiny("Mistral", sliding_window=8, max_position_embeddings=1024)}


def engine_of(name: str) -> Engine:
    """An engine over a model, with room for long answers."""
    settings = {"max_model_len": 768, "max_num_seqs": 32, "num_kv_blocks": 1600, "itl_target": 0.0}
    return build_engine(make_config({"model": str(models()[name]), **settings}))


def check(name: str, count: int, *, is_bounded: bool) -> None:
    """Answer `count` schemas: all answers that stop validate, and of bounded ones at least 95 in 100 stop."""
    engine = engine_of(name)
    made = Constrained(engine)
    schemas = {str(seed): make_schema(seed, is_bounded=is_bounded) for seed in range(count)}
    requests = [
        made.request(
            seed, range(10, 30), {"json": schema}, max_tokens=MAX_TOKENS if is_bounded else 100, seed=int(seed)
        )
        for seed, schema in schemas.items()
    ]
    found = answer_all(engine, requests)
    stopped = {key: text for (key, _), (_, text, end) in found.items() if end == "stop"}
    for seed, text in stopped.items():
        # Unions are read as anyOf, as documented.
        schema = json.loads(json.dumps(schemas[seed]).replace('"oneOf"', '"anyOf"'))
        validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
        validator.validate(json.loads(text))
    assert len(found) == count and len(stopped) >= (0.95 if is_bounded else 0.3) * count


@pytest.mark.parametrize(
    ("is_bounded", "name"), [(True, "guide"), (False, "random"), long(True, "random"), long(False, "guide")]
)
def test_answers_that_stop_validate(name: str, is_bounded: bool):
    check(name, SHORT, is_bounded=is_bounded)


@pytest.mark.long
@pytest.mark.parametrize("name", ["guide", "random"])
@pytest.mark.parametrize("is_bounded", [True, False], ids=["bounded", "unbounded"])
def test_answers_to_many_schemas_validate(name: str, is_bounded: bool):
    check(name, LONG, is_bounded=is_bounded)


OTHERS: list[tuple[dict[str, Any], str]] = [
    ({"regex": r"(0|[1-9][0-9]{0,3})(\.[0-9]{1,2})?"}, r"(0|[1-9][0-9]{0,3})(\.[0-9]{1,2})?"),
    ({"regex": "[A-Z]{2}[0-9]{2} ?([0-9]{4} ?){2,4}"}, "[A-Z]{2}[0-9]{2} ?([0-9]{4} ?){2,4}"),
    ({"choice": ['"quoted"', "a\nb", "/", "ä🙂", "\\"]}, '"quoted"|a\nb|/|ä🙂|\\\\'),
    (
        {"grammar": 'start: item ("," item){0,3}\nitem: /[a-z]{1,3}/ "=" /[0-9]{1,2}/'},
        "([a-z]{1,3}=[0-9]{1,2}(,(?!$))?){1,4}",
    ),
    ({"grammar": 'root ::= "<" word ("-" word)? ">"\nword ::= [a-f]+ "."'}, r"<[a-f]+\.(-[a-f]+\.)?>"),
]


@pytest.mark.parametrize("name", ["guide", "random"])
def test_other_answers_that_stop_match(name: str):
    engine = engine_of(name)
    made = Constrained(engine)
    requests = [
        made.request(f"{number}-{seed}", range(10, 30), wanted, max_tokens=200, seed=seed)
        for number, (wanted, _) in enumerate(OTHERS)
        for seed in range(4)
    ]
    found = answer_all(engine, requests)
    for (key, _), (_, text, end) in found.items():
        assert end != "stop" or re.fullmatch(OTHERS[int(key[0])][1], text), (key, text)
    assert sum(end == "stop" for _, _, end in found.values()) >= 0.8 * len(found)
