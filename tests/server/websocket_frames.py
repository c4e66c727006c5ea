"""WebSocket frames of a client, valid and invalid."""

import struct

from websockets.frames import Opcode

QUIRE_V1 = b"Sec-WebSocket-Protocol: quire.v1"
TEXT = Opcode.TEXT


def frame(opcode: int, payload: bytes = b"", *, fin: bool = True, rsv: bool = False, mask: bool = True) -> bytes:
    """A frame, valid or not; its mask is all zeros, so that the payload is readable."""
    size = len(payload)
    length = struct.pack("!B", size | mask << 7) if size < 126 else struct.pack("!BH", 126 | mask << 7, size)
    return bytes([opcode | fin << 7 | rsv << 6]) + length + bytes(4 * mask) + payload
