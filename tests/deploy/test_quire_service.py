"""The unit for systemd starts a server that accepts its command line, and stops and restarts it as its codes say."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from app.cli import EXIT_REFUSED, command_parser
from app.config.settings import ServerConfig
from tests.house.source import ROOT
from tools.supervise import Backoff

UNIT = ROOT / "deploy/quire.service"
PROGRAM = "/opt/quire/bin/quire"
NEW = ("RestartSteps", "RestartMaxDelaySec")
"""What only systemd 254 and later know."""
STOP_MARGIN_S = 15


def entries(section: str) -> dict[str, str]:
    """The assignments of a section; asserts that each name comes once."""
    text = UNIT.read_text(encoding="utf-8").split(f"[{section}]\n")[1].split("\n[")[0]
    pairs = [line.split("=", 1) for line in text.splitlines() if line and not line.startswith("#")]
    assert len({name for name, _ in pairs}) == len(pairs)
    return dict(pairs)


def test_systemd_finds_no_fault_in_the_unit(tmp_path: Path):
    systemd = shutil.which("systemd-analyze")
    if systemd is None:
        pytest.skip("no systemd on this machine")
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text(encoding="utf-8").replace(PROGRAM, sys.executable), encoding="utf-8")
    result = subprocess.run([systemd, "verify", str(unit)], capture_output=True, text=True)
    faults = [line for line in result.stderr.splitlines() if str(unit) in line]
    assert [line for line in faults if not any(name in line for name in NEW)] == []
    assert result.returncode == 0


def test_the_command_is_one_that_the_server_accepts():
    program, command, *arguments = entries("Service")["ExecStart"].split()
    assert (program, command) == (PROGRAM, "serve")
    assert command_parser(command)[0].parse(arguments).journal == "%S/quire/journal"


def test_only_mistakes_in_the_settings_keep_the_server_down():
    service = entries("Service")
    assert (service["Restart"], service["RestartPreventExitStatus"]) == ("on-failure", str(EXIT_REFUSED))
    assert entries("Unit")["StartLimitIntervalSec"] == "0"


def test_pauses_grow_as_those_of_make_serve():
    service, backoff = entries("Service"), Backoff()
    assert float(service["RestartSec"]) == backoff.first_s
    assert float(service["RestartMaxDelaySec"]) == backoff.longest_s
    assert backoff.first_s * 2.0 ** int(service["RestartSteps"]) >= backoff.longest_s


def test_a_stop_leaves_time_for_the_drain():
    service = entries("Service")
    assert float(service["TimeoutStopSec"]) == ServerConfig().drain_timeout + STOP_MARGIN_S
    assert service["KillMode"] == "mixed", "children may have to finish answers"


def test_nobody_else_reads_what_the_server_writes():
    service = entries("Service")
    assert (service["StateDirectory"], service["StateDirectoryMode"], service["UMask"]) == ("quire", "0700", "0077")


def test_nothing_is_locked_that_the_server_needs():
    """ProtectClock allows only the devices that are listed, as PrivateDevices does."""
    assert not entries("Service").keys() & {"MemoryDenyWriteExecute", "PrivateDevices", "ProtectClock", "ProcSubset"}
