"""Parameters are what the fields of a dataclass declare."""

from dataclasses import dataclass

from app.contract.parameter import Bounds, Parameter, parameter, parameters_of


@dataclass
class Given:
    """Two parameters."""

    share: float = parameter(0.5, "A share.", Bounds(0.0, 1.0, is_integer=False), is_option=True)
    name: str | None = parameter(None, "A name.")


def test_fields_have_their_defaults_and_the_parameters_their_order():
    assert (Given().share, Given().name) == (0.5, None)
    share, name = parameters_of(Given)
    assert share == Parameter("share", "A share.", Bounds(0.0, 1.0, is_integer=False), is_option=True)
    assert name == Parameter("name", "A name.")


def test_bounds_are_keywords_of_json_schema():
    assert Bounds(1, 16).keywords() == {"minimum": 1, "maximum": 16}
