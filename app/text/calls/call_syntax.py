"""What a syntax of calls is: it reads the calls in answers, and writes the rules of grammars for them.

Each is a class in a file of its own; the families that have it are rows in `formats`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from app.text.calls.call_marks import CallMarks
from app.text.calls.call_reader import CallReader
from app.text.calls.call_rules import CallRules
from app.text.calls.tool_schemas import Parameters, ToolSchemas
from app.text.reading.parser import Machine
from app.text.reading.reader import Reader, Reading


@dataclass(frozen=True, kw_only=True)
class CallSyntax(CallMarks, ABC):
    """How a family writes calls.

    Attributes:
        id_chars: the exact number of letters and digits that the template wants in a call's id, if it does.
        has_named_ids: whether a call's id is the function's name and the call's number.
        has_call_messages: whether the template wants a message for each call, with the function's name as its metadata.
    """

    id_chars: int | None = None
    has_named_ids: bool = False
    has_call_messages: bool = False

    def machine(self, schemas: ToolSchemas) -> Machine:
        """Return the machine that reads one answer; the marks are resolved."""
        return partial(self._read, schemas)

    def can_spell(self, name: str) -> bool:
        """Return whether a parameter of this name can be read from a call."""
        return True  # as a string of JSON it can

    @abstractmethod
    def read_calls(self, calls: CallReader, mark: str) -> Reading[None]:
        """Read the calls behind one of the marks that begin them, or "" where an answer begins without one."""

    @abstractmethod
    def add_rules(self, rules: CallRules, functions: Sequence[Parameters], *, is_parallel: bool) -> str:
        """Add the rules of calls of `functions`; return what stands for one call or, with `is_parallel`, several.

        The rules are what templates write and `read_calls` reads. Between parts of JSON that are ours there is the one
        space that templates write.

        Raises:
            Unwritable: a schema cannot be checked.
        """

    def _read(self, schemas: ToolSchemas, reader: Reader) -> Reading[None]:
        calls = CallReader(self, reader, schemas)
        return calls.read(partial(self.read_calls, calls))
