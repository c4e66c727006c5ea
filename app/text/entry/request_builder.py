"""From prompts and parameters to requests of the engine: what all entries check and fill in alike, in one place.

    prompt ──encode, or ChatPrompt──▶ EncodedPrompt ──answer──▶ EngineRequest, and an AnswerPlan to read its answers
                                                    └─pooled──▶ EngineRequest of a vector

HTTP, quire.v1, `LLM` and the commands of the terminal build their requests here. What only servers have, such as limits
of one request for any model, are arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from app.contract.admission import MODELS_LENGTH, NO_OUTPUT_LIMIT, DefaultLength, OutputLimit, admit
from app.contract.engine_status import ModelInfo
from app.contract.errors import InvalidValue, UnsupportedParameter
from app.contract.requests import EngineRequest, Pooling, PoolingKind
from app.contract.sampling_params import SamplingParams
from app.text.answer.answer_demand import AnswerDemand
from app.text.answer.answer_plan import AnswerPlan
from app.text.entry.chat_prompt import EncodedPrompt
from app.text.entry.frontend import TextFrontend

# The step that computes the end of a prompt always samples a token, which is ignored.
_OF_VECTOR = SamplingParams(max_tokens=1, temperature=0, seed=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """When a request came, in monotonic seconds, how long it may take, and whose it is (see `EngineRequest`).

    It may wait for `queue_timeout` seconds until it starts, 0 or None for ever, and must be complete after `timeout`.
    """

    arrival_time: float
    queue_timeout: float | None = None
    timeout: float | None = None
    priority: int = 0
    tenant: str | None = None
    account: str = ""
    cache_salt: str | None = None

    def request(self, request_id: str, prompt: EncodedPrompt, params: SamplingParams, **fields: Any) -> EngineRequest:
        """Return a request with these terms; `params` are resolved, `fields` are those of `EngineRequest`."""
        return EngineRequest(
            request_id,
            tuple(prompt.token_ids),
            params,
            self.arrival_time,
            start_deadline=self.arrival_time + self.queue_timeout if self.queue_timeout else None,
            deadline=None if self.timeout is None else self.arrival_time + self.timeout,
            priority=self.priority,
            tenant=self.tenant,
            account=self.account,
            cache_salt=self.cache_salt,
            **fields,
        )


class PlannedRequest(NamedTuple):
    """A request, and how its answers are read; None if they are text alone."""

    request: EngineRequest
    plan: AnswerPlan | None


@dataclass(frozen=True, slots=True)
class RequestBuilder:
    """Builds requests for one model. Any thread.

    With `is_clamped` a larger `max_tokens` than fits is lowered. `most_tokens` limits answers whose requests name none.
    """

    text: TextFrontend
    model: ModelInfo
    is_clamped: bool = False
    most_tokens: int | None = None

    def encode(self, prompt: str | Sequence[int], *, adds_special_tokens: bool = True) -> EncodedPrompt:
        """Return a prompt as token ids, as which it may be given.

        Raises:
            InvalidValue: a text contains a lone surrogate.
            ContextLengthExceeded: a text has certainly too many tokens.
        """
        if not isinstance(prompt, str):
            return EncodedPrompt(prompt)
        tokenizer, limit = self.text.tokenizer, self.model.max_model_len
        tokenizer.check_num_chars(len(prompt), limit)
        return EncodedPrompt(tokenizer.encode(prompt, add_special_tokens=adds_special_tokens, max_tokens=limit))

    def encode_for_completion(self, prompt: str | Sequence[int], *, adds_special_tokens: bool = True) -> EncodedPrompt:
        """Encode a prompt that is to be completed, as `encode` does: see `TextFrontend.as_question`."""
        if isinstance(prompt, str):
            question = self.text.as_question(prompt, max_tokens=self.model.max_model_len)
            if question is not None:
                return EncodedPrompt(question)
        return self.encode(prompt, adds_special_tokens=adds_special_tokens)

    def admit(
        self,
        prompt: EncodedPrompt,
        params: SamplingParams,
        output: OutputLimit = NO_OUTPUT_LIMIT,
        length: DefaultLength = MODELS_LENGTH,
    ) -> SamplingParams:
        """Return the resolved parameters of an answer to a prompt, if the model can serve it (see `admission.admit`).

        Raises:
            InvalidValue, UnsupportedParameter, ContextLengthExceeded, KVCapacityExceeded: it cannot.
        """
        model = self.model if prompt.asks_for_thinking else self.model.without_thinking()
        length = replace(length, most=self.most_tokens)
        return admit(prompt.token_ids, params, model, output, is_clamped=self.is_clamped, length=length)

    def answer(
        self,
        request_id: str,
        prompt: EncodedPrompt,
        params: SamplingParams,
        demand: AnswerDemand,
        terms: Terms,
        *,
        output: OutputLimit = NO_OUTPUT_LIMIT,
        length: DefaultLength = MODELS_LENGTH,
    ) -> PlannedRequest:
        """Return the request for answers to one prompt. Its grammar must be leased before it is submitted.

        The requests of several prompts may have the same `demand`, whose grammar is made with the first one.

        Raises:
            InvalidValue, UnsupportedParameter, ContextLengthExceeded, KVCapacityExceeded: see `admit` and
                `AnswerDemand.rules`.
        """
        resolved = self.admit(prompt, params, output, length)
        rules = demand.rules(resolved, prompt.start)
        plan = AnswerPlan.of(self.text.answers, demand.schemas, prompt.start)
        shown = frozenset[int]() if plan is None else plan.shown_token_ids
        request = terms.request(
            request_id, prompt, resolved, grammar=rules.grammar, reasoning=rules.reasoning, shown_token_ids=shown
        )
        return PlannedRequest(request, plan)

    def pooling(self, kind: str | None, num_dimensions: int | None, *, is_normalized: bool) -> Pooling:
        """Return the vector that is wanted of prompts; None means the model's kind, and all its numbers.

        Raises:
            UnsupportedParameter: the device makes no vectors.
            InvalidValue: there is no such kind, or the vectors have fewer numbers.
        """
        if not self.model.reads_prompts:
            raise UnsupportedParameter("Embeddings are not supported on this device; they need a CPU.")
        if kind is not None and kind not in list(PoolingKind):
            raise InvalidValue(f"pooling is {kind!r:.40}; it must be mean or last.", param="pooling")
        largest = self.model.hidden_size
        if num_dimensions is not None and not 1 <= num_dimensions <= largest:
            raise InvalidValue(
                f"dimensions is {num_dimensions}; it must be between 1 and {largest}.", param="dimensions"
            )
        return Pooling(self.model.pooling if kind is None else PoolingKind(kind), num_dimensions, is_normalized)

    def pooled(self, request_id: str, prompt: EncodedPrompt, pooling: Pooling, terms: Terms) -> EngineRequest:
        """Return the request for the vector of a prompt.

        Raises:
            InvalidValue, ContextLengthExceeded, KVCapacityExceeded: see `admit`.
        """
        return terms.request(request_id, prompt, self.admit(prompt, _OF_VECTOR), pooling=pooling)
