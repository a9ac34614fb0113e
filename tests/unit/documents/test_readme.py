"""README and the topics of `mltop help` against the program: their commands parse, their keys are bound, their numbers
and names are the program's.
"""

from __future__ import annotations

import re

import click
import pytest
from textual.binding import Binding

from mltop.probes.judge.health import registry
from mltop.probes.judge.health.registry import JOB_RULES
from mltop.probes.model import VERDICT_KINDS
from mltop.tui import cli as command_line
from mltop.tui import exits
from mltop.tui.app.keys import APP_BINDINGS, PANE_BINDINGS, PANES
from mltop.tui.commands import help as help_
from mltop.tui.filters import parse
from mltop.tui.render.states import DOING
from mltop.tui.screens.help.lines import own_bindings
from mltop.tui.screens.help.terms import TERMS
from mltop.tui.screens.overview.heatmap import Heatmap
from mltop.tui.widgets.cell_view import MOVES
from tests.documents import FOR_USERS, HELP, README, ROOT, codes, fenced_lines, links, table, text_of

TEXT = " ".join(map(text_of, FOR_USERS))
CODES = [code for document in FOR_USERS for code in codes(document)]
FENCED = [line for document in FOR_USERS for line in fenced_lines(document)]
KEYS = HELP / "keys.md"
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")

# In a fence two spaces or more end a command and begin what it does.
COMMANDS = [
    *(re.split(r"  +", line)[0] for line in FENCED if line.startswith("mltop")),
    *(code for code in CODES if re.match(r"(sudo )?mltop\b", code)),
]
OPTIONAL = re.compile(r"(?<= )\[([^\]]*)\]")  # [--json]; node[01-16] is a node set
# Placeholders that the user fills in.
EXAMPLES = {"…": "all-gather", "NODES": "n1", "N": "2", "DIR": "d", "FILE": "f", "PATH": "p", "GPU-UUID": "GPU-1"}
EXAMPLES |= {"PID": "1", "TOPIC": "hang"}


def arguments(command: str) -> list[str]:
    words = command.removeprefix("sudo ").split()[1:]
    return [EXAMPLES.get(word, word.partition("|")[0]) for word in words]


def parsed(args: list[str]) -> list[click.Context]:
    """The contexts of the command and of its subcommands; click.UsageError when it takes no such thing."""
    command: click.Command = command_line.cli
    contexts: list[click.Context] = []
    while True:
        contexts.append(command.make_context(command.name or "mltop", args, contexts[-1] if contexts else None))
        rest = [*getattr(contexts[-1], "_protected_args", []), *contexts[-1].args]
        if not isinstance(command, click.Group) or not rest:
            return contexts
        _, found, args = command.resolve_command(contexts[-1], rest)
        assert found is not None
        command = found


def test_there_are_commands_to_check() -> None:
    assert len(COMMANDS) > 20


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_parses(command: str) -> None:
    parsed(arguments(OPTIONAL.sub("", command)))
    parsed(arguments(OPTIONAL.sub(r"\1", command)))


@pytest.mark.parametrize("command", [command for command in COMMANDS if "|" in command])
def test_choices_are_the_options_own(command: str) -> None:
    whole = OPTIONAL.sub(r"\1", command)
    found = re.search(r"(--[\w-]+) (\S+\|\S+)", whole)
    assert found is not None
    option = next(one for one in parsed(arguments(whole))[-1].command.params if found[1] in one.opts)
    assert isinstance(option.type, click.Choice)
    assert list(option.type.choices) == found[2].split("|")


def all_commands(command: click.Command = command_line.cli) -> list[click.Command]:
    below = command.commands.values() if isinstance(command, click.Group) else ()
    return [command, *(found for one in below for found in all_commands(one))]


# Options of other programs.
FOREIGN = {"--exclude", "--overlap", "--cap-add", "--fast"}
FOREIGN |= {"--log-dir", "--redirects", "--tee", "--label", "--output"}  # of torchrun and srun


def test_every_option_that_is_named_exists() -> None:
    known = {name for command in all_commands() for option in command.params for name in option.opts} | {"--help"}
    typed = [*CODES, *(line for line in FENCED if line.startswith("mltop"))]
    named = {name for text in typed for name in re.findall(r"(?<![\w-])--[a-z][\w-]+", text)}
    assert len(named) > 12
    assert named - known - FOREIGN == set()


def test_every_command_is_named() -> None:
    for group in (command_line.cli, command_line.cli.commands["probe"]):
        assert isinstance(group, click.Group)
        for name in group.commands:
            assert re.search(rf"mltop ({group.name} )?{name}\b", TEXT), name


def test_ways_to_reach_nodes_are_the_options_own() -> None:
    via = next(option for option in command_line.cli.params if option.name == "via")
    assert isinstance(via.type, click.Choice)
    named = [cells[0].split("`")[1] for cells in table(HELP / "nodes.md", "--via")]
    assert sorted(named) == sorted(via.type.choices)


def test_every_verdict_is_in_the_table() -> None:
    assert sorted(cells[0] for cells in table(HELP / "hang.md", "verdict")) == sorted(
        [*(kind.upper() for kind in VERDICT_KINDS), "ENDED"]
    )


def test_every_state_is_explained() -> None:
    (states,) = [rows for title, rows in TERMS if title == "What a GPU or a rank does"]
    assert [word for word, _ in states] == [word for word, _ in DOING.values()]


def test_the_number_of_rules() -> None:
    (number,) = re.findall(r"(\d+) rules\b", TEXT)
    assert int(number) == len(registry.RULES) + len(JOB_RULES)


def test_exit_codes() -> None:
    """Each number with what it means, where the numbers come from."""
    meaning = {int(code): words for code, words in table(HELP / "exit-codes.md", "code")}
    assert list(meaning) == [0, 1, 2, 3, 70, 71, 74, 130, 141]
    assert {code for name, code in vars(exits).items() if name.startswith("EXIT_")} == meaning.keys()
    for code, words in (
        (exits.EXIT_WARNINGS, "a warning (`check`)"),
        (exits.EXIT_INCOMPLETE, "something is missing (`doctor`, `capture`, `record`)"),
        (exits.EXIT_SUSPECTS, "something is slow or wrong (`probe`)"),
        (exits.EXIT_EXPLAINED, "explained (`explain`)"),
        (exits.EXIT_USAGE, "bad usage"),
        (exits.EXIT_CRITICAL, "something critical"),
        (exits.EXIT_UNREACHABLE, "a node did not answer"),
        (exits.EXIT_UNKNOWN, "something could not be read"),
        (exits.EXIT_CANNOT_TELL, "the cause cannot be told (`explain`)"),
        (exits.EXIT_BUG, "a bug in mltop"),
        (exits.EXIT_LIMIT, "a limit of processes"),
        (exits.EXIT_OUTPUT, "standard output cannot be written"),
        (exits.EXIT_INTERRUPTED, "interrupted"),
    ):
        assert words in meaning[code]
    of_check = f"{exits.EXIT_WARNINGS} warnings, {exits.EXIT_CRITICAL} critical, {exits.EXIT_UNKNOWN} something unknown"
    assert f"exit {exits.EXIT_FINE} fine, {of_check}" in TEXT
    assert (
        f"Exit codes: 0 fine, {exits.EXIT_SUSPECTS} something is slow or wrong, "
        f"{exits.EXIT_UNREACHABLE} something was not measured, {exits.EXIT_INTERRUPTED} interrupted"
    ) in TEXT
    assert (
        f"Exit codes: {exits.EXIT_FINE} a good end or a stop from outside was seen, {exits.EXIT_EXPLAINED} "
        f"explained, {exits.EXIT_CANNOT_TELL} it cannot tell"
    ) in TEXT


# Keys

# Textual's names of keys that the table calls otherwise.
NAMED = {
    "arrows": ("up", "down", "left", "right"), "PgUp/PgDn": ("pageup", "pagedown"), "Enter": ("enter",),
    "Esc": ("escape",), "Space": ("space",), "Tab": ("tab",), "F1": ("f1",), "F9": ("f9",), "F10": ("f10",),
    "ctrl-p": ("ctrl+p",), "ctrl-c": ("ctrl+c",), "ctrl-z": ("ctrl+z",),
    "/": ("slash",), ":": ("colon",), "?": ("question_mark",),
    "F2": ("f2",), "F3": ("f3",), "F4": ("f4",), "F5": ("f5",), "F6": ("f6",), "!": ("exclamation_mark",),
    "ctrl-d": ("ctrl+d",), "ctrl-u": ("ctrl+u",), "Home": ("home",), "End": ("end",),
    "{": ("left_curly_bracket",), "}": ("right_curly_bracket",), "<": ("less_than_sign",), ">": ("greater_than_sign",),
    "*": ("asterisk",), "+": ("plus",), "-": ("minus",), "[": ("left_square_bracket",), "]": ("right_square_bracket",),
}  # fmt: skip


def keys_of(cell: str) -> list[str]:
    """ "`1`–`7`", "`:` or ctrl-p", "Enter / Esc", "`s` `S`"."""
    span = re.fullmatch(r"`(\d)`–`(\d)`", cell)
    if span:
        return [str(number) for number in range(int(span[1]), int(span[2]) + 1)]
    typed = re.findall(r"`(\S+)`", cell)
    words = [word for word in re.sub(r"`\S+`", "", cell).replace(",", " ").split() if word not in ("or", "/")]
    return [key for name in (*typed, *words) for key in NAMED.get(name, (name,))]


def listed_keys() -> list[str]:
    return [key for row in table(KEYS, "key") for cell in (row[0], row[2]) for key in keys_of(cell)]


def actions_by_key() -> dict[str, set[str]]:
    own = [binding for _, bindings in own_bindings() for binding in bindings]
    found: dict[str, set[str]] = {}
    for binding in Binding.make_bindings([*APP_BINDINGS, *PANE_BINDINGS, *MOVES, *Heatmap.BINDINGS, *own]):
        found.setdefault(binding.key, set()).add(binding.action)
    return found


def test_every_key_of_the_table_is_bound() -> None:
    listed = listed_keys()
    assert len(listed) > 30
    assert sorted(set(listed) - set(actions_by_key())) == []
    assert [key for key in set(listed) if listed.count(key) > 1] == []


def test_everything_that_a_key_does_is_in_the_table() -> None:
    """One key of each action; another one for the same need not be listed."""
    known = actions_by_key()
    told = {action for key in listed_keys() for action in known[key]}
    assert sorted(set().union(*known.values()) - told) == []


def test_the_panes_are_in_their_order() -> None:
    (words,) = (row[1] for row in table(KEYS, "key") if row[0].startswith("`1`"))
    assert words == ", ".join(pane.name for pane in PANES if pane.key)


# Names


def test_every_filter_expression_is_one() -> None:
    (paragraph,) = re.findall(r"Examples: (.*?)\. An unknown", text_of(KEYS))
    found = re.findall(r"`([^`]+)`", paragraph)
    assert len(found) > 7
    for expression in found:
        assert parse(expression).problem == "", expression


def sources() -> str:
    return "\n".join(path.read_text() for wing in ("probes", "tui") for path in (ROOT / wing).rglob("*.py"))


def test_every_environment_variable_is_one_that_is_read() -> None:
    named = {name for code in CODES for name in re.findall(r"\$?\b_?([A-Z]+(?:_[A-Z]+)+|WCOLL)\b", code)}
    named -= {"SYS_PTRACE", "WORLD_SIZE", "MLTOP_COMPLETE"}  # a capability, the job's own, click's
    assert "MLTOP_PROBE_PYTHON" in named
    text = sources()
    assert [name for name in sorted(named) if name not in text] == []


@pytest.mark.parametrize("target", links(README))
def test_every_link_leads_to_a_file(target: str) -> None:
    assert (ROOT / target).is_file()


def test_readme_is_one_page_that_leads_to_every_topic() -> None:
    assert len(README.read_bytes()) <= 10_000
    linked = {ROOT / target for target in links(README)}
    assert {help_.ROOT / path.relative_to(ROOT) for path in linked} >= set(help_.files().values())


def test_topics_link_to_nothing_and_name_only_topics() -> None:
    """A link leads nowhere where a topic is read: in a terminal."""
    assert [document.name for document in FOR_USERS if document != README and links(document)] == []
    named = set(re.findall(r"mltop help ([a-z][\w-]*)", TEXT))
    assert len(named) > 4
    assert named - set(help_.topics()) == set()


def test_the_number_of_cases() -> None:
    (number,) = re.findall(r"\[(\d+) jobs\]", TEXT)
    assert int(number) == len(table(ROOT / "tests" / "bench" / "CASES.md", "case"))


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        (
            r'^requires-python = ">=([\d.]+)"',
            "Linux, and Python {} or newer where you start it. Nodes need Python 3.9 or newer",
        ),
        (r'^torch = \["torch>=([\d.]+)"\]', "is needed on the nodes only, {} or newer"),
        (r'^license = "(.+)"', "{}. See [CONTRIBUTING.md]"),
    ],
)
def test_versions_are_those_of_the_project(wanted: str, sentence: str) -> None:
    (value,) = re.findall(wanted, PROJECT, re.MULTILINE)
    assert sentence.format(value) in TEXT
