"""A command line fit to be shown and recorded: short, on one line, without secrets.

What is shown is an allow-list of shapes (``shapes.is_plain``), whatever an option is called:

* names of options and variables; after a name that holds secrets (``secret_names``) no value but a count, yes or no;
* plain values: numbers, words, file names and paths, HOST:PORT, module names, lists and NAME=VALUE pairs of such;
* of a path the components that are plain; of JSON and of the code after ``-c`` the plain words and strings;
* of a URL scheme, host, port and the first part of the path (of a bucket's or a file's all plain parts); never the
  user, the query or the fragment;
* instead of everything else ``***``, and instead of what has the shape of a known token wherever it stands.

So a token, a random key and a passphrase are hidden under any name and without one. A password that looks as a plain
word is hidden only where a name tells it: no shape could.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from mltop.probes.collect.ranks.secret_names import names_secret
from mltop.probes.collect.ranks.values import (
    hidden_password,
    is_compound,
    is_interpreter,
    is_its_value,
    is_scheme,
    is_script_option,
    shown_assignment,
    shown_script,
    shown_secret,
    shown_value,
    takes_secret,
)
from mltop.probes.collect.shapes import HIDDEN, is_plain, masked

MAX_CHARACTERS = 200
_LOOKED_AT = 1000  # characters of one argument: strangers choose how long it is
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\s]+")
_NUMBER = re.compile(r"-\.?\d.*")
_OPTION = re.compile(r"--?[^\W\d][\w.-]*")


def shown_command(argv: Sequence[str]) -> str:
    """The arguments joined, at most 200 characters, with ``***`` for what may be a secret."""
    text = masked(" ".join(_shown([_cut(argument) for argument in argv])), blobs=False).strip()
    return text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 1] + "…"


def _cut(argument: str) -> str:
    """On one line, and not longer than what is worth looking at."""
    argument = argument if len(argument) <= _LOOKED_AT else argument[:_LOOKED_AT] + "…"
    return _CONTROL.sub(" ", masked(argument, blobs=False))


def _shown(argv: Sequence[str]) -> list[str]:
    shown: list[str] = []
    before = ""  # the option, or the name of a secret, whose value may come next
    for place, argument in enumerate(argv):
        if takes_secret(before) or (before and not before.startswith("-")):
            if argument == "--" or is_scheme(before, argument):
                shown.append(argument)
                continue
            if is_its_value(before, argument):
                shown.append(shown_secret(before, argument))
                before = argument if takes_secret(argument) else ""
                continue
        if place == 0:
            shown.append(_program(argument))
        elif is_script_option(before) and any(map(is_interpreter, argv[:place])):
            shown.append(shown_script(argument))
        else:
            shown.append(_argument(argument, before))
        before = argument if _expects(argument, before) else ""
    return shown


def _expects(argument: str, before: str) -> bool:
    """Whether the next argument is its value."""
    if argument.startswith("-"):
        return _OPTION.fullmatch(argument) is not None or takes_secret(argument)
    if not names_secret(argument):
        return False
    return argument.endswith(":") or (not before and is_compound(argument) and argument.isidentifier())


def _program(name: str) -> str:
    """A path; or a title, which programs write over all of their arguments."""
    return shown_script(name) if " " in name else shown_value(name)


def _argument(argument: str, before: str) -> str:
    """``before``: the option whose value it may be, "" for none."""
    attached = hidden_password(argument)
    if attached:
        return attached
    if argument.startswith("-") and not _NUMBER.fullmatch(argument):
        return _option(argument)
    return shown_assignment(argument) or shown_value(argument, before)


def _option(argument: str) -> str:
    assigned = shown_assignment(argument)
    if assigned:
        return assigned
    return argument if is_plain(argument) else HIDDEN
