"""Under which names a family stores its tensors, and where several are rows of one tensor."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
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

    Modules of the same stored name lie in that tensor one after the other, in the order of `tensor_shapes`.
    """

    modules: Mapping[str, str] = field(default_factory=dict)

    def locate(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, StoredRows]:
        """Return where each of the tensors in `ModelSpec.tensor_shapes` is stored."""
        num_stored: Counter[str] = Counter()
        firsts: dict[str, tuple[str, int]] = {}
        for name, shape in shapes.items():
            stored = self._stored(name)
            firsts[name] = (stored, num_stored[stored])
            num_stored[stored] += shape[0]
        return {name: StoredRows(stored, first, num_stored[stored]) for name, (stored, first) in firsts.items()}

    def _stored(self, name: str) -> str:
        found = _LAYER.fullmatch(name)
        if found is None:
            return name
        layer, module, kind = found.groups()
        return f"{layer}{self.modules.get(module, module)}{kind}"


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
