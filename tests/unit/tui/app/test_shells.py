"""`!`: on which nodes there is a shell, and what is started for it."""

from __future__ import annotations

import os

import pytest

from mltop.probes.agent.protocol import Hello
from mltop.probes.model import NodeState, Sample
from mltop.probes.reach.view import Connection, NodeView
from mltop.tui.app.hands import no_shell, shell_command

HERE = os.uname().nodename.partition(".")[0]
HELLO = Hello("1", 1, 7, "3.11", "n1", "x86_64")


def view(name: str, connection: Connection, simulated: bool = False) -> NodeView:
    return NodeView(NodeState(name, "live"), Sample(name, 1.0, simulated=simulated), connection)


@pytest.mark.parametrize(
    ("shown", "recorded", "why"),
    [
        (view("n1", Connection("ssh", hello=HELLO)), False, None),
        (view(HERE, Connection("local", hello=HELLO)), False, None),
        (view("n1", Connection("ssh", hello=HELLO)), True, "a recording has no machines"),
        (view("n1", Connection()), False, "n1 has not been reached yet"),  # "local" is what is not known yet
        (view("sim001", Connection("local", hello=HELLO), simulated=True), False, "sim001 is simulated"),
        (view("-oProxyCommand=x", Connection("ssh", hello=HELLO)), False, "is no name that ssh is given"),
        (view("a;reboot", Connection("ssh", hello=HELLO)), False, "is no name that ssh is given"),
        (view("$(id)", Connection("ssh", hello=HELLO)), False, "is no name that ssh is given"),
    ],
)
def test_no_other_machine_than_the_one_that_is_named(shown: NodeView, recorded: bool, why: str | None) -> None:
    told = no_shell(shown, recorded)
    assert told is None if why is None else told is not None and why in told


def test_what_is_started() -> None:
    assert shell_command("n1", "local", {"SHELL": "/bin/zsh"}) == ["/bin/zsh", "-l"]
    assert shell_command("n1", "pdsh", {})[-2:] == ["--", "n1"]
