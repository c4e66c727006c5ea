"""Answers: their times by definition; which chunks count, and how an answer ends, wherever its bytes are split."""

import pytest

from app.loadgen.answer import MAX_MESSAGE, Answer, AnswerReader, read_refusal
from tests.loadgen.made import (
    DONE,
    FINISH,
    chunked,
    content,
    event,
    http,
    made_answer,
    refusal,
    stream,
    text,
    usage,
)


def read(*pieces: bytes, cancel_after: int | None = None) -> Answer:
    """Read pieces that came at 1, 2, 3 ... seconds of a request that was sent at 0; then the connection ends."""
    answer = Answer(0.0, 0.0, 0.0)
    reader = AnswerReader(answer, cancel_after)
    reader.connected(0.5)
    for number, piece in enumerate(pieces, 1):
        if reader.is_over:
            break
        reader.feed(piece, float(number))
    reader.end(99.0)
    return answer


def said(answer: Answer) -> tuple[str, int, int | None, int | None]:
    return answer.status, len(answer.times), answer.prompt_tokens, answer.output_tokens


def split(*events: bytes) -> list[bytes]:
    """Pieces of a body without a length, the head with the first event; a piece for each event."""
    return [b"HTTP/1.1 200 OK\r\n\r\n" + events[0], *events[1:]]


def test_chunks_have_the_time_of_their_bytes():
    answer = read(*split(text(), text("b") + text("c"), text(), FINISH, usage(5, 4), DONE))
    assert (answer.sent, answer.connected) == (0.0, 0.5)
    assert answer.times == [1.0, 2.0, 2.0, 3.0]
    assert answer.gaps == [1.0, 0.0, 1.0]
    assert answer.ended == 4.0, "the chunk that tells the end is the last; counts and [DONE] come after"
    assert said(answer) == ("completed", 4, 5, 4)


@pytest.mark.parametrize("whole", [stream(), chunked(text("ä😀"), FINISH, DONE)])
def test_bytes_may_be_cut_anywhere(whole):
    expected = said(read(whole))
    assert expected[0] == "completed"
    for place in range(1, len(whole)):
        assert said(read(whole[:place], whole[place:])) == expected
    assert said(read(*(whole[place : place + 1] for place in range(len(whole))))) == expected


def test_every_stream_that_ends_early_is_a_failure():
    """Unless all that is missing is what comes after the chunk that tells the end."""
    whole = chunked(text(), text(), FINISH, DONE)
    last = whole.index(b'"length"') + len(b'"length"}]}\n\n')
    for place in range(last):
        answer = read(whole[:place])
        assert (answer.status, answer.error, answer.ended) == ("failed", "cut", 99.0)
    for place in range(last, len(whole)):
        assert read(whole[:place]).status == "completed"


def test_a_role_is_no_chunk_and_reasoning_is():
    role = event([{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])
    thought = event([{"index": 0, "delta": {"reasoning_content": "hm"}, "finish_reason": None}])
    finish = event([{"index": 0, "delta": {}, "finish_reason": "stop"}])
    answer = read(*split(role, thought, content(), content("b", role="assistant"), finish, DONE))
    assert answer.times == [2.0, 3.0, 4.0]
    assert (answer.status, answer.ended) == ("completed", 5.0)


def test_heartbeats_are_no_chunks():
    answer = read(*split(b": \n", text(), b": ping\n\n", b"\n", text(), FINISH, DONE))
    assert answer.times == [2.0, 5.0]
    assert answer.status == "completed"


def test_without_counts_tokens_are_chunks():
    answer = read(chunked(text(), text(), FINISH, DONE))
    assert said(answer) == ("completed", 2, None, None)
    assert answer.num_output == 2


def test_counts_that_come_with_every_chunk_are_the_last_ones():
    counted = [event([{"text": "a"}], usage={"prompt_tokens": 3, "completion_tokens": count}) for count in (1, 2, 3)]
    assert said(read(chunked(*counted, FINISH, DONE))) == ("completed", 3, 3, 3)


def test_an_end_without_done_is_an_end():
    assert read(chunked(text(), FINISH)).status == "completed"


def test_an_answer_without_text_is_completed():
    answer = read(chunked(FINISH, usage(5, 1), DONE))
    assert said(answer) == ("completed", 0, 5, 1)
    assert answer.ended == 1.0


def test_a_refusal_is_told_by_status_and_code():
    whole = refusal()
    for place in range(1, len(whole)):
        answer = read(whole[:place], whole[place:])
        assert (answer.status, answer.http_status) == ("failed", 503)
        assert (answer.error, answer.message) == ("503 overloaded", "Too many requests.")


def test_an_error_in_the_stream_is_a_failure():
    answer = read(chunked(text(), b'data: {"error": {"message": "It broke.", "code": "engine_error"}}\n\n', DONE))
    assert (answer.status, answer.error, answer.message) == ("failed", "200 engine_error", "It broke.")
    assert len(answer.times) == 1


@pytest.mark.parametrize("body", [b"data: {\n\n", b"data: 3\n\n", b'data: {"choices": [null]}\n\n'])
def test_events_of_a_strange_shape_are_failures(body):
    answer = read(chunked(text(), body, text(), DONE))
    assert (answer.status, answer.error, len(answer.times)) == ("failed", "unreadable", 1)


def test_what_is_not_http_is_a_failure():
    assert read(b"220 mail.example ESMTP\r\n").error == "unreadable"


def test_a_body_that_is_no_stream_is_cut():
    assert read(http(b'{"choices": [{"text": "a"}]}')).error == "cut"


@pytest.mark.parametrize("after", [0, 1, 2])
def test_hanging_up_is_at_its_chunk(after):
    answer = read(*split(text(), text(), text(), FINISH, DONE), cancel_after=after)
    assert (answer.status, len(answer.times)) == ("cancelled", after)
    assert answer.ended == max(after, 1)


def test_chunks_that_come_together_do_not_outrun_the_hanging_up():
    assert len(read(chunked(*[text()] * 5, FINISH, DONE), cancel_after=2).times) == 2


def test_an_answer_that_ends_before_it_was_to_be_cancelled_is_completed():
    assert said(read(stream(3), cancel_after=7)) == ("completed", 3, 5, 3)


def test_a_refusal_cannot_be_cancelled():
    assert read(refusal(), cancel_after=0).error == "503 overloaded"


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
def test_every_shape_has_a_name_and_a_message(body, name, message):
    assert read_refusal(503, body) == (name, message)


def test_a_page_is_cut():
    assert len(read_refusal(502, b"x" * 10_000).message) == MAX_MESSAGE


def test_times_count_from_sending():
    answer = made_answer(10.0, (0.5, 0.6, 0.9), ended=11.0)
    assert answer.ttft == pytest.approx(0.5)
    assert answer.e2e == pytest.approx(1.0)
    assert answer.gaps == pytest.approx([0.1, 0.3])


def test_time_per_output_token_leaves_the_first_one_out():
    assert made_answer(0.0, (0.4, 1.0), output_tokens=4).tpot == pytest.approx(0.6 / 3)


@pytest.mark.parametrize("answer", [made_answer(times=(0.3,)), made_answer(times=(), ended=0.3, output_tokens=1)])
def test_one_token_has_no_time_per_token(answer):
    assert answer.tpot is None


def test_without_text_there_is_no_first_token_but_an_end():
    answer = made_answer(1.0, (), ended=1.5)
    assert (answer.ttft, answer.gaps) == (None, [])
    assert answer.e2e == pytest.approx(0.5)


def test_tokens_are_chunks_where_the_server_does_not_tell():
    assert made_answer(output_tokens=None).num_output == 3
    assert made_answer(output_tokens=7).num_output == 7


def test_late_is_later_than_it_could_be_sent():
    assert Answer(due=1.0, ready=3.0, sent=3.5).late == pytest.approx(0.5)


def test_only_what_is_open_can_fail():
    answer = made_answer()
    answer.fail("cut", "it was cut", 9.0)
    assert (answer.status, answer.error, answer.ended) == ("completed", "", 0.4)
