"""Reads disassembled machine code of Hopper: what a program does before it waits for the kernel before.

Also from PTX the loads that may read stale data.
"""

import re

# One instruction of cuobjdump's listing, without its address: perhaps a predicate, a name, operands.
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?P<predicate>@!?U?P\w+\s+)?(?P<name>[A-Z][\w.]*)", re.MULTILINE)
WAIT, RELEASE = "ACQBULK", "PREEXIT"
PREFETCH = "CCTL.E.PF2"
# What may leave the straight line, or uses memory other than the kernel's arguments and its shared memory.
_JUMPS = ("BRA", "BRX", "JMP", "JMX", "CALL", "RET", "EXIT", "KILL", "BREAK", "BPT")
_ACCESSES = ("LD", "ST", "ATOM", "RED", "CCTL", "UTMA", "UBLK", "SULD", "SUST", "TEX", "TLD")
_ALLOWED = ("LDC", "LDS", "STS", "LDSM", PREFETCH)


def before_wait(code: str) -> list[str] | None:
    """The instructions before the wait that may end the program, pass the wait by or use memory; None without a wait.

    Code that has no other instruction before the wait waits on every path. A load that may keep what it has read
    before (LDG with CONSTANT) is listed wherever it is, and so is a wait that depends on a predicate.
    """
    found, has_waited = [], False
    for match in _INSTRUCTION.finditer(code):
        name = match["name"]
        base = name.partition(".")[0]
        if name.startswith("LDG") and "CONSTANT" in name.split("."):
            found.append(name)
        elif base == WAIT and not has_waited:
            has_waited = True
            found += [f"{match['predicate'].strip()} {name}"] if match["predicate"] else []
        elif not has_waited and (base in _JUMPS or (base.startswith(_ACCESSES) and not name.startswith(_ALLOWED))):
            found.append(name)
    return found if has_waited else None
