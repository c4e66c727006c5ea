"""The first token of a turn is a token, whatever comes before it."""

from benchmarks.kv_disk import TokenReader

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(text: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(text), text)


def test_a_heartbeat_is_no_token():
    reader = TokenReader()
    pieces = [b": \n", b'data: {"prompt_token_ids":[1,2],"token_ids":[]}\n\n', b'data: {"token_ids":', b"[7]}\n\n"]
    for now, piece in enumerate([HEAD, *map(chunk, pieces)]):
        assert reader.first_token_at is None
        reader.feed(piece, float(now))
    assert reader.first_token_at == 4.0 and reader.times[0] == 1.0
