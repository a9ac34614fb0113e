"""`mltop config`: the settings that hold, written as the file could say them, and where each comes from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from textwrap import wrap
from typing import Any

from mltop.probes.judge.health.registry import ALL_RULES
from mltop.probes.judge.health.rule import HOLD_KEY, Rule
from mltop.probes.model import SCHEMA
from mltop.probes.reach.targets import TargetOptions
from mltop.tui.app.output import put, put_json
from mltop.tui.config.catalog import TABLES, column_keys
from mltop.tui.config.file import config_file
from mltop.tui.config.settings import SECTIONS, SETTINGS, Config, Named

MEANING_AT = 34  # columns: where comments begin


def run(options: TargetOptions, as_json: bool, config: Config) -> int:  # noqa: ARG001 - they are settings, too
    """Exit 0, or 1 where something in the file is wrong: that was said."""
    if as_json:
        put_json({"schema": SCHEMA, **answer(config)})
    else:
        for line in lines(config):
            put(line)
    return 1 if config.mistakes else 0


def answer(config: Config) -> dict[str, Any]:
    """The same as data. ``settings``: [{key, value, origin, where, default}]."""
    entries: list[dict[str, Any]] = []
    default = Config()
    for setting in SETTINGS:
        entries.append(_entry(config, setting.key, getattr(config, setting.name), getattr(default, setting.name)))
    for rule in _settable():
        for key, usual in _numbers(rule).items():
            entries.append(_entry(config, f"thresholds.{key}", config.thresholds.get(key, usual), usual))
    for name in ("targets", "columns", "sort", "keys"):
        for key, value in getattr(config, name).items():
            entries.append(_entry(config, f"{name}.{key}", asdict(value) if name == "targets" else value, None))
    return {
        "file": str(config_file() or ""),
        "settings": entries,
        "rules_without_number": [rule.id for rule in ALL_RULES if not _numbers(rule)],
        "mistakes": list(config.mistakes),
    }


def _entry(config: Config, key: str, value: object, default: object) -> dict[str, Any]:
    source = config.source(key)
    return {"key": key, "value": value, "origin": source.origin, "where": source.where, "default": default}


def lines(config: Config) -> Iterator[str]:
    yield f"# {config_file() or 'no home directory, so no file'}"
    for setting in SETTINGS:
        yield _line(setting.key, getattr(config, setting.name), f"{config.source(setting.key)}; {setting.meaning}")
    for section in SECTIONS:
        yield ""
        yield f"[{section.name}]  # {section.meaning}"
        if section.name == "thresholds":
            yield from _thresholds(config)
        elif section.name == "columns":
            yield from _columns(config)
        else:
            for key, value in getattr(config, section.name).items():
                yield _line(_key(key), value, str(config.source(f"{section.name}.{key}")))


def _thresholds(config: Config) -> Iterator[str]:
    for rule in _settable():
        for key, usual in _numbers(rule).items():
            value = config.thresholds.get(key, usual)
            unit = "s" if key.endswith(HOLD_KEY) else rule.limit.unit if rule.limit is not None else ""
            default = f", default {_toml(usual)}" if value != usual else ""
            yield _line(_key(key), value, f"{config.source(f'thresholds.{key}')}{default}; {unit}".rstrip("; "))
    others = [rule.id for rule in ALL_RULES if not _numbers(rule)]
    yield f"# {len(others)} rules have no single number to set; mltop help rules says when they fire:"
    yield from wrap(", ".join(sorted(others)), 110, initial_indent="#   ", subsequent_indent="#   ")


def _columns(config: Config) -> Iterator[str]:
    for table, columns in TABLES.items():
        wanted = config.columns.get(table)
        if wanted is not None:
            yield _line(table, wanted, str(config.source(f"columns.{table}")))
        else:
            yield f"# {table} = {_toml(column_keys(columns))}"


def _settable() -> list[Rule]:
    return [rule for rule in sorted(ALL_RULES, key=lambda rule: rule.id) if _numbers(rule)]


def _numbers(rule: Rule) -> dict[str, float]:
    """Its limit and its hold time, by their keys, as they are without a configuration."""
    numbers = {rule.id: rule.limit.value} if rule.limit is not None else {}
    return {**numbers, **({rule.id + HOLD_KEY: rule.hold_s} if rule.hold_s else {})}


def _line(key: str, value: object, comment: str) -> str:
    return f"{f'{key} = {_toml(value)}':<{MEANING_AT}}  # {comment}"


def _key(key: str) -> str:
    return key if all(char.isalnum() or char in "-_" for char in key) and key.isascii() else json.dumps(key)


def _toml(value: object) -> str:
    """JSON's text, numbers and lists are TOML's, too."""
    if isinstance(value, Named):
        given = {key: part for key, part in asdict(value).items() if part}
        return "{ " + ", ".join(f"{key} = {_toml(part)}" for key, part in given.items()) + " }"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return json.dumps(list(value) if isinstance(value, tuple) else value)
