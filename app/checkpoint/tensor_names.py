"""Under which names a family stores its tensors, and where several are rows of one tensor."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from app.checkpoint.checkpoint_folder import rejected
from app.checkpoint.stored_tensor import StoredTensor

_LAYER = re.compile(r"(model\.layers\.\d+\.)(.+)(\.weight|\.bias)")


class StoredRows(NamedTuple):
    """Where a tensor is: the name of the stored one, its first row there, and how many rows the stored one has."""

    name: str
    first: int
    num_stored: int


@dataclass(frozen=True, slots=True)
class TensorNames:
    """The stored names of a layer's modules, by their names in `ModelSpec.tensor_shapes`; others keep their name.

    Modules of the same stored name lie in that tensor one after the other, in the order of `tensor_shapes`. `places`
    are the prefixes that stand for `model.` and `lm_head.`; files have one of them.
    """

    modules: Mapping[str, str] = field(default_factory=dict)
    places: tuple[tuple[str, str], ...] = (("model.", "lm_head."),)

    def locate(self, shapes: Mapping[str, tuple[int, ...]], tensors: Collection[str] = ()) -> dict[str, StoredRows]:
        """Return where each of the tensors in `ModelSpec.tensor_shapes` is stored, among the names `tensors`."""
        place = next((place for place in self.places if f"{place[0]}embed_tokens.weight" in tensors), self.places[0])
        num_stored: Counter[str] = Counter()
        firsts: dict[str, tuple[str, int]] = {}
        for name, shape in shapes.items():
            stored = _in_place(self._stored(name), place)
            firsts[name] = (stored, num_stored[stored])
            num_stored[stored] += shape[0]
        return {name: StoredRows(stored, first, num_stored[stored]) for name, (stored, first) in firsts.items()}

    def _stored(self, name: str) -> str:
        found = _LAYER.fullmatch(name)
        if found is None:
            return name
        layer, module, kind = found.groups()
        return f"{layer}{self.modules.get(module, module)}{kind}"


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
    for name, (stored, first, num_stored) in places.items():
        tensor, shape = tensors.get(stored), (num_stored, *shapes[name][1:])
        if tensor is None:
            raise rejected(f"{where} lacks the tensor {stored}, so it is incomplete; download the model again.")
        if tensor.shape != shape:
            raise rejected(
                f"{tensor.file}: {stored} has shape {list(tensor.shape)}; according to {described_in} it must be "
                f"{list(shape)}."
            )
        found[name] = tensor.rows(first, shapes[name][0])
    return found
