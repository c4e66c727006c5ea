"""Under which names a family stores its tensors, and where several are rows of one tensor."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from app.checkpoint.checkpoint_folder import rejected
from app.checkpoint.expert_names import EXPERTS, ExpertNames
from app.checkpoint.stored_tensor import StoredTensor

_LAYER = re.compile(r"(model\.layers\.\d+\.)(.+)(\.weight|\.bias)")


class StoredRows(NamedTuple):
    """Where a tensor is: the name of the stored one, its first row there, and how many rows the stored one has.

    A stored tensor of all experts has these rows in as many parts, one for each: [num_experts, rows, columns].
    """

    name: str
    first: int
    num_stored: int
    num_experts: int | None = None

    def stored_shape(self, *columns: int) -> tuple[int, ...]:
        """Return the shape of the stored tensor, whose rows have so many columns (none: it is a vector)."""
        if self.num_experts is None:
            return (self.num_stored, *columns)
        return (self.num_experts, self.num_stored // self.num_experts, *columns)


@dataclass(frozen=True, slots=True)
class TensorNames:
    """The stored names of a layer's modules, by their names in `ModelSpec.tensor_shapes`; others keep their name.

    Modules of the same stored name lie in that tensor one after the other, in the order of `tensor_shapes`. `places`
    are the prefixes that stand for `model.` and `lm_head.`; files have one of them. `experts` has the names of experts'
    matrices; None where they keep theirs. `other` are names that some checkpoints have instead: one tensor for all
    experts.
    """

    modules: Mapping[str, str] = field(default_factory=dict)
    places: tuple[tuple[str, str], ...] = (("model.", "lm_head."),)
    experts: ExpertNames | None = None
    other: TensorNames | None = None

    def locate(self, shapes: Mapping[str, tuple[int, ...]], tensors: Collection[str] = ()) -> dict[str, StoredRows]:
        """Return where each of the tensors in `ModelSpec.tensor_shapes` is stored, among the names `tensors`."""
        names = self._of(tensors)
        place = next((place for place in self.places if f"{place[0]}embed_tokens.weight" in tensors), self.places[0])
        num_stored: Counter[str] = Counter()
        experts: dict[str, set[str]] = {}
        firsts: dict[str, tuple[str, int]] = {}
        for name, shape in shapes.items():
            plain, expert = names._stored(name)
            stored = _in_place(plain, place)
            firsts[name] = (stored, num_stored[stored])
            num_stored[stored] += shape[0]
            if expert is not None:
                experts.setdefault(stored, set()).add(expert)
        counts = {stored: len(numbers) for stored, numbers in experts.items()}
        return {
            name: StoredRows(stored, first, num_stored[stored], counts.get(stored))
            for name, (stored, first) in firsts.items()
        }

    def _of(self, tensors: Collection[str]) -> TensorNames:
        """Return those of the names that a checkpoint with tensors of these names has."""
        other = self.other
        return other if other is not None and other.experts is not None and other.experts.are_in(tensors) else self

    def _stored(self, name: str) -> tuple[str, str | None]:
        """Return the stored name, and the number of the expert where it is of a tensor that has all experts."""
        found = _LAYER.fullmatch(name)
        if found is None:
            return name, None
        layer, module, kind = found.groups()
        if self.experts is None or not module.startswith(EXPERTS):
            return f"{layer}{self.modules.get(module, module)}{kind}", None
        stored, expert = self.experts.find(module)
        return layer + stored, expert


def _in_place(name: str, place: tuple[str, str]) -> str:
    model, head = place
    return model + name.removeprefix("model.") if name.startswith("model.") else head + name.removeprefix("lm_head.")


def find_tensors(
    places: Mapping[str, StoredRows],
    shapes: Mapping[str, tuple[int, ...]],
    tensors: Mapping[str, StoredTensor],
    *,
    where: Path,
    described_in: str,
) -> dict[str, StoredTensor]:
    """Return each of `shapes`, also one that is a range of rows of a stored tensor; `places` are those of `locate`.

    `where` is what errors call the model, and `described_in` what says the shapes.

    Raises:
        ModelRefused: a tensor is missing or has a different shape.
    """
    found = {}
    for name, place in places.items():
        stored = place.name
        tensor, shape = tensors.get(stored), place.stored_shape(*shapes[name][1:])
        if tensor is None:
            raise rejected(f"{where} lacks the tensor {stored}, so it is incomplete; download the model again.")
        if tensor.shape != shape:
            raise rejected(
                f"{tensor.file}: {stored} has shape {list(tensor.shape)}; according to {described_in} it must be "
                f"{list(shape)}."
            )
        found[name] = tensor.rows(place.first, shapes[name][0])
    return found
