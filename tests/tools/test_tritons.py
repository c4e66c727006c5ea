"""What another Triton makes of the kernels is told where it differs, and stopped where it fails a gate."""

from tools.tritons import KNOWN_SPILLS, OTHERS, differences, failures


def reports(**changes):
    """One kernel's report."""
    report = {"registers": 90, "shared": 0, "spill_loads": 0, "spill_stores": 0, "failures": [], **changes}
    return {("a product", "matmul._matmul_kernel", 90): report}


def test_only_what_differs_is_told():
    assert list(differences(reports(), reports())) == []
    assert list(differences(reports(), reports(registers=128, shared=16))) == [
        "  sm_90 matmul._matmul_kernel (a product): registers 90 -> 128, shared 0 -> 16"
    ]
    assert list(differences({}, reports())) == []


def test_a_gate_that_is_failed_is_told_but_for_known_spills():
    (other,) = OTHERS
    (arch, kernel), most = next(iter(KNOWN_SPILLS[other].items()))
    spilled = {"spill_loads": most, "failures": [f"spills: {most} loads, 0 stores"]}
    known = {("a draw", kernel, arch): next(iter(reports(**spilled).values()))}
    assert list(failures(other, known)) == []
    assert list(failures("3.6.0", known)) == [
        f"Triton 3.6.0, sm_{arch}, a draw: {kernel} spills: {most} loads, 0 stores"
    ]
    more = {("a draw", kernel, arch): next(iter(reports(**spilled, spill_stores=1).values()))}
    assert len(list(failures(other, more))) == 1
    both = known["a draw", kernel, arch] | {"failures": [*spilled["failures"], "takes too much shared memory"]}
    assert "takes too much" in next(failures(other, {("a draw", kernel, arch): both}))
    assert len(list(failures(other, reports(**spilled)))) == 1
