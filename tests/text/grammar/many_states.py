"""A grammar that many rows bring to the library's limit of states, though each alone stays far below it."""

from __future__ import annotations

from app.contract.grammar import Constraint, Grammar, GrammarKind

MANY_STATES = Grammar(GrammarKind.REGEX, "(.*[aeo ].{30})*(.*[bsti].{30})*WORD")
"""A mask makes about 70 states with the byte-level toy; 50,000 are allowed."""
NUM_ROWS, NUM_TOKENS = 24, 45
"""Together they make 75,000 and more."""
CONSTRAINT = Constraint(MANY_STATES)
