"""What a state row on the device holds: int32 columns, some of them the bits of float32 numbers.

One int32 tensor `state_SW` [rows, width] has a row for each running sequence; row 0 pads and its position stays -1.
Its block table begins at column `TABLE`. Kernels take these columns as constants, so they are written once, here.
"""

from __future__ import annotations

import struct

# Where the sequence stands: its last known token, whose keys and values are not computed yet, and that one's position.
# Its length, the slots that the next step reads, is that position + 1: a column of its own could only disagree.
TOKEN = 0
POSITION = 1
# How it samples. `FLAGS` says which of the rest count.
FLAGS = 2
CHOICE = 3
SEED_LOW = 4
SEED_HIGH = 5
TEMPERATURE = 6  # float32; 0 is greedy, and below MIN_TEMPERATURE nothing else
TOP_K = 7  # 0: all
TOP_P = 8  # float32
MIN_P = 9  # float32
REPETITION = 10  # float32
PRESENCE = 11  # float32
FREQUENCY = 12  # float32
NUM_PROMPT = 13
MIN_TOKENS = 14
NUM_LOGPROBS = 15  # -1: none wanted; 0: the sampled token's own
NUM_BIASES = 16
NUM_ENDINGS = 17  # ids that may not be sampled before MIN_TOKENS tokens have been
BIAS_IDS = 32
MAX_BIASES = 304
BIASES = BIAS_IDS + MAX_BIASES  # float32
ENDINGS = BIASES + MAX_BIASES
MAX_ENDINGS = 128
TABLE = ENDINGS + MAX_ENDINGS

# Bits of FLAGS.
CHANGES_LOGITS = 1  # biases, penalties or a minimum length change the logits
PENALIZES = 2  # penalties: what has been in prompt and answer is counted
FILTERS = 4  # top-k, top-p or min-p
LOGPROBS = 8  # log-probabilities are wanted
MASKS = 16  # samples may have masks; the row has CHANGES_LOGITS too

# Sampled from a row of logits without any number. The row goes on with token 0, which is sent to no client.
NO_TOKEN = -1
# The same, where only the tokens that a mask allows have no number.
NO_ALLOWED_TOKEN = -2

MIN_TEMPERATURE = 1e-5

# A count of `seen_SV` (int16): twice the times that a token was in the answer, plus 1 if it was in the prompt.
SEEN_IN_PROMPT = 1
SEEN_ONCE = 2


def float_bits(value: float) -> int:
    """Return the int32 number with the bits of a float32 number."""
    number: int = struct.unpack("=i", struct.pack("=f", value))[0]
    return number


def row_width(max_blocks: int) -> int:
    """Return the columns of a state row with a block table of `max_blocks`, a multiple of 32."""
    return -(-(TABLE + max_blocks) // 32) * 32
