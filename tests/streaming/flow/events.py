"""Events of a request `r`, for the tests of mailboxes."""

from app.contract.errors import ErrorInfo
from app.contract.events import ChoiceEnd, Finished, FinishReason, Timings, TokenDelta, Usage
from app.contract.packed_logprobs import Logprobs, TokenLogprobs

ERROR = ErrorInfo("engine_error", "broken")


def delta(first: int, text: str, choice: int = 0, count: int = 1, *, logprobs: bool = False) -> TokenDelta:
    ids = tuple(range(first, first + count))
    entries = Logprobs.of([TokenLogprobs(i, -1.0, 1, (), ()) for i in ids], 0) if logprobs else None
    return TokenDelta("r", choice, first, ids, text, entries)


def finished(choice: int = 0) -> Finished:
    return Finished("r", choice, ChoiceEnd(FinishReason.STOP), Usage(1, 1), Timings(0, 0, 0))
