"""Programs that tests put in front of the real ones, wherever they and their Python lie: paths may have spaces."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path


def shell_script(path: Path, *lines: str, **values: object) -> Path:
    """An executable of /bin/sh; ``{name}`` in a line is replaced by the value of that name, quoted."""
    words = {name: shlex.quote(str(value)) for name, value in values.items()}
    text = "\n".join(lines)
    for name, word in words.items():
        text = text.replace(f"{{{name}}}", word)
    return _executable(path, f"#!/bin/sh\n{text}\n")


def python_script(path: Path, code: str, options: str = "", python: Path | str = sys.executable) -> Path:
    """An executable of this Python. A shell looks for it: a "#!" line ends a path at its first space."""
    word = shlex.quote(str(python))
    return _executable(path, f"#!/bin/sh\n'''exec' {word} {options} \"$0\" \"$@\"\n' '''\n{code}")


def _executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path
