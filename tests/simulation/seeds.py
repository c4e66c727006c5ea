"""Seeds that once failed, each with what was wrong. They run for ever.

What a seed stands for is drawn in `scenario` and `workload`: who changes the drawing looks for new seeds.
"""

from __future__ import annotations

KEPT = {
    1: "a beam was planned a step ahead, with a token that only the search would choose",
    2: "copies of a prompt's last block were lost when the step had no tokens to compute",
    26: "beams sampled before their group lost its blocks were sampled again with a token too many",
    86: "the same, after a preemption",
    141: "copies were lost, and a beam read what a stranger had left in its block",
    288: "a fault of an older step left the restriction to a suspect in place for ever",
    871: "a beam whose sample came while its group was swapped was never sampled again",
    1638: "making room by swapping evicted the host blocks that had just been found for the newcomer",
    2094: "blocks found in the cache and held by a paused group were counted as free and as taken",
    2305: "a plan copied out to and in from one host block",
    3093: "a newcomer got fewer blocks than were counted, because a victim held some of them",
}
