"""Under which names the matrices of experts are stored: each as a tensor, or one for all experts of a layer."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

EXPERTS = "mlp.experts."
"""In the names of the matrices of experts, in `ModelSpec.tensor_shapes`: what they begin with in their layer."""


class ExpertNames(NamedTuple):
    """The stored names of an expert's matrices, without what all of a layer begin with.

    `*` stands for the number of the expert. A name without it is that of a tensor with the matrices of all experts;
    several matrices of one name lie in it one after the other, expert after expert.
    """

    gate: str
    up: str
    down: str

    def find(self, module: str) -> tuple[str, str | None]:
        """Return the stored name of a module, and the number of the expert if the tensor has those of all."""
        number, _, part = module.removeprefix(EXPERTS).partition(".")
        stored = {"gate_proj": self.gate, "up_proj": self.up, "down_proj": self.down}[part]
        return stored.replace("*", number), None if "*" in stored else number

    def are_in(self, tensors: Collection[str]) -> bool:
        """Return whether a checkpoint has tensors of these names, which have no `*`."""
        endings = tuple(f".{name}" for name in self)
        return any(tensor.endswith(endings) for tensor in tensors)
