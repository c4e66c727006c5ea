"""What a request takes of the KV cache, counted the other way round than admission does."""


def num_blocks_needed(num_prompt: int, max_slots: int, num_sequences: int, block_size: int) -> int:
    """The largest number of KV blocks that a request can hold.

    The prompt's full blocks count once, the blocks after them once per sequence. `max_slots` is the largest number of
    slots that one sequence uses, prompt included.
    """
    num_shared = num_prompt // block_size
    return num_shared + num_sequences * (-(-max_slots // block_size) - num_shared)
