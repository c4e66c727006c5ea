"""The fields of a text model that is a part of a larger one, and the names of its tensors."""

from __future__ import annotations

from collections.abc import Collection

from app.checkpoint.fields import Fields
from app.checkpoint.specs.family import Family
from app.checkpoint.tensor_names import TensorNames

PART_NAMES = TensorNames(
    places=(("language_model.model.", "language_model.lm_head."), ("model.language_model.", "lm_head."))
)
"""Where the text model is: in files of the publishers, and of some versions of transformers."""


def text_fields(fields: Fields, family: Family, tensors: Collection[str] | None) -> Fields:
    """Return the fields of a config.json that describe the text model, with the defaults of its family.

    `tensors` are the names in the files, None without weights: a part has an output layer of its own if they have one.

    Raises:
        ModelRefused: a part is not described.
    """
    if not family.is_text_only:
        return Fields({**family.defaults, **fields.config}, fields.where)
    text = fields.config.get("text_config")
    if not isinstance(text, dict):
        raise fields.rejection("text_config", f"is {text!r:.80}; it must be an object that describes the text model")
    config = {**family.defaults, **fields.config, **text, "architectures": fields.config["architectures"]}
    if tensors is not None:
        config["tie_word_embeddings"] = not any(name.endswith("lm_head.weight") for name in tensors)
    return Fields(config, f"{fields.where}: text_config")
