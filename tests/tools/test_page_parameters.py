"""The page's copy of the parameters has what the OpenAPI document says about them."""

import json
import re

import pytest

from app.contract.sampling_params import BOUNDS, MAX_STOP_LENGTH, MAX_STOP_STRINGS, PARAMETERS
from tools.page_parameters import NAMES, page_parameters

COPIED = {name: json.loads(text) for name, text in re.findall(r"^  (\w+): (.*),$", page_parameters(), re.MULTILINE)}
HELP = {each.name: each.help for each in PARAMETERS}


@pytest.mark.parametrize("name", NAMES)
def test_a_parameter_has_its_help_and_range(name: str):
    copied = COPIED[name]
    assert copied["description"] == HELP[name]
    if name in BOUNDS:
        assert copied["type"] == ("integer" if BOUNDS[name].is_integer else "number")
        assert (copied["minimum"], copied["maximum"]) == (BOUNDS[name].low, BOUNDS[name].high)


def test_stop_strings_have_their_number_and_length():
    assert (COPIED["stop"]["maxItems"], COPIED["stop"]["maxLength"]) == (MAX_STOP_STRINGS, MAX_STOP_LENGTH)
