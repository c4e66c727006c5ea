"""What an answer must satisfy, as plain data: structured outputs as clients ask for them, grammars, reasoning marks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from app.contract.errors import InvalidValue


class GrammarKind(StrEnum):
    """The language that a grammar's source is written in; a choice's source is a JSON list of texts.

    Calls of tools are Lark that the server has made, with the tools' schemas in it.
    """

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"
    LARK = "lark"
    CALLS = "calls"

    __hash__ = str.__hash__


GBNF_MARK = "\0"
"""Stands for a text in GBNF, which no other process than that of a trial turns into Lark."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """The texts that an answer may be. With `follows_reasoning` up to two blanks or newlines may come before them.

    `block` has the rule `block` in Lark, and those that it needs: what comes before these blanks. It is set where the
    marks of the reasoning are no single tokens.

    In Lark `GBNF_MARK` stands for the grammar that `gbnf` becomes, a text in GBNF. `param` is the path of the client's
    field that the grammar comes from, for errors; it makes no other grammar.
    """

    kind: GrammarKind
    source: str
    follows_reasoning: bool = False
    gbnf: str | None = None
    block: str = ""
    param: str | None = field(default=None, compare=False)

    @property
    def has_json(self) -> bool:
        """Whether values of JSON are in the texts, whose numbers must end; in Lark they are behind `%json`."""
        is_lark = self.kind is GrammarKind.LARK
        return "%json" in self.source if is_lark else self.kind in (GrammarKind.JSON_SCHEMA, GrammarKind.CALLS)


@dataclass(frozen=True, slots=True)
class ReasoningMarks:
    """The tokens around a block of reasoning; with `is_inside` the prompt ends inside such a block."""

    open_id: int
    close_id: int
    is_inside: bool = False


@dataclass(frozen=True, slots=True)
class Constraint:
    """The limits on the tokens that a sequence may sample; at least a grammar or a budget is set.

    `thinking_token_budget` is the number of tokens that a sequence may reason, marks not counted; it needs `reasoning`.
    """

    grammar: Grammar | None = None
    reasoning: ReasoningMarks | None = None
    thinking_token_budget: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputs:
    """The form that an answer must have: exactly one field is set. The names are vLLM's.

    `json` is a schema, as an object or as text; `json_object` True means any JSON object; `grammar` is Lark, or GBNF
    where it contains `::=`.

    Raises:
        InvalidValue: no field is set, or more than one.
    """

    json: Mapping[str, Any] | str | bool | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool = False

    def __post_init__(self) -> None:
        names = [field.name for field in fields(self)]
        if len(self.given) != 1:
            what = " and ".join(self.given) or "nothing"
            raise InvalidValue(
                f"structured_outputs has {what}; set exactly one of {', '.join(names)}.", param="structured_outputs"
            )

    @property
    def given(self) -> list[str]:
        """The names of the fields that are set."""
        names = [field.name for field in fields(self)]
        return [name for name in names if self._is_set(getattr(self, name)) or self._is_json_false(name)]

    @staticmethod
    def _is_set(value: object) -> bool:
        return value is not None and value is not False  # 0 is a wrong value, not none

    def _is_json_false(self, name: str) -> bool:
        """Return whether the field is the schema `false`, which no text satisfies: it is rejected when compiled."""
        return name == "json" and self.json is False
