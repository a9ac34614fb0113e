"""`--help` against the program: what it offers is taken, what it says of defaults is so, its examples work."""

from __future__ import annotations

import inspect
import re
from importlib import import_module

import click
import pytest

from mltop.probes.investigate.probing.wanted import ProbeWanted
from mltop.probes.reach import UsageProblem
from mltop.probes.reach.targets import TargetOptions, expand, resolve
from mltop.probes.reach.targets.nodesets import split_user
from mltop.tui import cli as command_line
from mltop.tui.commands.options import INTERVAL_HELP, SETTINGS_ONLY, TIMEOUT_HELP

TARGETS = set(TargetOptions.__dataclass_fields__)
SETTINGS = {"named", *SETTINGS_ONLY}
GROUP = command_line.cli
PROBES = command_line.cli.commands["probe"]
assert isinstance(PROBES, click.Group)
# Each command that runs a module of its name in tui/commands.
OWN = [name for name in GROUP.commands if name not in ("lemon", "probe")]
RECORDED = {"snapshot", "check", "stacks"}


def offered(command: click.Command) -> set[str]:
    return {option.name or "" for option in command.params if not getattr(option, "hidden", False)}


@pytest.mark.parametrize("name", OWN)
def test_every_option_of_a_command_is_taken_by_what_it_runs(name: str) -> None:
    run = import_module(f"mltop.tui.commands.{name}").run
    assert offered(GROUP.commands[name]) - TARGETS - SETTINGS == set(inspect.signature(run).parameters) - {
        "options",
        "config",
    }


def test_every_option_of_the_screen_is_taken_by_it() -> None:
    run = import_module("mltop.tui.commands.screen").run
    assert offered(GROUP) - TARGETS - SETTINGS - {"version"} == set(inspect.signature(run).parameters) - {
        "options",
        "config",
    }


@pytest.mark.parametrize("name", PROBES.commands)
def test_every_option_of_a_probe_is_one_of_what_is_wanted_or_said(name: str) -> None:
    known = (
        set(ProbeWanted.__dataclass_fields__) | TARGETS | SETTINGS | {"as_json", "verbose", "torch_python", "script"}
    )
    assert offered(PROBES.commands[name]) <= known


def test_recordings_are_offered_where_they_can_be_looked_at() -> None:
    commands = {**GROUP.commands, **PROBES.commands, "": GROUP}
    assert {name for name, command in commands.items() if "recording" in offered(command)} == {*RECORDED, ""}
    (sentence,) = re.findall(r"\n\s+(.*) also take --recording", command_line.EPILOG)
    assert set(re.findall(r"\w+", sentence)) - {"and", "the", "screen"} == RECORDED


def test_a_recording_is_not_looked_at_beside_machines() -> None:
    for more in ({"nodes": ("n1",)}, {"hostfile": "hosts"}):
        with pytest.raises(UsageProblem, match="instead of machines"):
            resolve(TargetOptions(recording="run.jsonl", **more))  # type: ignore[arg-type]


def test_defaults_are_those_that_are_told() -> None:
    known = TargetOptions()
    assert f"(default: {known.interval_s:g})" in INTERVAL_HELP
    assert f"(default: {known.timeout_s:g};" in TIMEOUT_HELP
    for command in (*GROUP.commands.values(), *PROBES.commands.values()):
        for option in command.params:
            told = re.search(r"\(default: ([\w.-]+)\)", getattr(option, "help", None) or "")
            if told and option.name not in TARGETS:
                assert str(option.default) == told[1], f"{command.name} {option.name}"


def test_the_targets_that_are_shown_are_targets() -> None:
    (line,) = re.findall(r"^TARGETS: .*$", command_line.EPILOG, re.MULTILINE)
    assert expand(line.split()[2])[0] == "node01"
    (sets,) = re.findall(r"node sets and groups: (.*)\.\n", command_line.EPILOG)
    assert len(sets.split(", ")) == 4
    for text in sets.split(", "):
        _, names = split_user(text)
        assert text.startswith("@") or expand(names)


@pytest.mark.parametrize("command", ["demo", "lemon"])
def test_a_recording_before_a_command_that_has_no_use_for_it_is_refused(command: str) -> None:
    with pytest.raises(UsageProblem, match="--recording: is nothing to mltop"):
        command_line.cli.main(["--recording", "run.jsonl", command], standalone_mode=False)
