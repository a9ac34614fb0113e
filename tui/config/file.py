"""The configuration file: where it lies, who may have written it, what it says, and on which line."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mltop.probes.system.files import BadFile, blocks, open_regular
from mltop.probes.system.writable import user_name, writer_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NAME = "config.toml"
MOST_BYTES = 1 << 20
_GROUP_WRITES, _OTHERS_WRITE = stat.S_IWGRP, stat.S_IWOTH
# A key as TOML writes it, bare or quoted, and several with dots between.
_KEY = r"""(?:[\w-]+|"[^"\n]*"|'[^'\n]*')"""
_KEYS = rf"{_KEY}(?:\s*\.\s*{_KEY})*"
_HEADER = re.compile(rf"\s*\[\[?\s*({_KEYS})\s*\]", re.ASCII)
_ENTRY = re.compile(rf"\s*({_KEYS})\s*=", re.ASCII)
_ONE = re.compile(_KEY, re.ASCII)
MOST_DEPTH = 16
# What nests, with strings and comments taken as a whole.
_NESTING = re.compile(
    r'"""(?:\\.|[^\\])*?"""|"(?:\\.|[^"\\\n])*"'
    r"|'''.*?'''|'[^'\n]*'|#[^\n]*|[\[\]{}.,=\n]",
    re.DOTALL,
)

KeyPath = tuple[str, ...]


class Unusable(Exception):
    """Nothing of the file holds; the message is one line with its path."""


@dataclass(frozen=True)
class Written:
    """What a file says: ``values`` as TOML has them, ``lines`` by the path of their keys."""

    path: Path
    values: Mapping[str, Any] = field(default_factory=dict)
    lines: Mapping[KeyPath, int] = field(default_factory=dict)

    def place(self, *keys: str) -> str:
        """E.g. "/home/ada/.config/mltop/config.toml:12"; without a line where it is not known."""
        for end in range(len(keys), 0, -1):
            if line := self.lines.get(keys[:end]):
                return f"{self.path}:{line}"
        return str(self.path)


def config_file(environ: Mapping[str, str] = os.environ) -> Path | None:
    """``$MLTOP_CONFIG``, else config.toml in mltop's folder of ``$XDG_CONFIG_HOME``; None where there is no home."""
    if chosen := environ.get("MLTOP_CONFIG"):
        return Path(chosen).absolute()
    import platformdirs

    try:
        folder = platformdirs.PlatformDirs("mltop").user_config_path
    except (RuntimeError, OSError):
        return None
    return folder / NAME if folder.is_absolute() else None


def read(path: Path | None) -> Written | None:
    """None where there is no such file. Raises Unusable: unreadable, somebody else's, or no TOML."""
    if path is None:
        return None
    try:
        text = _text(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except BadFile as problem:
        raise Unusable(f"{problem}; the defaults hold") from None
    except OSError as error:
        raise Unusable(f"{path}: {error.strerror}; the defaults hold") from None
    if line := _too_deep(text):
        raise Unusable(f"{path}:{line}: is nested more than {MOST_DEPTH} deep; the defaults hold")
    try:
        return Written(path, tomllib.loads(text), dict(_lines(text)))
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise Unusable(f"{path}: {why[:1].lower()}{why[1:]}; the defaults hold") from None


def _text(path: Path) -> str:
    """Raises BadFile and OSError."""
    if os.geteuid() == 0 and path.exists() and (writer := writer_of(str(path.absolute()))):
        raise BadFile(f"{path}: not used by root, {writer}")
    fd = open_regular(path)
    try:
        status = os.fstat(fd)
        if status.st_uid not in (0, os.geteuid()):
            raise BadFile(f"{path}: belongs to {user_name(status.st_uid)}, not to {user_name(os.geteuid())}")
        if status.st_mode & _OTHERS_WRITE or (status.st_mode & _GROUP_WRITES and os.geteuid() == 0):
            raise BadFile(f"{path}: others may write to it (chmod go-w)")
        content = b"".join(blocks(fd, MOST_BYTES, path))
    finally:
        os.close(fd)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise BadFile(f"{path}: is not UTF-8") from None


def _too_deep(text: str) -> int:
    """The line on which keys, arrays and tables nest too deep, 0 for none: parsing those takes memory by the square."""
    brackets = dots = 0
    for piece in _NESTING.finditer(text):
        mark = piece[0]
        brackets += (mark in ("[", "{")) - (mark in ("]", "}"))
        dots = dots + 1 if mark == "." else 0 if mark in ("\n", "=", ",") else dots
        if brackets + dots > MOST_DEPTH:
            return text.count("\n", 0, piece.start()) + 1
    return 0


def _lines(text: str) -> Iterator[tuple[KeyPath, int]]:
    """The path of each key and its line, from 1: tomllib tells neither. Of several the last counts."""
    table: KeyPath = ()
    for number, line in enumerate(text.splitlines(), 1):
        if match := _HEADER.match(line):
            table = _path(match[1])
            yield table, number
        elif match := _ENTRY.match(line):
            keys = _path(match[1])
            for end in range(1, len(keys) + 1):
                yield (*table, *keys[:end]), number


def _path(keys: str) -> KeyPath:
    return tuple(key.strip("\"'") for key in _ONE.findall(keys))
