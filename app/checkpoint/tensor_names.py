"""Under which names a family stores its tensors, and where several are rows of one tensor."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

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
