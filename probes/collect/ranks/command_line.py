"""A command line fit to be shown and recorded: short, on one line, without secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Callable

from mltop.probes.collect.ranks.secret_names import is_harmless, is_number, is_switch, names_secret

MAX_CHARACTERS = 200
HIDDEN = "***"

# Shapes of well-known tokens: OpenAI, Hugging Face, GitHub, GitLab, Slack, AWS, JWT, Weights & Biases.
_SHAPES = re.compile(
    r"\b(?:sk-[\w-]{8,}|hf_\w{8,}|gh[pousr]_\w{8,}|github_pat_\w{8,}|glpat-[\w-]{8,}|xox[abpr]-[\w-]{8,}"
    r"|A(?:KIA|SIA)[A-Z0-9]{12,}|eyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?|[0-9a-f]{40})\b"
)
# "user:password@" up to the last "@", as passwords may hold "/" and "@"; and "token@".
_USER_INFO = re.compile(r"(?<=://)(?:[^\s/:]*:\S*|[^\s/]+)(?=@)")
# Begins where a word does: without that a long word costs the square of its length.
_ASSIGNMENT = re.compile(r"(?<![\w.-])([\w.-]+)(['\"\])]*\s*[=:]\s*)(?!//)('[^']*'|\"[^\"]*\"|[^\s'\"&,;)]+)")
_BEARER = re.compile(r"\b(bearer|basic)\s+\S+", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\s]+")
_PIECE = re.compile(r"'[^']*'|\"[^\"]*\"|\S+")
_PASSWORD = "-p"  # mysql, sshpass; elsewhere it often is a port, so numbers are shown
_ATTACHED = re.compile(r"-p=?([^-=].*)", re.DOTALL)


def shown_command(argv: list[str]) -> str:
    """The arguments joined, at most 200 characters, with ``***`` for what looks like a secret."""
    text = _CONTROL.sub(" ", " ".join(_without_values(argv, _cleaned))).strip()
    return text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 1] + "…"


def _without_values(arguments: Iterable[str], clean: Callable[[str], str]) -> list[str]:
    """The arguments, those that follow an option for secrets hidden, all others cleaned."""
    shown = []
    waiting = ""  # the option whose value comes next
    for argument in arguments:
        if waiting and argument == "--":
            shown.append(argument)
            continue
        if waiting and _is_value(waiting, argument):
            shown.append(clean(argument) if _may_be_shown(waiting, argument) else HIDDEN)
        else:
            shown.append(clean(argument))
        waiting = argument if _takes_secret(argument) else ""
    return shown


def _takes_secret(argument: str) -> bool:
    return argument == _PASSWORD or (argument.startswith("-") and names_secret(argument))


def _is_value(option: str, argument: str) -> bool:
    """A secret may begin with dashes, too; only after switches another option is the likelier reading."""
    if option == _PASSWORD:
        return not argument.startswith("-")
    return not (is_switch(option) and argument.startswith("--"))


def _may_be_shown(option: str, value: str) -> bool:
    return is_number(value) if option == _PASSWORD else is_harmless(option, value)


def _cleaned(argument: str) -> str:
    name, separator, value = argument.partition("=")
    if separator and names_secret(name):
        return argument if is_harmless(name, value) else f"{name}={HIDDEN}"
    if any(character.isspace() for character in argument):
        argument = _cleaned_script(argument)
    return _cleaned_word(argument)


def _cleaned_script(text: str) -> str:
    """The text of ``sh -c``: command lines inside one argument."""
    pieces = iter(_without_values(_PIECE.findall(text), _without_attached))
    return _PIECE.sub(lambda _: next(pieces), text)


def _without_attached(argument: str) -> str:
    attached = _ATTACHED.fullmatch(argument)
    return _PASSWORD + HIDDEN if attached and not is_number(attached.group(1)) else argument


def _cleaned_word(text: str) -> str:
    text = _BEARER.sub(lambda match: f"{match.group(1)} {HIDDEN}", _without_attached(text))
    text = _ASSIGNMENT.sub(_hidden_assignment, text)
    return _SHAPES.sub(HIDDEN, _USER_INFO.sub(HIDDEN, text))


def _hidden_assignment(match: re.Match[str]) -> str:
    name, separator, value = match.groups()
    if not names_secret(name) or is_harmless(name, value.strip("'\"")):
        return match.group(0)
    return f"{name}{separator}{HIDDEN}"
