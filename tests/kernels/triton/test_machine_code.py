"""What is not allowed before the wait is found in machine code."""

import pytest

from tests.kernels.triton.machine_code import before_wait

WAITING = ["LDC R1, c[0x0][0x28]", "S2R R9, SR_TID.X", "@!P0 CCTL.E.PF2 [R2]", "PREEXIT", "ACQBULK"]
WORKING = ["LDG.E.64 R8, desc[UR4][R4.64]", "@P0 EXIT", "STG.E desc[UR4][R2.64], R3", "BRA 0x100", "EXIT"]


def listing(*instructions: str) -> str:
    """As cuobjdump writes it, each instruction with its address and a second line with the rest of its encoding."""
    return "\tcode for sm_90\n\t\tFunction : _kernel\n" + "".join(
        f"        /*{16 * number:04x}*/                   {text} ;      /* 0x00000a00ff017b82 */\n"
        f"{72 * ' '}/* 0x000fc20000000800 */\n"
        for number, text in enumerate(instructions)
    )


def test_code_that_waits_first_may_then_use_memory_and_end():
    assert before_wait(listing(*WAITING, *WORKING)) == []


@pytest.mark.parametrize(
    ("early", "found"),
    [
        ("@!P1 EXIT", "EXIT"),
        ("@P0 BRA 0x230", "BRA"),
        ("LDG.E R8, desc[UR4][R4.64]", "LDG.E"),
        ("@P0 LDGSTS.E.BYPASS.128 [R7], desc[UR4][R4.64]", "LDGSTS.E.BYPASS.128"),
        ("LD.E R8, [R4.64]", "LD.E"),
        ("STG.E desc[UR4][R2.64], R3", "STG.E"),
        ("ATOMG.E.ADD.STRONG.GPU PT, R2, desc[UR4][R4.64], R7", "ATOMG.E.ADD.STRONG.GPU"),
        ("RED.E.ADD desc[UR4][R4.64], R7", "RED.E.ADD"),
        ("UTMALDG.2D [UR8], [UR4]", "UTMALDG.2D"),
    ],
)
def test_an_end_a_jump_or_an_access_before_the_wait_is_found(early, found):
    assert before_wait(listing(WAITING[0], early, *WAITING[1:], *WORKING)) == [found]


def test_a_wait_that_not_every_thread_does_is_found():
    assert before_wait(listing(*WAITING[:-1], "@P0 ACQBULK", *WORKING)) == ["@P0 ACQBULK"]


def test_a_load_through_the_read_only_cache_is_found_behind_the_wait():
    stale = "LDG.E.CONSTANT R8, desc[UR4][R4.64]"
    assert before_wait(listing(*WAITING, stale, *WORKING)) == ["LDG.E.CONSTANT"]


def test_code_without_a_wait_is_told_apart_from_code_that_waits_first():
    assert before_wait(listing(*WORKING)) is None
