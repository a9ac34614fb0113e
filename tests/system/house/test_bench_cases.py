"""How the table of cases is played: several at a time, none of which sees another."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.bench import bench_cases
from tests.bench.cases.data import CASES

LOOK = """
import os, socket
listening = socket.create_server(("127.0.0.1", 29500))
seen = [name for name in os.listdir("/proc") if name.isdigit()]
print(os.getpid(), seen, len(socket.if_nameindex()) > 1, flush=True)
input()
"""


def test_cases_that_are_played_at_once_have_nothing_in_common() -> None:
    """Neither a port nor a process; and an interface beside the loopback, as a machine has."""
    with ExitStack() as ends:
        players = []
        for _ in range(2):
            network = ends.enter_context(bench_cases.own_network())
            ends.callback(network.kill)
            command = [*bench_cases.inside(network), sys.executable, "-c", LOOK]
            player = ends.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            ends.callback(player.kill)
            players.append(player)
        for player in players:
            assert player.stdout is not None
            assert player.stdout.readline() == "1 ['1'] True\n"


def test_the_table_keeps_its_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Crashes are played last, by themselves."""
    table = tmp_path / "table.md"
    names = ("several", "crashes", "reproductions")
    assert bench_cases.main([*names, "--at-once", "8", "--python", "/bin/false", "--markdown", str(table)]) == 0
    lines = [line for line in table.read_text().splitlines() if "not played" in line and line.startswith("| ")]
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines] == [
        case.name for case in CASES if case.group in names
    ]
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("not played ")]
    alone = [case.name for case in CASES if not case.apart]
    last = [line.removeprefix("not played ").strip() for line in printed[-len(alone) :]]
    assert last == alone
