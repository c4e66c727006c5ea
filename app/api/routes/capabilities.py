"""What the served model and this server can do, as `/v1/models` reports it."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from app.contract.engine_status import ModelInfo
from app.text.frontend import TextFrontend
from app.text.grammar.cache import GrammarCache


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What requests may ask for. `chat` needs a template of the model; completions always work."""

    chat: bool = False
    tools: bool = False
    reasoning: bool = False
    structured_output: bool = False
    embeddings: bool = False

    def fields(self) -> dict[str, bool]:
        """Return them as JSON fields."""
        return asdict(self)


def capabilities_of(text: TextFrontend, model_info: ModelInfo, grammars: GrammarCache) -> Capabilities:
    """Return what a model with its text frontend and its grammars can do. Any thread."""
    return Capabilities(
        chat=text.chat_template is not None,
        tools=text.answers.calls is not None,
        reasoning=text.answers.reasoning is not None,
        structured_output=grammars.is_supported,
        embeddings=model_info.reads_prompts,
    )
