"""Answers: their times, which chunks count, and how an answer ends, for any split of its bytes."""

import pytest

from app.loadgen.answer import MAX_MESSAGE, Answer, AnswerReader, read_rejection
from tests.loadgen.fakes import (
    DONE,
    FINISH,
    chunked,
    content,
    event,
    http,
    make_answer,
    rejection,
    stream,
    text,
    usage,
)


def read(*pieces: bytes, cancel_after: int | None = None) -> Answer:
    """Read pieces that arrive at 1, 2, 3 ... s of a request that was sent at 0 s; then the connection ends."""
    answer = Answer(0.0, 0.0, 0.0)
    reader = AnswerReader(answer, cancel_after)
    reader.connected(0.5)
    for number, piece in enumerate(pieces, 1):
        if reader.is_over:
            break
        reader.feed(piece, float(number))
    reader.end(99.0)
    return answer


def summary(answer: Answer) -> tuple[str, int, int | None, int | None]:
    return answer.status, len(answer.times), answer.prompt_tokens, answer.output_tokens


def split(*events: bytes) -> list[bytes]:
    """A response without a length, one piece per event; the first one has the head."""
    return [b"HTTP/1.1 200 OK\r\n\r\n" + events[0], *events[1:]]


def test_chunks_have_the_arrival_time_of_their_bytes():
    answer = read(*split(text(), text("b") + text("c"), text(), FINISH, usage(5, 4), DONE))
    assert (answer.sent, answer.connected) == (0.0, 0.5)
    assert answer.times == [1.0, 2.0, 2.0, 3.0]
    assert answer.gaps == [1.0, 0.0, 1.0]
    assert answer.ended == 4.0, "the answer ends with the finish reason, before counts and [DONE]"
    assert summary(answer) == ("completed", 4, 5, 4)


@pytest.mark.parametrize("wire", [stream(), chunked(text("ä😀"), FINISH, DONE)])
def test_an_answer_is_the_same_for_any_split_of_its_bytes(wire):
    expected = summary(read(wire))
    assert expected[0] == "completed"
    for position in range(1, len(wire)):
        assert summary(read(wire[:position], wire[position:])) == expected
    assert summary(read(*(wire[position : position + 1] for position in range(len(wire))))) == expected


def test_a_truncated_stream_is_a_failure():
    """Unless only the bytes after the chunk with the finish reason are missing."""
    wire = chunked(text(), text(), FINISH, DONE)
    last = wire.index(b'"length"') + len(b'"length"}]}\n\n')
    for position in range(last):
        answer = read(wire[:position])
        assert (answer.status, answer.error, answer.ended) == ("failed", "cut", 99.0)
    for position in range(last, len(wire)):
        assert read(wire[:position]).status == "completed"


def test_a_role_does_not_count_as_a_chunk_but_reasoning_does():
    role = event([{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])
    thought = event([{"index": 0, "delta": {"reasoning_content": "hm"}, "finish_reason": None}])
    finish = event([{"index": 0, "delta": {}, "finish_reason": "stop"}])
    answer = read(*split(role, thought, content(), content("b", role="assistant"), finish, DONE))
    assert answer.times == [2.0, 3.0, 4.0]
    assert (answer.status, answer.ended) == ("completed", 5.0)


def test_heartbeats_do_not_count_as_chunks():
    answer = read(*split(b": \n", text(), b": ping\n\n", b"\n", text(), FINISH, DONE))
    assert answer.times == [2.0, 5.0]
    assert answer.status == "completed"


def test_without_usage_tokens_are_counted_as_chunks():
    answer = read(chunked(text(), text(), FINISH, DONE))
    assert summary(answer) == ("completed", 2, None, None)
    assert answer.num_output == 2


def test_with_continuous_usage_the_last_counts_are_used():
    counted = [event([{"text": "a"}], usage={"prompt_tokens": 3, "completion_tokens": count}) for count in (1, 2, 3)]
    assert summary(read(chunked(*counted, FINISH, DONE))) == ("completed", 3, 3, 3)


@pytest.mark.parametrize(
    ("details", "cached"),
    [
        ({"prompt_tokens_details": {"cached_tokens": 4}}, 4),
        ({"prompt_tokens_details": None}, 0),
        ({"prompt_tokens_details": ["?"]}, 0),
        ({"prompt_tokens_details": {"cached_tokens": "4"}}, 0),
    ],
)
def test_what_the_server_had_in_its_prefix_cache_is_counted(details, cached):
    counts = event(usage={"prompt_tokens": 5, "completion_tokens": 1, **details})
    assert read(chunked(text(), FINISH, counts, DONE)).cached_tokens == cached


def test_a_stream_without_done_can_be_completed():
    assert read(chunked(text(), FINISH)).status == "completed"


def test_an_answer_without_text_is_completed():
    answer = read(chunked(FINISH, usage(5, 1), DONE))
    assert summary(answer) == ("completed", 0, 5, 1)
    assert answer.ended == 1.0


def test_a_rejection_has_its_status_and_code():
    wire = rejection()
    for position in range(1, len(wire)):
        answer = read(wire[:position], wire[position:])
        assert (answer.status, answer.http_status) == ("failed", 503)
        assert (answer.error, answer.message) == ("503 overloaded", "Too many requests.")


def test_an_error_event_is_a_failure():
    answer = read(chunked(text(), b'data: {"error": {"message": "It broke.", "code": "engine_error"}}\n\n', DONE))
    assert (answer.status, answer.error, answer.message) == ("failed", "200 engine_error", "It broke.")
    assert len(answer.times) == 1


@pytest.mark.parametrize("body", [b"data: {\n\n", b"data: 3\n\n", b'data: {"choices": [null]}\n\n'])
def test_an_event_of_an_unexpected_shape_is_a_failure(body):
    answer = read(chunked(text(), body, text(), DONE))
    assert (answer.status, answer.error, len(answer.times)) == ("failed", "unreadable", 1)


def test_a_response_that_is_not_http_is_a_failure():
    assert read(b"220 mail.example ESMTP\r\n").error == "unreadable"


def test_a_body_that_is_not_a_stream_counts_as_truncated():
    assert read(http(b'{"choices": [{"text": "a"}]}')).error == "cut"


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_cancel_happens_after_its_chunk(after):
    answer = read(*split(text(), text(), text(), FINISH, DONE), cancel_after=after)
    assert (answer.status, len(answer.times)) == ("cancelled", after)
    assert answer.ended == max(after, 1)


def test_later_chunks_of_the_same_bytes_are_ignored_after_a_cancel():
    assert len(read(chunked(*[text()] * 5, FINISH, DONE), cancel_after=2).times) == 2


def test_an_answer_that_ends_before_its_cancel_is_completed():
    assert summary(read(stream(3), cancel_after=7)) == ("completed", 3, 5, 3)


def test_a_rejection_cannot_be_cancelled():
    assert read(rejection(), cancel_after=0).error == "503 overloaded"


@pytest.mark.parametrize(
    ("body", "name", "message"),
    [
        (b'{"error": {"message": "Busy.", "code": "overloaded", "type": "server_error"}}', "503 overloaded", "Busy."),
        (b'{"error": {"message": "Busy.", "code": null, "type": "busy"}}', "503 busy", "Busy."),
        (b'{"object": "error", "message": "Busy.", "code": 503}', "503", "Busy."),
        (b'{"error": "Busy.", "error_type": "overloaded"}', "503", "Busy."),
        (b'{"detail": "Busy."}', "503", "Busy."),
        (b"<html>\n <b>Busy</b>\n</html>", "503", "<html> <b>Busy</b> </html>"),
        (b"[1]", "503", "[1]"),
        (b"", "503", ""),
        (b"\xff", "503", "\ufffd"),
    ],
)
def test_every_shape_of_error_has_a_name_and_a_message(body, name, message):
    assert read_rejection(503, body) == (name, message)


def test_a_long_error_message_is_truncated():
    assert len(read_rejection(502, b"x" * 10_000).message) == MAX_MESSAGE


def test_times_are_counted_from_sending():
    answer = make_answer(10.0, (0.5, 0.6, 0.9), ended=11.0)
    assert answer.ttft == pytest.approx(0.5)
    assert answer.e2e == pytest.approx(1.0)
    assert answer.gaps == pytest.approx([0.1, 0.3])


def test_time_per_output_token_excludes_the_first_token():
    assert make_answer(0.0, (0.4, 1.0), output_tokens=4).tpot == pytest.approx(0.6 / 3)


@pytest.mark.parametrize("answer", [make_answer(times=(0.3,)), make_answer(times=(), ended=0.3, output_tokens=1)])
def test_one_token_has_no_time_per_output_token(answer):
    assert answer.tpot is None


def test_an_answer_without_text_has_an_end_but_no_first_token():
    answer = make_answer(1.0, (), ended=1.5)
    assert (answer.ttft, answer.gaps) == (None, [])
    assert answer.e2e == pytest.approx(0.5)


def test_without_usage_the_output_tokens_are_the_chunks():
    assert make_answer(output_tokens=None).num_output == 3
    assert make_answer(output_tokens=7).num_output == 7


def test_lateness_is_counted_from_when_a_request_could_be_sent():
    assert Answer(due=1.0, ready=3.0, sent=3.5).late == pytest.approx(0.5)


def test_only_an_open_answer_can_fail():
    answer = make_answer()
    answer.fail("cut", "it was cut", 9.0)
    assert (answer.status, answer.error, answer.ended) == ("completed", "", 0.4)
