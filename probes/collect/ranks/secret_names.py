"""The one vocabulary of names that hold secrets: options, variables, keys of JSON, and locals of Python frames.

"--hf-token", "API_KEY", "dbPassword", "+trainer.logger.api_key", "X-Auth-Token", "PIN".
"""

from __future__ import annotations

import re

# fmt: off
# A secret wherever they stand in a name, also in the plural and at the end of a longer word ("hftoken").
_STRONG = (
    "token", "secret", "password", "passwd", "passphrase", "passcode", "credential", "cred", "jwt", "bearer",
    "authorization", "cookie", "apikey", "secretkey", "accesskey", "privatekey", "authkey", "accountkey", "sharedkey",
    "masterkey", "sessionkey", "signingkey", "encryptionkey", "sshkey",
)
# A secret only as the last word: "--key-frames" and "--pass-through" are harmless.
_LAST = frozenset((
    "pass", "pwd", "pw", "psw", "pswd", "passw", "key", "auth", "sas", "sig", "signature", "dsn", "userpwd", "dbpwd",
    "pin", "otp", "totp", "cvv", "cvc", "ssn", "salt", "login",
))
# After the last word that counts: "auth_header", "password_value", "key_b64", "key_2".
_FILLERS = frozenset((
    "value", "header", "headers", "string", "str", "text", "raw", "plain", "hex", "base64", "b64", "hash", "env",
))
_KINDS_OF_KEY = frozenset((
    "api", "access", "account", "private", "shared", "signing", "encryption", "master", "license", "storage", "secret",
))
_CONNECTIONS = (("connection", "string"), ("connection", "str"), ("conn", "string"), ("conn", "str"))
# With one of these in its name an option counts tokens or numbers them: its numbers are shown.
_COUNTING = frozenset((
    "tokens", "num", "max", "min", "n", "count", "number", "length", "len", "limit", "size", "budget", "per", "id",
    "idx", "index", "pos", "position", "total",
))
_SWITCHES = frozenset(("use", "no", "add", "with", "without", "enable", "disable", "skip", "allow", "is", "has"))
_PLAIN_VALUES = frozenset(("true", "false", "yes", "no", "on", "off", "none", "null"))
# fmt: on
_STRONG_ENDS = (*_STRONG, *(word + "s" for word in _STRONG))
_NOT_STRONG = frozenset(("sacred",))
_WORD_BREAK = re.compile(r"[\W_]+|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NUMBER = re.compile(r"[-+]?\d[\d.,:_]*(?:[eE][-+]?\d+)?[kKmMgG]?")


def names_secret(name: str) -> bool:
    """Whether what an option, a variable or a local of this name holds must not be shown."""
    words = _words(name)
    if any(_is_strong(word) for word in words):
        return True
    pairs = list(zip(words, words[1:]))
    if any(first in _KINDS_OF_KEY and second in ("key", "keys") for first, second in pairs):
        return True
    if any(pair in _CONNECTIONS for pair in pairs):
        return True
    while len(words) > 1 and (words[-1] in _FILLERS or words[-1].isdigit()):
        words.pop()
    return bool(words) and (words[-1].rstrip("0123456789") or words[-1]) in _LAST


def mentions_secret(name: str) -> bool:
    """Whether any word of it is one of a secret's, wherever it stands: "pin_step"."""
    return any(_is_strong(word) or word in _LAST for word in _words(name))


def is_switch(name: str) -> bool:
    """Whether an option may well stand alone ("--use-auth-token")."""
    return not _SWITCHES.isdisjoint(_words(name)[:1])


def is_harmless(name: str, value: str) -> bool:
    """Whether this value of a secret-sounding name is none: "--max-tokens 4096", "--use-token true"."""
    return value.lower() in _PLAIN_VALUES or (is_number(value) and _counts_tokens(_words(name)))


def is_number(value: str) -> bool:
    return _NUMBER.fullmatch(value) is not None


def _counts_tokens(words: list[str]) -> bool:
    """Of the strong words only tokens are also counted."""
    strong = {word for word in words if _is_strong(word)}
    return bool(strong) and strong <= {"token", "tokens"} and not _COUNTING.isdisjoint(words)


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORD_BREAK.split(name) if word]


def _is_strong(word: str) -> bool:
    return word not in _NOT_STRONG and word.rstrip("0123456789").endswith(_STRONG_ENDS)
