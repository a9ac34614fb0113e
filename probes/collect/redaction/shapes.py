"""What a text looks like: a token that is hidden wherever it stands, or a plain value that may be shown.

Two questions, asked of everything that strangers' processes say of themselves before it leaves the node:

``masked``: free text (a thread's name, a kernel line, a mount's device). Everything is shown but what has the shape of
a known token, of a private key, of a long random blob, and of a URL the user, the query and the fragment.

``is_plain``: a value of unknown meaning. Only what looks harmless is shown: numbers, sizes, dates and versions, words
(also several, joined by punctuation), class names, file names and paths of such words, HOST:PORT, module names.
Long words of mixed letters and digits, UUIDs and words with other characters are not plain. A password that is a word
looks as any other word: what such a value means has to be told by its name (``values.names_secret``).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from functools import lru_cache

HIDDEN = "***"

# Publicly known prefixes of tokens: OpenAI and Anthropic, Hugging Face, GitHub, GitLab, Slack, AWS, Google, NVIDIA,
# npm, PyPI, Docker, Stripe, Replicate, Groq, Together, Weights & Biases, LangSmith, SendGrid, Vault, DigitalOcean,
# Atlassian, Databricks, Telegram, age, Notion; JSON web tokens. After a prefix that functions have, too (hf_transfer),
# 16 letters and digits are needed, or a digit or capital among eight.
_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"sk-[\w-]{8,}|(?:sk|pk|rk)_(?:live|test)_\w{8,}|github_pat_\w{8,}|gh[oprsu]_\w{8,}"
    r"|(?:hf|gsk|r8|api_org)_(?:[A-Za-z0-9]{16,}|(?=[A-Za-z0-9]*[A-Z0-9])[A-Za-z0-9]{8,})"
    r"|(?:npm|secret)_[A-Za-z0-9]{30,}|(?:tgp_v1|wandb_v1|lsv2_(?:pt|sk))_[\w-]{8,}"
    r"|gl(?:pat|dt|rt|cbt|ptt|ft|soat|agent|imt|oas)-[\w-]{8,}|xox[a-z]-[\w-]{8,}|xapp-[\w-]{8,}"
    r"|A(?:KIA|SIA|BIA|CCA|GPA|IDA|IPA|NPA|NVA|PKA|ROA)[A-Z0-9]{12,}|AIza[\w-]{30,}|ya29\.[\w.-]{8,}"
    r"|nvapi-[\w-]{8,}|pypi-[\w-]{16,}|dckr_(?:pat|oat)_[\w-]{8,}|do[opr]_v1_\w{8,}|hv[sbr]\.[\w-]{8,}"
    r"|SG\.[\w-]{16,}\.[\w-]{16,}|ATATT[\w=-]{16,}|\d{8,10}:AA[\w-]{30,}|AGE-SECRET-KEY-\w+"
    r"|d(?:api|sapi|kea|ose)[0-9a-f]{16,}(?:-\d{1,3})?|(?:shp(?:at|ca|pa|ss)|rubygems|sgp|pul|phc|lin_api|GOCSPX)[_-]\w{16,}|dp\.[a-z]{2,5}\.\w{16,}"
    r"|eyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*){0,3}"
    r")"
)
_HASH = re.compile(r"(?<![A-Za-z0-9])[0-9a-f]{40}(?![0-9A-Za-z])")
_PRIVATE_KEY = re.compile(r"-----BEGIN [^-]{0,60}-----.*?(?:-----END [^-]{0,60}-----|\Z)", re.DOTALL)
_BEARER = re.compile(r"\b((?:[Bb]earer|BEARER)\s+|(?:[Bb]asic|BASIC)\s+(?=[\w.~+/-]*[A-Z0-9=]))[\w.~+/-]{8,}=*")
# Shorter ones have at least three numbers between their letters: "DeepseekV3ForCausalLM" is none.
_BLOB = re.compile(r"[A-Za-z0-9+/_=-]{32,}|(?<![A-Za-z0-9])(?=(?:[A-Za-z]*\d+[A-Za-z]+){3})[A-Za-z0-9]{20,}")
_LOOKED_AT = 4096  # characters: nothing here is for long texts, and strangers write them
_BLOB_BITS = 3.8  # per character; 32 random ones of base64 have 4.6, of hex 3.6
_URL = re.compile(r"[A-Za-z][\w+.-]*://[^\s'\"<>`]*")
# "user:password@" up to the last "@", as passwords may hold "/", "?" and "@"; and "token@".
_USER_INFO = re.compile(r"(?:[^/:]*:.*|[^/]*)(?=@)", re.DOTALL)
_ACCOUNT = re.compile(
    r"(?<![\w.:/@-])([A-Za-z_][\w.-]*:)(?!\d{1,5}@)[^\s:/'\"(),]+(?=@(?!sha256:)[\w\[])"
)  # without a scheme
_HOST_AND_PORT = re.compile(r"[\w.-]+:\d{1,5}[/?#]")
_QUERY = re.compile(r"[?#].*|;[\w.-]+=.*", re.DOTALL)

_LETTER = "[^\\W\\d_]|\ufffd"  # bytes of a path that are no UTF-8 count as letters
_PLAIN_CHARACTERS = re.compile(r"[\w\ufffd./,+@%~*?$:^{}-]*")
_SEPARATORS = re.compile(r"[./,+@%~*?$:^{}_-]+")
_GROUPS = re.compile(rf"\d+|(?:{_LETTER})+")
_REPEATED = re.compile(r"(.)\1{2,}")  # says nothing
_HUMPS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^A-Za-z]+")
UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_NODE_SET = re.compile(r"\[[\d,:\-]*\]")
_ADDRESS = re.compile(r"\[?(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F.]{0,15}(?:%\w{1,15})?\]?(?::\d{1,5})?")
_MAC = re.compile(r"[0-9a-fA-F]{2}(?::[0-9a-fA-F]{2}){5}")
_DEVICE = re.compile(r"(?:^|,)(?:cuda|cpu|gpu|xpu|hpu|npu|tpu|mps|meta|nvidia|amd)\Z")
_MODULE = re.compile(r"(?:^|,)[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+\Z")
_INTERFACE = re.compile(r"(?:en|eth|ib|wl|bond|hsn|roce)[a-z]?\d{1,3}(?:[a-z]{1,3}\d{1,3}){0,4}")
_REMEMBERED = 200  # characters: longer values are looked at anew
_MOST_DIGITS = 19  # of an integer of 64 bits
_MOST_LETTERS = 64
_SHORT_WORD = 8  # longer ones must look like language
# For each letter those that often follow it: the 250 commonest pairs in the identifiers of torch and of Python's own
# library, 93 % of all there. Of 16 random letters 1 % look like language, of its words 99 % do.
_FOLLOWERS = {
    "a": "bcdgiklmnprstuvxy", "b": "aeilorsu", "c": "acdehiklorstu", "d": "adefilorsu", "e": "abcdefgilmnopqrstvwxy",
    "f": "aefilortu", "g": "aehilnorsu", "h": "aeiort", "i": "abcdefglmnoprstvz", "j": "aeou", "k": "eis",
    "l": "adeilostuy", "m": "abeimopsu", "n": "acdefgiklnopstuv", "o": "abcdfgiklmnoprstuvw", "p": "aehiloprstuy",
    "q": "u", "r": "acdegiklmnoprstuy", "s": "acehilopstuy", "t": "acehiloprstuy", "u": "abcefilmnprst", "v": "aei",
    "w": "aeio", "x": "eipt", "y": "ps", "z": "e",
}  # fmt: skip
_LANGUAGE, _LANGUAGE_SHORT = 0.7, 0.6  # of the pairs; of words of up to 11 letters
_MOST_ODD = 8  # characters of a word in which letters and digits alternate, as in "a1b2c3d"
_MOST_ODD_MIXED = 5  # of both cases: "8x22B"
_MOST_ODD_TOGETHER = 14


def masked(text: str, blobs: bool = True, hashes: bool = True) -> str:
    """Free text without tokens, private keys, and what is secret of URLs; ``blobs``: and without long random words;
    ``hashes``: and without 40 hex digits, which are a key of Weights & Biases or a SHA-1 sum. At most 4 KiB of it.
    """
    if len(text) < 9:  # shorter than any of them
        return text
    text = clipped(text, _LOOKED_AT)
    if "-----BEGIN" in text:
        text = _PRIVATE_KEY.sub(HIDDEN, text)
    if "://" in text:
        text = _URL.sub(lambda match: _open_url(match[0]), text)
    if "@" in text:
        text = _ACCOUNT.sub(lambda match: match[1] + HIDDEN, text)
    text = _BEARER.sub(lambda match: match[1] + HIDDEN, _TOKEN.sub(HIDDEN, text))
    text = _HASH.sub(HIDDEN, text) if hashes else text
    return _BLOB.sub(lambda match: HIDDEN if _is_random(match[0]) else match[0], text) if blobs else text


def clipped(text: str, most: int) -> str:
    """At most so many characters of it."""
    return text if len(text) <= most else text[: most - 1] + "…"


def _open_url(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{_QUERY.sub('?' + HIDDEN, without_user(rest))}"


def without_user(rest: str) -> str:
    """What follows ``://`` with ``***`` for USER:PASSWORD or TOKEN before its host."""
    if "@" not in rest:
        return rest
    if _HOST_AND_PORT.match(rest):
        return HIDDEN  # HOST:443/a?mail=x@y, or a password with a "/" in it
    user = _USER_INFO.match(rest)
    return rest if user is None else HIDDEN + rest[user.end() :]


def _is_random(blob: str) -> bool:
    if is_plain(blob):
        return False
    kinds = (any(map(str.islower, blob)), any(map(str.isupper, blob)), any(map(str.isdigit, blob)))
    if sum(kinds) < 3:
        return False
    shares = [count / len(blob) for count in Counter(blob).values()]
    return -sum(share * math.log2(share) for share in shares) >= _BLOB_BITS  # Shannon's entropy of one character


def is_plain(value: str) -> bool:
    """Whether a value of unknown meaning may be shown. "" is."""
    return _remembered(value) if len(value) <= _REMEMBERED else _is_plain(value)


def _is_plain(value: str) -> bool:
    if _TOKEN.search(value) or UUID.search(value):
        return False
    if _ADDRESS.fullmatch(value) or _MAC.fullmatch(value):
        return True
    value = _NODE_SET.sub("", value)
    if not _PLAIN_CHARACTERS.fullmatch(value) or not _colons_fit(value):
        return False
    odd = 0
    for word in _SEPARATORS.split(value):
        kind = _kind(_REPEATED.sub(r"\1", word))
        if not kind:
            return False
        odd += len(word) if kind == "odd" else 0
    return odd <= _MOST_ODD_TOGETHER


_remembered = lru_cache(maxsize=4096)(_is_plain)  # ranks have the same ones


def _kind(word: str) -> str:
    """ "usual" as words, numbers and units are; "odd" as short names of devices and commits are; "" not plain."""
    groups = _GROUPS.findall(word)
    if not groups:
        return "usual"
    digits = sum(len(group) for group in groups if group[0].isdigit())
    one_case = word.islower() or word.isupper() or word.isdigit()
    if len(groups) <= 3 and digits <= _MOST_DIGITS:
        usual = all(group[0].isdigit() or _is_word(group) for group in groups)
        if len(groups) == 1 or (usual and digits <= 9 and len(word) <= 2 * _SHORT_WORD):
            simple = one_case or len(word) > _SHORT_WORD or word[1:].islower()
            return "" if not usual else "usual" if simple else "odd"
    if _INTERFACE.fullmatch(word):
        return "usual"
    return "odd" if len(word) <= (_MOST_ODD if one_case else _MOST_ODD_MIXED) else ""


def _is_word(letters: str) -> bool:
    """``transformers``, ``FSDP``, ``AdamW``, ``LlamaDecoderLayer``; not ``wJalrXUtnFEMI`` nor ``qzkvtwplxmrb``."""
    if len(letters) > _MOST_LETTERS:
        return False
    humps = _HUMPS.findall(letters)
    if len(humps) > max(3, len(letters) / 3):
        return False
    if len(letters) <= _SHORT_WORD or not letters.isascii():
        return True
    lowered = letters.lower()
    pairs = [second in _FOLLOWERS[first] for first, second in zip(lowered, lowered[1:])]
    return sum(pairs) >= (_LANGUAGE if len(pairs) > 10 else _LANGUAGE_SHORT) * len(pairs)


def _colons_fit(value: str) -> bool:
    """HOST:PORT, 1:30:00, HOST:/PATH, /PATH:/PATH:ro, IMAGE/NAME:TAG, cuda:0, cpu:gloo, package.module:function and
    ray::Name are plain; USER:WORD is not.
    """
    for match in re.finditer(":+", value):
        before, after = value[: match.start()], value[match.end() :]
        following = _SEPARATORS.split(after, 1)[0]
        if "@" in after.partition("/")[0]:
            return False  # USER:PASSWORD@HOST
        is_tag = "/" in before.rpartition(",")[2]
        is_function = bool(_MODULE.search(before)) and following.replace("_", "").isalpha()
        is_scope = match[0] == "::" and not any(map(str.isdigit, following))
        if not (following.isdigit() or not following or is_tag or is_function or is_scope or _DEVICE.search(before)):
            return False
    return True
