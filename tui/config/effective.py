"""The settings that hold: of the command line, the environment, the screen's memory, the file, else the default.

What was changed on the screen holds until the file says something else of it than it did then. Which rules, tables,
columns, themes and actions there are only others know, who are loaded where a command needs them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache, partial
from pathlib import Path
from typing import Any

from mltop.tui.config.file import Unusable, Written, config_file, read
from mltop.tui.config.settings import BY_KEY, NOTHING, SETTINGS, Config, Source, Wrong, flattened
from mltop.tui.state import BadState, NoHome
from mltop.tui.state.lists import CHOICES

Check = Callable[[str, Any], object]  # of a key and its value; raises Wrong

MOST_NAMED = 64


def check_rules(config: Config) -> Config:
    return _without(config, "thresholds", _threshold)


def check_tables(config: Config) -> Config:
    config = _without(config, "columns", _columns)
    return _without(config, "sort", lambda table, key: _columns(table, (key.removeprefix("-"),)))


def check_screen(config: Config) -> Config:
    """All that the screen needs, which has to be loaded for it."""
    config = _without(check_tables(config), "keys", partial(_keys, config.keys))
    if config.theme:
        from mltop.tui.app.looks import THEMES

        if config.theme not in THEMES:
            sources = {key: source for key, source in config.sources.items() if key != "theme"}
            why = unknown("theme", config.theme, THEMES)
            mistake = f"{config.source('theme')}: theme: {why}; the default holds"
            config = replace(config, theme="", sources=sources, mistakes=(*config.mistakes, mistake))
    return config


def known(what: str, name: str, names: Collection[str]) -> str:
    """Raises Wrong for a name that is none of these."""
    if name in names:
        return name
    raise Wrong(unknown(what, name, names))


def unknown(what: str, name: str, names: Collection[str]) -> str:
    close = get_close_matches(name, names, 1)
    listed = f" ({', '.join(sorted(names))})" if len(names) <= MOST_NAMED else ""
    return f"there is no {what} {name!r}" + (f", did you mean {close[0]}" if close else listed)


def _without(config: Config, section: str, check: Check) -> Config:
    """The section without what is wrong in it."""
    good, sources, mistakes = dict(getattr(config, section)), dict(config.sources), list(config.mistakes)
    for key, value in getattr(config, section).items():
        try:
            check(key, value)
        except Wrong as why:
            full = f"{section}.{key}"
            mistakes.append(f"{sources.pop(full)}: {full}: {why}; the default holds")
            del good[key]
    changed: dict[str, Any] = {section: good}
    return replace(config, **changed, sources=sources, mistakes=tuple(mistakes))


def _threshold(key: str, value: float) -> None:
    from mltop.probes.judge.health.registry import RULE_OF
    from mltop.probes.judge.health.rule import HOLD_KEY

    rule_id = key.removesuffix(HOLD_KEY)
    rule = RULE_OF[known("rule", rule_id, RULE_OF)]
    if key != rule_id:
        if not rule.hold_s:
            raise Wrong("this rule has no hold time")
    elif rule.limit is None:
        raise Wrong(f"this rule has no single number to set (it fires when: {rule.fires_when})")
    elif value > rule.limit.most:
        raise Wrong(f"must be between 0 and {rule.limit.most:g}")


def _columns(table: str, wanted: tuple[str, ...]) -> None:
    from mltop.tui.config.catalog import TABLES, column_keys, column_named

    columns = TABLES[known("table", table, TABLES)]
    for word in wanted:
        if column_named(columns, word) is None:
            known("column", word, column_keys(columns))


def _keys(chosen: Mapping[str, str], action: str, keys: str) -> None:
    from mltop.tui.app.keys import configurable, held_by_others, wrong_key

    known("action", action, configurable())
    if why := wrong_key(action, keys) or held_by_others(action, keys, chosen):
        raise Wrong(why)


OFF = ("", "0", "false", "no")  # of a variable that is a flag


@dataclass
class _Gathered:
    """What has been found so far. Later sources replace earlier ones."""

    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, Source] = field(default_factory=dict)
    mistakes: list[str] = field(default_factory=list)
    file_values: dict[str, object] = field(default_factory=dict)

    def take(self, key: str, value: object, source: Source) -> None:
        """``key``: as in ``sources``; one that is no setting is nothing. Raises Wrong."""
        table, _, name = key.partition(".")
        setting = BY_KEY.get(table)
        if setting is None or setting.table != bool(name):
            return
        if setting.table:
            self.values.setdefault(table, {})[name] = setting.take(value)
        else:
            self.values[setting.name] = setting.take(value)
        self.sources[key] = source


@cache
def effective(remembers: bool = True) -> Config:
    """Of this process: file, memory and environment. Read once; never raises. ``remembers`` as of ``load``."""
    return load(config_file(), os.environ, remembers)


def load(path: Path | None, environ: Mapping[str, str] = NOTHING, remembers: bool = True) -> Config:
    """``remembers``: with what was changed on the screen."""
    gathered = _Gathered()
    try:
        written = read(path)
    except Unusable as problem:
        gathered.mistakes.append(str(problem))
        written = None
    if written is not None:
        _take_file(gathered, written)
    if remembers:
        _take_memory(gathered)
    for setting in SETTINGS:
        if setting.variable and setting.variable in environ:
            on = environ[setting.variable].strip().lower() not in OFF
            gathered.take(setting.key, on, Source("environment", setting.variable))
    return Config(
        **gathered.values,
        sources=gathered.sources,
        mistakes=tuple(gathered.mistakes),
        file_values=gathered.file_values,
    )


def _take_file(gathered: _Gathered, written: Written) -> None:
    for key, value in written.values.items():
        setting = BY_KEY.get(key)
        if setting is None:
            gathered.mistakes.append(f"{written.place(key)}: {unknown('setting', key, BY_KEY)}")
        elif not setting.table:
            _take_value(gathered, key, value, written.place(key))
        elif not isinstance(value, dict):
            gathered.mistakes.append(f"{written.place(key)}: {key} must be a table: [{key}]; the default holds")
        else:
            entries = flattened(value) if setting.deep else {name: (part, (name,)) for name, part in value.items()}
            for name, (part, path) in entries.items():
                _take_value(gathered, f"{key}.{name}", part, written.place(key, *path))


def _take_value(gathered: _Gathered, key: str, value: object, place: str) -> None:
    """``key``: as in ``sources``."""
    try:
        gathered.take(key, value, Source("file", place))
    except Wrong as why:
        gathered.mistakes.append(f"{place}: {key} {why}; the default holds")
    else:
        gathered.file_values[key] = value


def _take_memory(gathered: _Gathered) -> None:
    try:
        choices = CHOICES.read()
    except NoHome:
        return
    except BadState as problem:
        gathered.mistakes.append(f"what was chosen earlier is not known: {problem}")
        return
    for key, remembered in choices.screen.items():
        if remembered.over == gathered.file_values.get(key):
            with suppress(Wrong):  # what does not suit any more is as if it had never been
                gathered.take(key, remembered.value, Source("remembered"))
    if choices.dump_stalled and "auto_dump" not in gathered.values:
        gathered.take("auto_dump", "always", Source("remembered"))


def with_options(config: Config, given: Mapping[str, Any]) -> Config:
    """With what was typed on the command line; what was not given is None or False."""
    values: dict[str, Any] = {}
    sources = dict(config.sources)
    for setting in SETTINGS:
        typed = given.get(setting.option) if setting.option else None
        if typed is None or typed is False:
            continue
        values[setting.name] = not typed if setting.flips else typed
        sources[setting.key] = Source("command line")
    return replace(config, **values, sources=sources)
