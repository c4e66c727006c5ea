"""Reads a Hugging Face config.json into a `ModelSpec`, and rejects unsupported models by the name of the field.

Without torch, so that an unsupported model is rejected before slow imports. Each family of models has a reader of its
own, in specs/.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from app.checkpoint.checkpoint_folder import Checkpoint, rejected
from app.checkpoint.fields import Fields
from app.checkpoint.spec import ModelSpec
from app.checkpoint.specs.family import Given
from app.checkpoint.specs.registry import find_family
from app.checkpoint.specs.text_part import text_fields
from app.checkpoint.stored_tensor import StoredTensor
from app.checkpoint.tensor_names import StoredRows, TensorNames, find_tensors
from app.checkpoint.tensor_types import DTYPES
from app.contract.errors import InvalidValue
from app.contract.sampling_defaults import MODELS_NAMES
from app.contract.sampling_params import SamplingParams


def read_model(
    checkpoint: Checkpoint, dtype: str = "auto", max_model_len: int | None = None
) -> tuple[Checkpoint, ModelSpec]:
    """Read the spec of a checkpoint, and return the checkpoint with its tensors under the names of `tensor_shapes`.

    If there are weights, names and shapes of its tensors are compared with the spec. `max_model_len` is the setting.

    Raises:
        ModelRefused: the architecture or one of its features is not supported; or a tensor is missing, or has a
            different shape or an unsupported type; or a router or an expert has tensors that it should not have.
    """
    whole = Fields(checkpoint.config, str(checkpoint.folder / "config.json"))
    family = find_family(whole)
    fields = text_fields(whole, family, checkpoint.tensors)
    given = Given(
        dtype=_read_dtype(fields, checkpoint, dtype),
        eos_token_ids=_read_eos(checkpoint, fields),
        defaults=_read_defaults(checkpoint),
        max_model_len=max_model_len,
    )
    spec = family.read(fields, given)
    if checkpoint.tensors is None:
        return checkpoint, spec
    found = _find_tensors(spec, family.names, checkpoint)
    return dataclasses.replace(checkpoint, tensors=checkpoint.tensors | found), spec


def _read_dtype(fields: Fields, checkpoint: Checkpoint, dtype: str) -> str:
    if dtype != "auto":
        return dtype
    stored = next((entry.type.name for entry in (checkpoint.tensors or {}).values()), "F32")
    named = fields.config.get("dtype") or fields.config.get("torch_dtype")
    named = named or next((name for name, code in DTYPES.items() if code == stored), stored)
    if not isinstance(named, str) or named not in DTYPES:
        raise fields.rejection("dtype", f"is {named!r}; choose --dtype float32, bfloat16 or float16")
    return named


def _read_eos(checkpoint: Checkpoint, fields: Fields) -> tuple[int, ...]:
    """Return the end-of-sequence ids of config.json, also of its text model, and of generation_config.json."""
    found, vocab_size = set[int](), fields.integer("vocab_size")
    generation = "generation_config.json", checkpoint.generation_config
    for file, source in (("config.json", checkpoint.config), ("config.json", fields.config), generation):
        value = source.get("eos_token_id")
        for token_id in value if isinstance(value, list) else [] if value is None else [value]:
            if not isinstance(token_id, int) or isinstance(token_id, bool) or not 0 <= token_id < vocab_size:
                raise rejected(
                    f"{checkpoint.folder / file}: eos_token_id is {value!r}; ids must be between 0 and "
                    f"{vocab_size - 1}."
                )
            found.add(token_id)
    return tuple(sorted(found))


def _read_defaults(checkpoint: Checkpoint) -> Mapping[str, float]:
    """Read the sampling defaults of generation_config.json; `do_sample: false` means greedy."""
    given = checkpoint.generation_config
    values = {name: given[name] for name in MODELS_NAMES if given.get(name) is not None}
    try:
        SamplingParams(**values)
    except InvalidValue as error:
        file = checkpoint.folder / "generation_config.json"
        raise rejected(f"{file}: {error.message} Correct or remove it.") from None
    return {**values, "temperature": 0.0} if given.get("do_sample") is False else values


def _find_tensors(spec: ModelSpec, names: TensorNames, checkpoint: Checkpoint) -> dict[str, StoredTensor]:
    """Return where each tensor of the spec is."""
    shapes, tensors = spec.tensor_shapes(), checkpoint.tensors or {}
    places = names.locate(shapes, tensors)
    found = find_tensors(places, shapes, tensors, where=checkpoint.folder, described_in="config.json")
    for name, entry in found.items():
        if entry.type.name not in DTYPES.values():
            raise rejected(
                f"{entry.file}: {places[name].name} has type {entry.type.name}; supported are "
                f"{', '.join(DTYPES.values())}."
            )
    if spec.experts is not None:
        _check_mixture(places, tensors)
    return found


def _check_mixture(places: Mapping[str, StoredRows], tensors: Mapping[str, StoredTensor]) -> None:
    """Refuse tensors of routers and experts that the config does not describe, and without which answers are wrong."""
    known = {place.name for place in places.values()}
    modules = {_module(place.name) for name, place in places.items() if ".mlp." in name}
    for name, tensor in tensors.items():
        if name not in known and _module(name) in modules:
            raise rejected(f"{tensor.file} contains the tensor {name:.200}, which config.json does not describe.")


def _module(name: str) -> str | None:
    """Return the module of a layer that a stored tensor is of, and the layer; None for one of no layer."""
    before, layers, rest = name.partition("layers.")
    return ".".join([before + layers, *rest.split(".")[:2]]) if layers else None
