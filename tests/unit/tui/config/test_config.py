"""The configuration file: what holds, where it comes from, and one line for each mistake."""

from __future__ import annotations

import os
import resource
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mltop.probes.judge.health.fleet import Health
from mltop.probes.judge.health.registry import ALL_RULES, RULE_OF
from mltop.probes.judge.health.rule import HOLD_KEY, Expectations
from mltop.tui.commands.config import answer, lines
from mltop.tui.config.effective import check_rules, check_screen, load, with_options
from mltop.tui.config.settings import RAMPS, Config, Named, Source
from mltop.tui.render import palette
from mltop.tui.state.lists import CHOICES, Chosen
from tests.builders.health_samples import node_h100
from tests.others import somebody_elses

TOKENS = [*"=[]{}.,'\"#\n -1", "theme", "interval", "ascii", "thresholds", "gpu.temp.margin", "columns", "gpus", "keys"]
TOKENS += [
    "targets",
    "sort",
    "true",
    "nan",
    "1e999",
    "2020-01-01",
    "hold_s",
    "dump",
    "\u202e",
    "\\u0007",
    "é",
    "= 1\n",
    "[thresholds]\n",
]

WHOLE = """\
theme = "light"
ramp = "grey"
interval = 2
ascii = true
mouse = false
terminal_title = false
auto_dump = "always"

[targets]
prod = "node[01-64]"
lab = { nodes = ["a", "b"], via = "ssh", user = "ada" }

[thresholds]
gpu.temp.margin = 8
"gpu.temp.margin.hold_s" = 30

[columns]
gpus = ["gpu", "temp", "sm"]

[sort]
ranks = "-pid"

[keys]
dump = ["x", "f12"]
"""


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLTOP_STATE_DIR", str(tmp_path / "state"))


def of(tmp_path: Path, text: str, **environ: str) -> Config:
    path = tmp_path / "config.toml"
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    return check_screen(check_rules(load(path, environ)))


def test_the_example_of_the_manual_holds_as_it_is(tmp_path: Path) -> None:
    manual = (files("mltop.tui") / "help" / "config.md").read_text()
    config = of(tmp_path, manual.partition("```toml\n")[2].partition("```")[0])
    assert config.mistakes == ()
    assert config.thresholds == {"gpu.temp.margin": 8.0, "gpu.temp.margin.hold_s": 30.0, "disk.full": 0.9}
    assert config.targets["lab"] == Named(("a", "b"), via="ssh", user="ada") and config.keys == {"dump": "t,f12"}


def test_groups_and_users_of_targets_are_left_to_who_uses_them(tmp_path: Path) -> None:
    config = of(tmp_path, "[targets]\nx = 'ada@n[1-2],n3'\ny = '@rack4'\nz = 'n[1-9]!@no-such-source:g'\n")
    assert config.mistakes == () and list(config.targets) == ["x", "y", "z"]


def test_without_a_file_all_are_defaults(tmp_path: Path) -> None:
    config = load(tmp_path / "none")
    assert config == Config()
    assert config.source("interval") == Source()


def test_everything_holds_and_says_where_it_comes_from(tmp_path: Path) -> None:
    config = of(tmp_path, WHOLE)
    assert config.mistakes == ()
    assert (config.theme, config.interval_s, config.ascii, config.mouse) == ("light", 2.0, True, False)
    assert (config.terminal_title, config.auto_dump) == (False, "always")
    assert config.targets == {"prod": Named(("node[01-64]",)), "lab": Named(("a", "b"), via="ssh", user="ada")}
    assert config.thresholds == {"gpu.temp.margin": 8.0, "gpu.temp.margin.hold_s": 30.0}
    assert (config.columns, config.sort) == ({"gpus": ("gpu", "temp", "sm")}, {"ranks": "-pid"})
    assert config.keys == {"dump": "x,f12"}
    path = tmp_path / "config.toml"
    for key, line in (("interval", 3), ("targets.lab", 11), ("thresholds.gpu.temp.margin", 14), ("columns.gpus", 18)):
        assert config.source(key) == Source("file", f"{path}:{line}"), key


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("intervall = 1", "1: there is no setting 'intervall', did you mean interval"),
        ("\ninterval = 'soon'", "2: interval must be a number, not text"),
        ("interval = 0.01", "interval must be between 0.1 and 3600 seconds"),
        ("interval = nan", "interval must be a number from 0 on"),
        ("interval = 1" + "0" * 400, "interval must be a number from 0 on"),
        ("interval = 2020-01-01", "interval must be a number, not a date or time"),
        ("ascii = 1", "ascii must be true or false, not a number"),
        ("ramp = 'red'", "ramp must be one of cold-hot, grey"),
        ("auto_dump = 'often'", "auto_dump must be one of ask, always, never"),
        ("theme = 'lihgt'", "theme: there is no theme 'lihgt', did you mean light"),
        ('theme = "a\\u0007"', "theme is too long or has characters that cannot be printed"),
        ("thresholds = 3", "thresholds must be a table: [thresholds]"),
        ("[thresholds]\ngpu.nope = 1", "2: thresholds.gpu.nope: there is no rule 'gpu.nope'"),
        ("[thresholds]\n'disk.full' = 85", "2: thresholds.disk.full: must be between 0 and 1"),
        ("[thresholds]\ngpu.lost = 1", "2: thresholds.gpu.lost: this rule has no single number to set"),
        ("[thresholds]\ngpu.lost.hold_s = 1", "2: thresholds.gpu.lost.hold_s: this rule has no hold time"),
        ("[thresholds]\ngpu.temp.margin = -1", "thresholds.gpu.temp.margin must be a number from 0 on"),
        ("[columns]\ngpus = ['sm', 'tmep']", "2: columns.gpus: there is no column 'tmep'"),
        ("[columns]\ngpu = ['sm']", "2: columns.gpu: there is no table 'gpu', did you mean gpus"),
        ("[columns]\ngpus = 'sm'", "2: columns.gpus must be a list of names in quotes"),
        ("[sort]\ngpus = '-tmep'", "2: sort.gpus: there is no column 'tmep'"),
        ("[keys]\ndmup = 't'", "2: keys.dmup: there is no action 'dmup', did you mean dump"),
        ("[keys]\ndump = 'a b'", "2: keys.dump: 'a b' is no key"),
        ("[keys]\ndump = 'ctrl+c'", "2: keys.dump: ctrl+c leaves mltop"),
        ("[keys]\ndump = 'k'", "2: keys.dump: k is the key of up: give that another one, too"),
        ("[keys]\nup = 't'", "2: keys.up: t is the key of dump: give that another one, too"),
        ("[targets]\nx = 3", "2: targets.x must be nodes in quotes, or a table"),
        ("[targets]\nx = { node = 'a' }", "2: targets.x has no option 'node'"),
        ("[targets]\nx = ''", "2: targets.x has an empty value"),
        ("[targets]\nx = { nodes = 'a', via = 'telnet' }", "2: targets.x via must be one of ssh, pdsh, srun, local"),
        ("[targets]\nx = 'node[1-'", "2: targets.x nodes 'node[1-': is not a node list"),
        ("[targets]\nx = { nodes = ['a', 'u@b;c'] }", "2: targets.x nodes 'b;c': is not a host name"),
        ("[targets]\nx = { nodes = 'a', user = 'a b' }", "2: targets.x --user 'a b': is no user's name"),
        ("[targets]\nx = { nodes = 'a', python = 'a\"b' }", "2: targets.x --python 'a\"b': "),
        ("[targets]\nx = { job = '12x' }", "2: targets.x --job '12x': is not a Slurm job id"),
        ("a = ", "invalid value (at end of document)"),
        ("x = [" + "[" * 5000, "config.toml"),
    ],
)
def test_a_mistake_is_one_line_and_the_default_holds(text: str, words: str, tmp_path: Path) -> None:
    config = of(tmp_path, text)
    (mistake,) = config.mistakes
    assert mistake.startswith(str(tmp_path / "config.toml")) and words in mistake and "\n" not in mistake
    assert replace(config, mistakes=(), sources={}, file_values={}) == Config()


def test_the_ramps_are_those_of_the_palette() -> None:
    assert tuple(palette.RAMPS) == RAMPS and Config().ramp == palette.RAMP
    assert len({tuple(palette.palette("true", True, ramp).styles["ramp-3"].color or ()) for ramp in RAMPS}) == 2


@settings(max_examples=300)
@given(st.lists(st.sampled_from(TOKENS), max_size=30).map("".join))
def test_whatever_the_file_says_mistakes_are_lines_and_nothing_fails(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = of(Path(folder), text)
    assert all("\n" not in mistake for mistake in config.mistakes)
    assert list(lines(config))


def test_what_is_right_beside_a_mistake_holds(tmp_path: Path) -> None:
    config = of(tmp_path, "ascii = 1\ninterval = 3\n[columns]\ngpus = ['nope']\nranks = ['pid']\n")
    assert (config.interval_s, config.columns, len(config.mistakes)) == (3.0, {"ranks": ("pid",)}, 2)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"interval = 1\n" + b"#" * (1 << 20)])
def test_what_is_no_text_or_too_much_is_one_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes(content)
    (mistake,) = load(tmp_path / "config.toml").mistakes
    assert str(tmp_path / "config.toml") in mistake


@pytest.mark.parametrize(
    "text",
    [
        "a" + ".a" * 500_000 + " = 1",
        "[" + "a." * 500_000 + "a]",
        "x = " + "{a = " * 200_000,
        "x = {" + "a." * 400_000 + "a = 1}",
        "x = " + "[" * 1_000_000,
        "x = " + "[[]," * 250_000,
        'x = """\n"""\ny = ' + "[" * 900_000,
    ],
    ids=["key", "header", "tables", "key in a table", "arrays", "arrays beside arrays", "after a string"],
)
def test_what_is_nested_too_deep_is_one_line_and_takes_no_memory(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("# one\n" + text)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (mistake,) = load(tmp_path / "config.toml").mistakes
    assert "config.toml:" in mistake and "nested more than" in mistake and "\n" not in mistake
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


def test_a_pipe_or_folder_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "is a pipe" in load(tmp_path / "pipe").mistakes[0]
    assert "is a directory" in load(tmp_path).mistakes[0]
    assert load(tmp_path / "config.toml" / "below").mistakes == ()


def test_a_file_that_others_may_write_to_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("interval = 3")
    path.chmod(0o666)
    config = load(path)
    assert config.interval_s == 1.0 and len(config.mistakes) == 1 and str(path) in config.mistakes[0]
    path.chmod(0o600)
    assert load(path).interval_s == 3.0


def test_root_uses_none_of_somebody_elses(tmp_path: Path) -> None:
    folder = somebody_elses(tmp_path)
    if os.geteuid() != 0:
        assert load(folder / "config.toml").mistakes == ()  # nobody else's is there to be found
        return
    path = folder / "config.toml"
    path.write_text("interval = 3")
    (mistake,) = load(path).mistakes
    assert "not used by root" in mistake and load(path).interval_s == 1.0


@pytest.mark.parametrize(("word", "on"), [("1", True), ("yes", True), ("0", False), ("", False)])
def test_the_environment_counts_more_than_the_file(word: str, on: bool, tmp_path: Path) -> None:
    config = of(tmp_path, f"ascii = {str(not on).lower()}", MLTOP_ASCII=word)
    assert (config.ascii, config.source("ascii")) == (on, Source("environment", "MLTOP_ASCII"))


def test_the_command_line_counts_most(tmp_path: Path) -> None:
    config = with_options(of(tmp_path, "interval = 3\nmouse = true"), {"interval_s": 5.0, "no_mouse": True})
    assert (config.interval_s, config.mouse) == (5.0, False)
    assert config.source("mouse").origin == config.source("interval").origin == "command line"


def test_what_was_chosen_on_the_screen_holds_until_the_file_says_something_else(tmp_path: Path) -> None:
    def choose(**over: object) -> None:
        screen = {"theme": Chosen("dark", **over), "sort.gpus": Chosen("-sm"), "columns.ranks": Chosen(["pid"])}
        CHOICES.change(lambda choices: replace(choices, screen=screen))

    choose()
    config = of(tmp_path, "interval = 1")
    assert (config.theme, config.sort, config.columns) == ("dark", {"gpus": "-sm"}, {"ranks": ("pid",)})
    assert config.source("theme").origin == "remembered"
    assert of(tmp_path, "theme = 'light'").theme == "light"
    choose(over="light")
    assert of(tmp_path, "theme = 'light'").theme == "dark"
    assert of(tmp_path, "").theme == ""


def test_what_is_remembered_and_makes_no_sense_is_left_out(tmp_path: Path) -> None:
    screen = {"theme": Chosen(3), "nothing": Chosen("x"), "columns.gpus": Chosen({}), "sort.gpus": Chosen(["x"])}
    CHOICES.change(lambda choices: replace(choices, screen=screen))
    assert replace(of(tmp_path, ""), sources={}) == Config()


def test_always_is_remembered(tmp_path: Path) -> None:
    CHOICES.change(lambda choices: replace(choices, dump_stalled=True))
    assert of(tmp_path, "").auto_dump == "always"
    assert of(tmp_path, "auto_dump = 'never'").auto_dump == "never"


def test_what_is_printed_is_a_file_that_says_the_same(tmp_path: Path) -> None:
    config = of(tmp_path, WHOLE)
    again = of(tmp_path, "\n".join(lines(config)))
    assert again.mistakes == ()
    assert again.thresholds.items() > config.thresholds.items()
    nothing: Mapping[str, object] = {}
    same = replace(again, thresholds=config.thresholds, sources=nothing, file_values=nothing)
    assert same == replace(config, sources=nothing, file_values=nothing)


def test_every_rule_can_be_set_or_is_named_as_one_that_cannot(tmp_path: Path) -> None:
    told = answer(of(tmp_path, WHOLE))
    keys = [entry["key"].removeprefix("thresholds.") for entry in told["settings"] if "thresholds" in entry["key"]]
    ids = {key.removesuffix(HOLD_KEY) for key in keys}
    assert ids | set(told["rules_without_number"]) == {rule.id for rule in ALL_RULES}
    assert ids.isdisjoint(told["rules_without_number"])
    margin = next(entry for entry in told["settings"] if entry["key"] == "thresholds.gpu.temp.margin")
    assert (margin["value"], margin["default"], margin["origin"]) == (8.0, 5.0, "file")


# Rules go by them.


def findings(thresholds: Mapping[str, float], left_c: float) -> list[tuple[str, list[str]]]:
    health = Health(Expectations(thresholds=thresholds))
    for at in range(0, 120, 5):
        sample = node_h100(1000.0 + at)
        for gpu in sample.gpus:
            gpu.temperature_margin_c = left_c
        health.see(sample)
    return [(one.id, one.evidence) for one in health.findings() if one.id == "gpu.temp.margin"]


def test_a_rule_fires_at_the_users_threshold_and_says_that_it_is_his() -> None:
    assert findings({}, 7.0) == []
    told = findings({"gpu.temp.margin": 8.0}, 7.0)
    assert told and "threshold set by you: 8 °C, for 60 s (default: 5 °C, for 60 s)" in told[0][1]
    assert findings({"gpu.temp.margin": 3.0}, 4.0) == []
    assert findings({}, 4.0) and "set by you" not in str(findings({}, 4.0))
    assert findings({"gpu.temp.margin.hold_s": 3600.0}, 4.0) == []


@pytest.mark.parametrize("rule", [rule for rule in ALL_RULES if rule.limit is not None], ids=lambda rule: rule.id)
def test_words_and_check_of_a_rule_take_one_number(rule) -> None:
    other = rule.at({rule.id: rule.limit.value / 2})
    assert str(other.limit) in other.fires_when and other.fires_when != rule.fires_when
    assert other.others == rule.usual and RULE_OF[rule.id] is rule


def test_what_has_no_number_is_named() -> None:
    listed = "\n".join(lines(Config()))
    assert "rules have no single number to set; mltop help rules says when they fire" in listed
    for rule in ALL_RULES:
        assert rule.id in listed, "either with its number, or among those that have none"
