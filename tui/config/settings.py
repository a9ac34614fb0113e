"""Every setting once: its key in the file, what it takes, what holds without it, and what it means."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Literal, get_args

from mltop.probes.reach import INTERVAL_S, UsageProblem
from mltop.tui.config.file import KeyPath

RAMP = "cold-hot"
RAMPS = (RAMP, "grey")  # as in render.palette, which commands that draw nothing do not load

AutoDump = Literal["ask", "always", "never"]
Origin = Literal["default", "file", "environment", "command line", "remembered"]

LEAST_INTERVAL_S, MOST_INTERVAL_S = 0.1, 3600.0
MOST_TEXT = 4096
HOLD = "hold_s"  # thresholds."gpu.temp.margin.hold_s"
NOTHING: Mapping[str, Any] = MappingProxyType({})


class Wrong(Exception):
    """Why a value is not taken, to be said behind its key."""


@dataclass(frozen=True)
class Source:
    """Where a value comes from. ``where``: of a file its path and line, of the environment the variable."""

    origin: Origin = "default"
    where: str = ""

    def __str__(self) -> str:
        return self.where or self.origin


@dataclass(frozen=True)
class Named:
    """What `mltop @name` stands for: the TARGETS options, () and "" where not given."""

    nodes: tuple[str, ...] = ()
    hostfile: str = ""
    job: str = ""
    via: str = ""
    python: str = ""
    user: str = ""


# What is taken of a value of the file. Each raises Wrong.


def text(value: object) -> str:
    if not isinstance(value, str):
        raise Wrong(f"must be text in quotes, not {kind_of(value)}")
    if len(value) > MOST_TEXT or not value.isprintable():
        raise Wrong("is too long or has characters that cannot be printed")
    return value


def flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise Wrong(f"must be true or false, not {kind_of(value)}")
    return value


def amount(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Wrong(f"must be a number, not {kind_of(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or number < 0:
        raise Wrong("must be a number from 0 on")
    return number


def interval(value: object) -> float:
    seconds = amount(value)
    if not LEAST_INTERVAL_S <= seconds <= MOST_INTERVAL_S:
        raise Wrong(f"must be between {LEAST_INTERVAL_S:g} and {MOST_INTERVAL_S:g} seconds")
    return seconds


def one_of(*choices: str) -> Callable[[object], str]:
    def take(value: object) -> str:
        if (chosen := text(value)) not in choices:
            raise Wrong(f"must be one of {', '.join(choices)}")
        return chosen

    return take


def names(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise Wrong("must be a list of names in quotes")
    return tuple(dict.fromkeys(map(text, value)))


def keys(value: object) -> str:
    """Keys of one action, as Textual takes them: "t,f7"."""
    return ",".join(names(value) if isinstance(value, list) else (text(value),))


def named(value: object) -> Named:
    """Nodes alone, or a table of options."""
    if isinstance(value, str):
        value = {"nodes": value}
    if not isinstance(value, dict):
        raise Wrong("must be nodes in quotes, or a table of nodes, hostfile, job, via, python and user")
    known = {option.name for option in fields(Named)}
    for key in value:
        if key not in known:
            raise Wrong(f"has no option {key!r} ({', '.join(sorted(known))})")
    given = {key: text(part) for key, part in value.items() if key != "nodes"}
    nodes = value.get("nodes", [])
    listed = names(nodes) if isinstance(nodes, list) and nodes else (text(nodes),) if nodes else ()
    if any(not part.strip() for part in (*listed, *given.values())) or not (listed or given):
        raise Wrong("has an empty value")
    targets = Named(nodes=listed, **given)
    _check_named(targets)
    return targets


def _check_named(targets: Named) -> None:
    """Raises Wrong for words that no command would take. Groups, jobs and host files are looked up when used."""
    from mltop.probes.reach.launchers import LAUNCHERS
    from mltop.probes.reach.targets import TargetOptions, check_words, expand, job_id, split_user

    try:
        check_words(TargetOptions(python=targets.python, user=targets.user))
        if targets.job:
            job_id(targets.job)
        for part in targets.nodes:
            _, rest = split_user(part)
            if "@" not in rest:
                expand(rest, "nodes")
    except UsageProblem as problem:
        raise Wrong(str(problem)) from None
    if targets.via and targets.via not in LAUNCHERS:
        raise Wrong(f"via must be one of {', '.join(LAUNCHERS)}")


def kind_of(value: object) -> str:
    kinds = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list", dict: "a table"}
    return kinds.get(type(value), "a date or time")


@dataclass(frozen=True)
class Setting:
    """``take``: checks and converts a value of the file; ``variable``: of the environment; ``option``: of the command
    line, as its values are called, one that ``flips`` means the opposite. ``key``: in the file; ``name``: the field of
    Config. ``table``: any number of keys, each with ``take``; ``deep``: dots are part of them ("gpu.temp.margin").
    """

    take: Callable[[object], Any]
    meaning: str
    variable: str = ""
    option: str = ""
    flips: bool = False
    key: str = ""
    name: str = ""
    table: bool = False
    deep: bool = False


def _set(default: Any, *about: Any, **more: Any) -> Any:
    return field(default=default, metadata={"setting": Setting(*about, **more)})


def _table(take: Callable[[object], Any], meaning: str, deep: bool = False) -> Any:
    return field(default_factory=dict, metadata={"setting": Setting(take, meaning, table=True, deep=deep)})


@dataclass(frozen=True)
class Config:
    """All settings that hold. ``columns`` and ``sort`` by table, ``keys`` by action, ``thresholds`` by rule ("ID") and
    hold time ("ID.hold_s"), ``targets`` by name. ``sources`` by key ("columns.gpus"): what is not there is a default.
    ``mistakes``: one line each. ``file_values``: what the file says of what the screen remembers, by key.
    """

    theme: str = _set("", text, "colours; empty: what suits the terminal")
    ramp: str = _set(RAMP, one_of(*RAMPS), f"colours of values in maps and meters: {', '.join(RAMPS)}")
    interval_s: float = _set(INTERVAL_S, interval, "seconds between samples", key="interval", option="interval_s")
    ascii: bool = _set(False, flag, "no character above 127", "MLTOP_ASCII", "ascii_only")
    mouse: bool = _set(True, flag, "clicks are mltop's; false: the terminal's", "", "no_mouse", flips=True)
    terminal_title: bool = _set(True, flag, "the terminal's title says what line 1 says")
    read_only: bool = _set(False, flag, "touch no process, load no machine", "MLTOP_READ_ONLY", "read_only")
    auto_dump: AutoDump = _set("ask", one_of(*get_args(AutoDump)), "dump a stuck job: ask, always, never")  # noqa: RUF009
    targets: Mapping[str, Named] = _table(named, "what `mltop @name` watches")
    thresholds: Mapping[str, float] = _table(amount, "limits and hold times of health rules, by their ids", deep=True)
    columns: Mapping[str, tuple[str, ...]] = _table(names, "which columns a table has, in their order")
    sort: Mapping[str, str] = _table(text, 'the column a table is sorted by; "-temp": the largest first')
    keys: Mapping[str, str] = _table(keys, "the keys of an action")
    sources: Mapping[str, Source] = field(default_factory=dict)
    mistakes: tuple[str, ...] = ()
    file_values: Mapping[str, object] = field(default_factory=dict)

    def source(self, key: str) -> Source:
        return self.sources.get(key, Source())


DEFAULTS = Config()
_ALL = [
    replace(one.metadata["setting"], name=one.name, key=one.metadata["setting"].key or one.name)
    for one in fields(Config)
    if "setting" in one.metadata
]
BY_KEY = {setting.key: setting for setting in _ALL}
SETTINGS = tuple(setting for setting in _ALL if not setting.table)
SECTIONS = tuple(setting for setting in _ALL if setting.table)


DEEPEST = 16  # tables in tables: nothing of ours is so deep


def flattened(values: Mapping[str, Any], path: KeyPath = ()) -> dict[str, tuple[object, KeyPath]]:
    """Values by their keys joined with dots, and the path of each: ``gpu.temp.margin = 8`` is three tables."""
    found: dict[str, tuple[object, KeyPath]] = {}
    for key, value in values.items():
        if isinstance(value, dict) and len(path) < DEEPEST:
            below = flattened(value, (*path, key))
            found.update({f"{key}.{name}": entry for name, entry in below.items()})
        else:
            found[key] = value, (*path, key)
    return found
