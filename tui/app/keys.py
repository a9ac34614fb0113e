"""Every pane once (screens are imported when they are first shown), the keys of the app, and how keys are written.

Help, key bar and palette are made from bindings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from textual.binding import Binding
from textual.keys import key_to_character
from textual.screen import Screen


@dataclass(frozen=True)
class PaneEntry:
    """``key`` is empty for panes that are only drilled into. ``screen`` is ``module:Class`` in tui/screens,
    ``of_several`` what takes its place where several nodes are watched.
    """

    name: str
    key: str
    what: str
    screen: str
    of_several: str = ""

    def load(self, several: bool) -> type[Screen[Any]]:
        module, _, name = ((several and self.of_several) or self.screen).partition(":")
        screen: type[Screen[Any]] = getattr(import_module(f"mltop.tui.screens.{module}"), name)
        return screen

    def make(self, several: bool) -> Screen[Any]:
        return self.load(several)()


PANES = (
    PaneEntry(
        "overview", "1", "GPUs and ranks, or all nodes", "node.screen:OverviewScreen", "overview.fleet:FleetScreen"
    ),
    PaneEntry("node", "2", "one node in detail", "node.screen:NodeScreen"),
    PaneEntry("ranks", "3", "all training ranks", "ranks.screen:RanksScreen"),
    PaneEntry("stacks", "4", "stacks of all ranks and the verdict", "stacks.screen:StacksScreen"),
    PaneEntry("links", "5", "network ports and PCI links of a node", "links.screen:LinksScreen"),
    PaneEntry("events", "6", "what happened: findings and kernel messages", "events.screen:EventsScreen"),
    PaneEntry("probes", "7", "active probes: how fast the hardware is", "probes.screen:ProbesScreen"),
    PaneEntry("incidents", "8", "incidents, one line per cause", "incidents.screen:IncidentsScreen"),
    PaneEntry("gpu", "", "one GPU in detail", "gpu.screen:GpuScreen"),
    PaneEntry("rank", "", "the stack of one rank", "ranks.screen:RankScreen"),
    PaneEntry("help", "", "all keys", "help.screen:HelpScreen"),
)


def named(bindings: Iterable[Binding]) -> list[Binding]:
    """Each with an id, by which the configuration gives it other keys: what it does, in a word ("mark_shown")."""
    return [replace(binding, id=binding.id or re.sub(r"\W+", "_", binding.description)) for binding in bindings]


ASKS = "; asks before it starts"
LEAVES = "leave; nothing on the machines is touched"
STUCK = "a job is stuck: "


def _key(keys: str, action: str, name: str, what: str, *, shown: bool = False, first: bool = False) -> Binding:
    """``shown``: in the key bar; ``first``: it counts before what the focused widget does with the key."""
    return Binding(keys, action, name, show=shown, priority=first, tooltip=what)


APP_BINDINGS = named(
    [
        *(_key(pane.key, f"pane('{pane.name}')", pane.name, pane.what, shown=True) for pane in PANES if pane.key),
        _key("t", "dump", "dump", "dump marked nodes, or all, and judge them; again: cancel", shown=True),
        _key("c", "capture", "capture", "write a capture directory of everything known"),
        _key("M", "probe('matmul')", "matmul", f"measure GEMMs on what is looked at, marked or all{ASKS}"),
        _key("A", "probe('all-reduce')", "all-reduce", f"measure collectives and find slow ranks{ASKS}"),
        _key("p", "pause", "pause", "stay at this moment, again: back to now; a recording: play, or stop"),
        _key("plus,equals_sign", "speed(1)", "faster", "a recording: faster, up to 64 times"),
        _key("minus", "speed(-1)", "slower", "a recording: slower, down to a quarter"),
        _key(
            "left_square_bracket",
            "step_time(-1)",
            "a moment back",
            "a second back in time; held: more and more",
            shown=True,
        ),
        _key("right_square_bracket", "step_time(1)", "a moment on", "a second on; held: more and more", shown=True),
        _key("left_curly_bracket", "jump_event(-1)", "event before", "to what happened before this moment"),
        _key("right_curly_bracket", "jump_event(1)", "next event", "to what happened next"),
        _key("end", "go_live", "now", "in the past: back to now", first=True),
        _key("home", "go_first", "first moment", "in the past: to the first moment that is kept", first=True),
        _key("r,ctrl+r,ctrl+l", "refresh_now", "refresh", "take the newest state and draw all again"),
        _key("R", "retry", "retry", "try nodes again that are lost or refused, now"),
        _key("escape", "go_back", "back", "to now, cancel, clear filter, go back, clear marks"),
        _key("colon,ctrl+p", "command_line", "command", "by name: all keys, :node sim030, :sort temp, :theme"),
        _key("question_mark,f1,h", "help", "help", "all keys; again: back", shown=True),
        _key("q", "quit", "quit", LEAVES, shown=True),
        _key("f10,ctrl+c,ctrl+q", "quit", "leave", LEAVES, first=True),
        _key("ctrl+z", "stop", "stop", "back to the shell until fg, as in top", first=True),
        _key("y", "answer_stall('once')", "dump once", f"{STUCK}dump it", first=True),
        _key("a", "answer_stall('always')", "always", f"{STUCK}dump it, and others from now on", first=True),
        _key("n", "answer_stall('no')", "no dump", f"{STUCK}do not dump it", first=True),
    ]
)

PANE_BINDINGS = named(
    [
        _key("slash,f3,f4", "filter", "filter", "show only rows that match", shown=True),
        _key("n", "next_match(1)", "next match", "to the next row that the filter shows"),
        _key("N", "next_match(-1)", "match before", "to the row before it"),
        _key("s,f6", "sort", "sort", "sort by the next column"),
        _key("S", "reverse", "reverse", "reverse the order"),
        _key("f2", "columns", "columns", "which columns this table has, and their order"),
        _key("f5", "tree", "tree", "processes as a tree"),
        _key("tab", "next_table", "next table", "to the next table of this pane"),
        _key("d", "describe", "describe", "all about what the cursor is on, as Enter"),
        _key("y", "copy", "copy", "copy what the cursor is on, the whole text"),
        _key("e", "export", "export", "write all of this pane into a JSON file here"),
        _key("l", "log", "log", "the log of what the cursor is on"),
        _key("exclamation_mark", "shell", "shell", f"a shell on this node{ASKS}"),
        _key("space", "mark", "mark", "mark the node under the cursor; again: unmark it"),
        _key("asterisk", "mark_shown", "mark shown", "mark all nodes that the filter shows"),
        _key("U", "unmark", "unmark", "unmark all nodes"),
        _key("D", "drain", "drain", "Slurm's drain line and exclude list of these nodes, to copy"),
        _key("I,T", "no_signal", "no signal", "nvitop's keys to kill: say which key asks"),
    ]
)

# Of the help: (title, kinds of actions). What is nowhere named belongs to its pane.
GROUPS = (
    ("Panes", ("pane", "command_line", "help", "go_back", "quit", "stop")),
    ("Move", ("cursor", "page", "half", "edge", "select", "describe", "next_match", "next_table")),
    ("Tables", ("filter", "sort", "reverse", "columns", "tree", "mark", "mark_shown", "unmark")),
    ("Time", ("pause", "step_time", "jump_event", "go_live", "go_first", "speed")),
    ("Act", ("dump", "capture", "probe", "drain", "shell", "retry", "answer_stall", "no_signal")),
    ("Keep", ("copy", "export", "log", "refresh_now")),
)


def kind_of(binding: Binding) -> str:
    """What it calls, without what it gives it."""
    return binding.action.partition("(")[0]


def action_names(bindings: Iterable[Binding]) -> dict[str, tuple[str, str]]:
    """What can be asked for by name: the id of each action, what runs it, and what it does."""
    wanted = [each for each in named(bindings) if kind_of(each) not in ("answer_stall", "command_line")]
    first = {each.action: each for each in reversed(wanted)}  # aliases of a key are other bindings of its action
    return {each.id or "": (each.action, each.tooltip) for each in reversed(first.values())}


def with_user_keys(bindings: Iterable[Binding], keys: Mapping[str, str]) -> list[Binding]:
    """The bindings with the keys that the configuration gives their actions, each of these once."""
    listed: dict[object, Binding] = {}
    for binding in bindings:
        chosen = keys.get(binding.id or "")
        listed.setdefault(binding.id if chosen else id(binding), replace(binding, key=chosen or binding.key))
    return list(listed.values())


def grouped(bindings: Iterable[Binding]) -> list[tuple[str, list[Binding]]]:
    """The bindings under the titles of GROUPS, in that order; what no group names is in the last."""
    of: dict[str, list[Binding]] = {title: [] for title, _ in GROUPS}
    for binding in bindings:
        kind = kind_of(binding)
        of[next((title for title, kinds in GROUPS if kind in kinds), GROUPS[-1][0])].append(binding)
    return list(of.items())


def configurable() -> set[str]:
    """The ids of all actions, also of those that only one pane has: all panes are loaded for it."""
    own = (binding for entry in PANES for binding in entry.load(several=True).__dict__.get("BINDINGS", []))
    return {binding.id or "" for binding in (*_everywhere(), *own)}


def _everywhere() -> list[Binding]:
    """What all panes have, moves too."""
    from mltop.tui.widgets.cell_view import MOVES

    return [*APP_BINDINGS, *PANE_BINDINGS, *Binding.make_bindings(MOVES)]


def held_by_others(action: str, keys: str, chosen: Mapping[str, str]) -> str:
    """Why an action that all panes have cannot be reached by one of these keys: another one has it; "" where it can.
    ``chosen``: the keys that the user gives to actions. Answers to questions have their keys only while they are asked.
    """
    for binding in with_user_keys(_everywhere(), chosen):
        if binding.id != action and kind_of(binding) not in ("answer_stall", "go_live", "go_first"):
            for key in set(keys.split(",")) & set(binding.key.split(",")):
                return f"{key_name(key)} is the key of {binding.id}: give that another one, too"
    return ""


_KEY = re.compile(r"(?:(?:ctrl|alt|shift)\+)*(?:[a-z]\w*|\S)", re.ASCII | re.IGNORECASE)


def wrong_key(action: str, keys: str) -> str:
    """Why these cannot be the keys of an action; "" where they can. Ctrl-C leaves, whatever else does."""
    words = keys.split(",")
    bad = next((word for word in words if not _KEY.fullmatch(word)), None)
    if bad is not None:
        return f"{bad!r} is no key (a letter, f5, ctrl+t, slash)"
    return "ctrl+c leaves mltop" if action != "quit" and "ctrl+c" in words else ""


_NAMES = {"escape": "Esc", "slash": "/", "plus": "+", "minus": "-", "pageup": "PgUp", "pagedown": "PgDn"}


def key_name(key: str) -> str:
    """How a key is written for people: ``ctrl+c`` is ``^C``, ``shift+tab`` is ``Shift+Tab``."""
    if key.startswith("ctrl+"):
        return "^" + key[5:].upper()
    if key.startswith("shift+"):
        return "Shift+" + key_name(key[6:])
    character = key_to_character(key) or ""
    return _NAMES.get(key) or (character if character.strip() and character.isprintable() else key.capitalize())


def key_names(binding: Binding) -> str:
    return " ".join(key_name(key.strip()) for key in binding.key.split(","))


def help_rows(bindings: Iterable[Binding]) -> list[tuple[str, str]]:
    """(keys, what they do) for every binding, those of one action on one line, in the order given."""
    by_action: dict[str, list[Binding]] = {}
    for binding in bindings:
        if not binding.system:
            by_action.setdefault(binding.action, []).append(binding)
    groups = by_action.values()
    return [(" ".join(map(key_names, group)), group[0].tooltip or group[0].description) for group in groups]
