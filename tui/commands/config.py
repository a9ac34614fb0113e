"""`mltop config`: the settings that hold, written as the file could say them, and where each comes from."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from textwrap import wrap
from typing import Any, NamedTuple

from mltop.probes.judge.health.registry import ALL_RULES
from mltop.probes.judge.health.rule import HOLD_KEY, Rule
from mltop.probes.judge.values import grouped
from mltop.probes.model import SCHEMA
from mltop.probes.reach.targets import TargetOptions
from mltop.tui.app.output import put, put_json
from mltop.tui.config.catalog import TABLES, column_keys
from mltop.tui.config.file import config_file
from mltop.tui.config.settings import DEFAULTS, SECTIONS, SETTINGS, Config, Named
from mltop.tui.exits import EXIT_FINE, EXIT_MISTAKES

MEANING_AT = 34  # columns: where comments begin
_BARE = re.compile(r"[\w-]+", re.ASCII)  # a key that needs no quotes


def run(options: TargetOptions, as_json: bool, config: Config) -> int:  # noqa: ARG001 - they are settings, too
    """Exit 0, or 1 where something in the file is wrong: that was said."""
    if as_json:
        put_json({"schema": SCHEMA, **answer(config)})
    else:
        for line in lines(config):
            put(line)
    return EXIT_MISTAKES if config.mistakes else EXIT_FINE


class Entry(NamedTuple):
    """``section``: "" of those that stand alone. ``about``: a meaning, or a unit."""

    section: str
    key: str
    value: object
    default: object = None
    about: str = ""

    @property
    def full_key(self) -> str:
        return f"{self.section}.{self.key}" if self.section else self.key


def entries(config: Config) -> Iterator[Entry]:
    for setting in SETTINGS:
        value, default = getattr(config, setting.name), getattr(DEFAULTS, setting.name)
        yield Entry("", setting.key, value, default, setting.meaning)
    for section in SECTIONS:
        if section.name != "thresholds":
            yield from (Entry(section.name, key, value) for key, value in getattr(config, section.name).items())
            continue
        for rule in sorted(ALL_RULES, key=lambda rule: rule.id):
            for key, usual in _numbers(rule).items():
                unit = "s" if key.endswith(HOLD_KEY) else rule.limit.unit if rule.limit is not None else ""
                yield Entry("thresholds", key, config.thresholds.get(key, usual), usual, unit)


def answer(config: Config) -> dict[str, Any]:
    """The same as data. ``settings``: [{key, value, origin, where, default}]."""
    settings = []
    for entry in entries(config):
        value = asdict(entry.value) if isinstance(entry.value, Named) else entry.value
        source = asdict(config.source(entry.full_key))
        settings.append({"key": entry.full_key, "value": value, **source, "default": entry.default})
    return {
        "file": str(config_file() or ""),
        "settings": settings,
        "rules_without_number": [rule.id for rule in ALL_RULES if not _numbers(rule)],
        "mistakes": list(config.mistakes),
    }


def lines(config: Config) -> Iterator[str]:
    yield f"# {config_file() or 'no home directory, so no file'}"
    by_section = grouped(entries(config), lambda entry: entry.section)
    yield from _lines(config, by_section[""])
    for section in SECTIONS:
        yield ""
        yield f"[{section.name}]  # {section.meaning}"
        yield from _lines(config, by_section.get(section.name, []))
        if section.name == "thresholds":
            others = [rule.id for rule in ALL_RULES if not _numbers(rule)]
            yield f"# {len(others)} rules have no single number to set; mltop help rules says when they fire:"
            yield from wrap(", ".join(sorted(others)), 110, initial_indent="#   ", subsequent_indent="#   ")
        elif section.name == "columns":
            others = [table for table in TABLES if table not in config.columns]
            yield from (f"# {table} = {_toml(column_keys(TABLES[table]))}" for table in others)


def _lines(config: Config, listed: Iterable[Entry]) -> Iterator[str]:
    for entry in listed:
        key = entry.key if _BARE.fullmatch(entry.key) else json.dumps(entry.key)
        is_other = entry.section == "thresholds" and entry.value != entry.default
        default = f", default {_toml(entry.default)}" if is_other else ""
        comment = f"{config.source(entry.full_key)}{default}; {entry.about}".rstrip("; ")
        yield f"{f'{key} = {_toml(entry.value)}':<{MEANING_AT}}  # {comment}"


def _numbers(rule: Rule) -> dict[str, float]:
    """Its limit and its hold time, by their keys, as they are without a configuration."""
    numbers = {rule.id: rule.limit.value} if rule.limit is not None else {}
    return {**numbers, **({rule.id + HOLD_KEY: rule.hold_s} if rule.hold_s else {})}


def _toml(value: object) -> str:
    """JSON's text, numbers and lists are TOML's, too."""
    if isinstance(value, Named):
        given = {key: part for key, part in asdict(value).items() if part}
        return "{ " + ", ".join(f"{key} = {_toml(part)}" for key, part in given.items()) + " }"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return json.dumps(list(value) if isinstance(value, tuple) else value)
