"""A command line fit to be shown and recorded: short, on one line, without secrets."""

from __future__ import annotations

import re

MAX_CHARACTERS = 200
HIDDEN = "***"

# fmt: off
_SECRET_WORDS = frozenset((
    "token", "secret", "password", "passwd", "passphrase", "pass", "pwd", "pw", "credential", "credentials",
    "key", "apikey", "auth", "authorization", "bearer", "sas", "sig", "signature", "cookie", "dsn",
))
# fmt: on
_OPTION = re.compile(r"-{0,2}[+~]*[\w.-]+")
_WORD_BREAK = re.compile(r"[-_.]+|(?<=[a-z0-9])(?=[A-Z])")

# Shapes of well-known tokens: OpenAI, Hugging Face, GitHub, GitLab, Slack, AWS, JWT, Weights & Biases.
_SHAPES = re.compile(
    r"\b(?:sk-[\w-]{8,}|hf_\w{8,}|gh[pousr]_\w{8,}|github_pat_\w{8,}|glpat-[\w-]{8,}|xox[abpr]-[\w-]{8,}"
    r"|A(?:KIA|SIA)[A-Z0-9]{12,}|eyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?|[0-9a-f]{40})\b"
)
_USER_INFO = re.compile(r"(?<=://)[^/@\s:]*:[^/@\s]+(?=@)")
_ASSIGNMENT = re.compile(r"([\w.-]+)(['\"\])]*\s*[=:]\s*)(?!//)(?:'[^']*'|\"[^\"]*\"|[^\s'\"&,;)]+)")
_BEARER = re.compile(r"\b(bearer|basic)\s+\S+", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\s]+")


def shown_command(argv: list[str]) -> str:
    """The arguments joined, at most 200 characters, with ``***`` for what looks like a secret."""
    shown = []
    hide_next = False
    for argument in argv:
        if hide_next and not argument.startswith("--"):
            shown.append(HIDDEN)
            hide_next = False
            continue
        hide_next = argument.startswith("-") and _names_secret(argument)
        shown.append(_cleaned(argument))
    text = _CONTROL.sub(" ", " ".join(shown)).strip()
    return text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 1] + "…"


def _cleaned(argument: str) -> str:
    name, separator, _value = argument.partition("=")
    if separator and _names_secret(name):
        return f"{name}={HIDDEN}"
    text = _BEARER.sub(lambda match: f"{match.group(1)} {HIDDEN}", argument)
    text = _ASSIGNMENT.sub(_hidden_assignment, text)
    return _SHAPES.sub(HIDDEN, _USER_INFO.sub(HIDDEN, text))


def _hidden_assignment(match: re.Match[str]) -> str:
    name, separator = match.groups()
    return f"{name}{separator}{HIDDEN}" if _names_secret(name) else match.group(0)


def _names_secret(option: str) -> bool:
    """Whether the last word of an option's or variable's name names secrets ("--hf-token", "API_KEY")."""
    if not _OPTION.fullmatch(option):
        return False
    words = _WORD_BREAK.split(option.strip("-+~"))
    return bool(words) and words[-1].lower() in _SECRET_WORDS
