"""The activations of a mixture of experts, as a part of the arena."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from app.checkpoint.spec import ExpertSpec
from app.kernels.ops import Routes


@dataclass(frozen=True, slots=True)
class ExpertRows:
    """Which experts compute the rows, and what their gates and ups make of them, a row for each pair."""

    routes: Routes
    activated_JF: Tensor

    @property
    def num_bytes(self) -> int:
        """Bytes of all of it, with the gaps after the rows."""
        routes = sum(int(getattr(self.routes, field.name).nbytes) for field in fields(self.routes))
        return routes + self.activated_JF.untyped_storage().nbytes()

    @classmethod
    def allocate(cls, experts: ExpertSpec, num_rows: int, stride: int, like: Tensor) -> ExpertRows:
        """Allocate for so many token rows; activations have the type and the device of `like`, and this stride."""
        num_pairs = num_rows * experts.per_token

        def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=like.device)

        routes = Routes(
            experts_TA=zeros(num_rows, experts.per_token),
            scores_TA=zeros(num_rows, experts.per_token, dtype=torch.float32),
            shared_T=zeros(num_rows, dtype=torch.float32),
            pairs_J=zeros(num_pairs),
            starts_E1=zeros(experts.count + 1),
        )
        return cls(routes, zeros(num_pairs, stride, dtype=like.dtype)[:, : experts.width])

    def first(self, num_rows: int) -> ExpertRows:
        """Return views of the first rows."""
        routes = self.routes.first(num_rows)
        return ExpertRows(routes, self.activated_JF[: len(routes.pairs_J)])
