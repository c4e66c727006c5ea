"""The plan says what the prefix cache may have on disk, and what that takes of memory."""

from __future__ import annotations

import json

from app import cli
from app.commands.budget import size
from app.config.setting import GIB, MIB
from tests.checkpoints import tiny


def planned(capsys, *options: str) -> str:
    assert cli.main(["plan", str(tiny("Llama")), *options]) == 0
    return capsys.readouterr().out


def test_the_plan_of_a_cpu_says_how_many_tokens_the_disk_holds(capsys):
    options = ("--ram", "64GiB", "--kv-disk-space", "1GiB")
    figures = json.loads(planned(capsys, *options, "--json"))
    block_bytes = figures["kv_bytes_per_token"] * figures["block_size"]
    num_tokens = figures["kv_disk_tokens"]
    assert num_tokens == GIB // block_bytes * figures["block_size"] > 0
    said = " ".join(planned(capsys, *options).split())
    assert f"{size(GIB)} of disk (--kv-disk): {num_tokens:,} more tokens, and up to {size(320 * MIB)} of RAM" in said


def test_the_plan_of_a_gpu_does_not(capsys):
    assert json.loads(planned(capsys, "--gpu", "h100", "--json"))["kv_disk_tokens"] == 0
    assert "--kv-disk" not in planned(capsys, "--gpu", "h100")
