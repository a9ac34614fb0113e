"""What only others can tell of the settings: which rules, tables, columns, themes and actions there are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from typing import Any

from mltop.tui.config.settings import Config, Wrong

Check = Callable[[str, Any], object]  # of a key and its value; raises Wrong

MOST_NAMED = 64


def check_rules(config: Config) -> Config:
    return _without(config, "thresholds", config.thresholds, _threshold) if config.thresholds else config


def check_tables(config: Config) -> Config:
    if config.columns:
        config = _without(config, "columns", config.columns, _columns)
    if config.sort:
        config = _without(config, "sort", config.sort, lambda table, key: _columns(table, (key.removeprefix("-"),)))
    return config


def check_screen(config: Config) -> Config:
    """All that the screen needs, which has to be loaded for it."""
    config = check_tables(config)
    if config.keys:
        config = _without(config, "keys", config.keys, partial(_keys, config.keys))
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


def _without(config: Config, section: str, entries: Mapping[str, Any], check: Check) -> Config:
    """The section without what is wrong in it."""
    good, sources, mistakes = dict(entries), dict(config.sources), list(config.mistakes)
    for key, value in entries.items():
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
