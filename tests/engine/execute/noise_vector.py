"""Fixed values of the sampling noise, which must never change."""

from __future__ import annotations

import math

# (seed, choice, position, token): (bits, noise). The last two are edge cases: a u that rounds to 1, and a tiny u.
NOISE_VECTOR = {
    (0, 0, 0, 0): (0x4181DBF0, 1.21887199),
    (0, 0, 0, 1): (0x2209FCAE, 1.94718027),
    (1, 0, 0, 0): (0xEB9F6940, -0.928517957),
    (0, 1, 0, 0): (0x7D68D176, 0.395845678),
    (0, 0, 1, 0): (0x0662CF8D, 3.67846831),
    (42, 0, 17, 49151): (0xD3DA51C3, -0.563976694),
    (2**64 - 1, 7, 2**31 - 1, 151935): (0x349EA294, 1.46924277),
    (-1, 7, 2**31 - 1, 151935): (0x349EA294, 1.46924277),
    (123456789, 3, 4096, 128000): (0xCD819CBF, -0.484478921),
    (42, 0, 332, 560): (0xFFFFFF9A, -math.inf),
    (42, 0, 28, 2363): (0x00000471, 15.1441215),
}
ULP = 2.0**-23
