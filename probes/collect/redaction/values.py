"""What is shown of one value, of a structure (JSON, lists, NAME=VALUE), of a URL or path, and of code.

``process`` says what the rules are, ``shapes`` which values are plain. Here, too, is the one vocabulary of names that
hold secrets, of options, variables, keys of JSON and locals of Python frames: "--hf-token", "API_KEY", "dbPassword",
"+trainer.logger.api_key", "X-Auth-Token", "PIN".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from mltop.probes.collect.redaction.shapes import HIDDEN, UUID, is_plain, masked, without_user

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
    "pin", "otp", "totp", "cvv", "cvc", "ssn", "salt", "login", "pat", "kubeconfig",
))
# After the last word that counts: "auth_header", "password_value", "key_b64", "key_2".
_FILLERS = frozenset((
    "value", "header", "headers", "string", "str", "text", "raw", "plain", "hex", "base64", "b64", "hash", "env",
))
_KINDS_OF_KEY = frozenset((
    "api", "access", "account", "private", "shared", "signing", "encryption", "master", "license", "storage", "secret",
))
_CONNECTIONS = (
    ("connection", "string"), ("connection", "str"), ("conn", "string"), ("conn", "str"),
    *((kind, "code") for kind in ("access", "auth", "verification", "security", "login", "recovery", "backup")),
)
# What is known to be harmless: a name that consists of these words only, or begins as a library's settings do. The
# value of any other option, variable or key is hidden.
_KNOWN_FIRST = frozenset((
    "cuda", "cudnn", "gloo", "hip", "ld", "mkl", "nccl", "nvshmem", "nvte", "omp", "openblas", "python", "rccl", "rocr",
    "slurm", "torch", "torchelastic", "torchinductor", "triton", "ucx", "xla",
))
_KNOWN_LETTERS = frozenset("bcdhijlmnoptuvxBCDHIJLMNOTUVX")  # not -P, a password of zip and others
_KNOWN_WORDS = frozenset("""
a accum accumulation activation adam address affinity algo algorithm alpha arch args async attempt attention attn auto
average backend batch batches beta betas bf bias bin bind bits block boot bucket buckets buffer bytes c cache callback
callbacks capacity cd channels checkpoint checkpointing checkpoints chunk ckpt class classes clip cluster coef compile
conf config configs context core cores count cp cpu cpus create cross cudagraph d data dataloader dataparallel dataset
datasets debug decay decoder deepspeed default degree delay depth device devices dim dims dir directory disable disk
distributed dp drop dropout dry dtype embedding enable encoder end endpoint entry ep epoch epochs eps epsilon eval
evaluation every experiment expert experts export factor fd feedforward ffn file files filter flash flops fold format fp
frac frames freq frequency fsdp full function fused gamma gb global gpu gpus grad gradient granularity graph group
groups h handle hdfs head heads height hidden host hostfile hosts id image images impl in index init input inputs int
interface interval items iter iteration iterations iters j job jobs jsonl k keep kernel kl kv label labels lambda last
layer layers learning len length level limit linear list load loader local log logdir logging logs loss lr lrs m master
max mb mem memory method metric metrics micro microbatch min mini minutes mip mixed mixture mlp mode model models module
momentum monitor mp multi n name names net network nnodes no node nodelist nodes norm np nproc ntasks num number o
offload offset optim optimizer options or order out output outputs overlap p package padding parallel param parameters
params partition parts path paths patience pattern per pipe pipeline port ports position pp precision prefetch prefix
preset proc processes processors procs profile project proportion pt q quantization queue r random range rank ranks rate
ratio rdzv read recompute reduce reg remat repository resolution restart restarts resume reward role rollout root rope
rotary run runs s sample sampler samples sampling save scale scaling schedule scheduler script seconds seed segments seq
sequence served server set shape shard sharding shards shuffle size sizes skip sleep socket sp spawn split splits src
stage stages standalone start state std step steps store strategy stride subset suffix sync t tag tags target task tasks
tau temp temperature tensor test tf threads threshold time timeout tmp to tokenizer top total tp tracker train trainer
training transformer tune tuning type u url use user utilization v valid validation value values version virtual visible
vocab vocabulary wandb warm warmup wd weight weights width window with worker workers world write x y z zero
""".split())  # noqa: SIM905 - a word a line would be a page
# With one of these in its name an option counts tokens or numbers them: its numbers are shown.
_COUNTING = frozenset((
    "tokens", "num", "max", "min", "n", "count", "number", "length", "len", "limit", "size", "budget", "per", "id",
    "idx", "index", "pos", "position", "total",
))
_SWITCHES = frozenset(("use", "no", "add", "with", "without", "enable", "disable", "skip", "allow", "is", "has"))
_PLAIN_VALUES = frozenset(("true", "false", "yes", "no", "on", "off", "none", "null", "auto"))
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


@lru_cache(maxsize=1024)  # ranks have the same ones
def is_known(name: str) -> bool:
    """Whether it is known that what a name holds is harmless: the one allow-list, for every output."""
    words = [word.rstrip("0123456789") for word in _words(name)]
    if name.startswith("-") and [len(word) for word in words] == [1]:
        return name.lstrip("-")[0] in _KNOWN_LETTERS
    return all(word in _KNOWN_WORDS for word in words if word) or words[0] in _KNOWN_FIRST


def mentions_secret(name: str) -> bool:
    """Whether any word of it is one of a secret's, wherever it stands: "pin_step"."""
    return any(_is_strong(word) or word in _LAST for word in _words(name))


def is_harmless(name: str, value: str) -> bool:
    """Whether this value of a secret-sounding name is none: "--max-tokens 4096", "--use-token true"."""
    if value.lower() in _PLAIN_VALUES or _NUMBER.fullmatch(value) is None:
        return value.lower() in _PLAIN_VALUES
    words = _words(name)
    strong = {word for word in words if _is_strong(word)}  # that nothing but tokens is counted
    return bool(strong) and strong <= {"token", "tokens"} and not _COUNTING.isdisjoint(words)


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORD_BREAK.split(name) if word]


def _is_strong(word: str) -> bool:
    return word not in _NOT_STRONG and word.rstrip("0123456789").endswith(_STRONG_ENDS)


# Begins where a word does: without that a long word costs the square of its length.
_PAIR = re.compile(r"(?<![\w.-])([\w.-]+)(\s+(?=[\w'\"$/@!%+~])|['\"],\s*(?=['\"])|['\"\])]*\s*[=:]\s*)(?!//)")
# Also b'…', [a, b], Secret('…'), $(…), and the further cookies of a line.
_VALUE = re.compile(
    r"(?P<own>[bBfFrRuU]{0,2}'(?:[^'\\]|\\.?)*(?:'|$)|[bBfFrRuU]{0,2}\"(?:[^\"\\]|\\.?)*(?:\"|$)"
    r"|[\w.$]*[\[({][^\])}]*[\])}]*[^\s'\"&,;)]*|[^\s'\"&,;)]+)(?:;\s*[\w-]+=[^\s;]*)*",
    re.DOTALL,
)
_PARTS = re.compile(r"\s+|['\"],\s*")
_SETTING = re.compile(r"(?<![\w.-])([\w.-]+=)[^\s/,;]+")
PASSWORD = "-p"  # mysql, sshpass; elsewhere it often is a port, so what may be one is shown
_PORTS = re.compile(r"\d{0,5}(?:[.:,-]\d{1,5}){0,2}")

_OPTION = re.compile(r"--?[^\W\d][\w.-]*")
# Values that are no secret whatever their name: fractions, counts of two digits, files of programs and settings.
_TAME = re.compile(
    r"-?\d{0,6}\.\d{1,8}|-?\d{1,3}(?:\.\d{1,6})?[eE]-?\d{1,3}|-?\d{1,2}|\w|[\w./-]*\.(?:py|sh|ya?ml|toml|json)"
)
_NAME = re.compile(r"[+~]{0,2}-{0,2}/?[^\W\d][\w./@-]*(?:\[\w*\])?")
_ASSIGNMENT = re.compile(rf"({_NAME.pattern})([-+:|!]?==?|:(?!/))(.*)", re.DOTALL)
_ATTACHED_PASSWORD = re.compile(r"-p=?([^-=].*)", re.DOTALL)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.:-]{0,30}://\S*")
_QUERY = re.compile(r"[?#;]")
# Of these the whole path is what is worth knowing.
# fmt: off
_DATA_SCHEMES = frozenset((
    "s3", "s3a", "s3n", "gs", "gcs", "az", "abfs", "abfss", "adl", "wasb", "wasbs", "hdfs", "viewfs", "oss", "obs",
    "cos", "r2", "ceph", "swift", "dbfs", "file", "nfs", "lustre", "gpfs", "weka", "hf", "mc", "memory", "unix", "tcp",
    "ipc", "env",
))
# fmt: on
_VERSION_CONTROL = "git+"  # pip: the repository and its owner
_ANCHORED = re.compile(r"(?:/|~|\.{1,2}/|\$)")
_EXTENSION = re.compile(r"[^/]*\.[A-Za-z]\w{0,7}")
_NUMBERS = re.compile(r"[\d\s.,+\-eE:()\[\]]+")
_MOST_DIGITS = 19
_ITEMS = re.compile(r"([,;])")
_BRACKETS = {"{": "}", "[": "]", "(": ")"}
_IDENTITIES = ("id", "ids", "uuid", "uuids", "guid")
_ACCOUNT = re.compile(r"([^:%]*)([:%]).*", re.DOTALL)  # curl's USER:PASSWORD, Samba's USER%PASSWORD
_USERS = ("u", "user", "username", "login", "userpwd")
_DEEPEST = 3  # quoted code inside of quoted code


def shown_text(text: str) -> str:
    """Free text (a thread's name, an error, a mount's device): all of it but tokens and the values of secret names."""
    text, at = masked(text), 0
    parts: list[str] = []
    while pair := _PAIR.search(text, at):
        name, operator = pair.groups()
        parts.append(text[at : pair.end()])
        at = pair.end()
        is_option = name.startswith("--")  # also of words that only a blank or a comma parts
        hides = names_secret(name) or (is_option and ":" not in operator and not is_known(name))
        value = _VALUE.match(text, at) if hides and (is_option or not _PARTS.fullmatch(operator)) else None
        if value is not None and shown_secret(name, value["own"].strip("'\"")) == HIDDEN:
            parts.append(HIDDEN)
            at = value.end()
    return "".join((*parts, text[at:]))


def without_tokens(text: str) -> str:
    """A name that may be made of anything, as of a file, a function (in notebooks, generated code) or a job."""
    text = masked(text, blobs=False)
    if "=" in text:
        text = _SETTING.sub(lambda match: match[1] + HIDDEN if names_secret(match[1]) else match[0], text)
    return text


def shown_value(value: str, name: str = "", depth: int = 0) -> str:
    """``name``: of the option or variable that has this value, "" for an argument of its own."""
    if name and (names_secret(name) or not is_known(name)):
        return shown_secret(name, value)
    if _URL.fullmatch(value):
        return shown_url(value)
    if name.lstrip("-").lower() in _USERS and (account := _ACCOUNT.fullmatch(value)):
        return f"{shown_word(account[1])}{account[2]}{HIDDEN}"
    if is_plain(value) or _is_list_of_numbers(value) or (UUID.fullmatch(value) and name.lower().endswith(_IDENTITIES)):
        return value
    return _shown_structure(value, name, depth) or _shown_items(value, depth) or shown_path(value) or HIDDEN


def _is_list_of_numbers(value: str) -> bool:
    numbers = re.findall(r"\d+", value) if _NUMBERS.fullmatch(value) else []
    return bool(numbers) and all(len(digits) <= _MOST_DIGITS for digits in numbers)


def _shown_structure(value: str, name: str, depth: int) -> str:
    """What is quoted or in brackets; "" when it is neither, or too deep in others."""
    if depth >= _DEEPEST:
        return ""
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        inner = shown_value(value[1:-1], name, depth + 1)
        return inner if inner == HIDDEN else f"{value[0]}{inner}{value[0]}"
    return shown_script(value, depth + 1) if _BRACKETS.get(value[0]) == value[-1] else ""


def shown_assignment(text: str, depth: int = 0) -> str:
    """``NAME=VALUE`` or ``NAME:VALUE`` with the name and what may be shown of the value; "" when it is none."""
    assignment = _ASSIGNMENT.fullmatch(text)
    if assignment is None or not assignment[3].strip("=") or depth >= _DEEPEST:
        return ""
    name, operator, value = assignment.groups()
    if (operator == ":" or name.startswith("/")) and not names_secret(name):
        return ""  # USER:WORD, /PATH/DATE=DAY
    return f"{name}{operator}{shown_value(value, name, depth + 1)}" if is_plain(name.lstrip("+~-")) else ""


def shown_url(url: str) -> str:
    scheme, _, rest = url.partition("://")
    rest = without_user(rest)
    user = f"{HIDDEN}@" if rest.startswith(f"{HIDDEN}@") else ""
    rest = rest[len(user) :]
    query = _QUERY.search(rest)
    rest, query_shown = (rest[: query.start()], f"?{HIDDEN}") if query is not None else (rest, "")
    host, slash, path = rest.partition("/")
    path_shown = _shown_parts(path, scheme) if slash else ""
    return f"{scheme}://{user}{host if is_plain(host) else HIDDEN}{slash}{path_shown}{query_shown}"


def _shown_parts(path: str, scheme: str) -> str:
    kind = scheme.rpartition(":")[2].lower()
    parts = path.split("/")
    most = len(parts) if kind in _DATA_SCHEMES else 2 if kind.startswith(_VERSION_CONTROL) else 1
    shown = [shown_word(part) for part in parts[:most]]
    return "/".join(shown if not any(parts[most:]) else [*shown, HIDDEN])


def shown_word(word: str) -> str:
    return word if is_plain(word) else HIDDEN


def shown_path(path: str) -> str:
    """The plain components of a path; "" for what is none."""
    parts = path.split("/")
    below_a_folder = len(parts) > 1 and is_plain(parts[0]) and is_plain(parts[-1]) and _EXTENSION.fullmatch(parts[-1])
    if any(character.isspace() for character in path) or not (_ANCHORED.match(path) or below_a_folder):
        return ""
    return "/".join(map(shown_word, parts))


def hidden_password(argument: str) -> str:
    """``-pPASSWORD`` without it; "" for anything else."""
    attached = _ATTACHED_PASSWORD.fullmatch(argument)
    return PASSWORD + HIDDEN if attached and not _PORTS.fullmatch(attached[1]) else ""


def takes_secret(argument: str) -> bool:
    """Whether an option's value must not be shown: it has a secret's name, or one that nobody knows."""
    if argument == PASSWORD or not _OPTION.match(argument) or "=" in argument:
        return argument == PASSWORD
    return names_secret(argument) or (_OPTION.fullmatch(argument) is not None and not is_known(argument))


def is_its_value(option: str, argument: str) -> bool:
    """A secret may begin with dashes, too; only after switches another option is the likelier reading."""
    if option == PASSWORD:
        return not argument.startswith("-")
    if not names_secret(option):  # an unknown one may be a switch
        return not argument.startswith("-")
    may_stand_alone = not _SWITCHES.isdisjoint(_words(option)[:1])  # "--use-auth-token"
    return not (may_stand_alone and argument.startswith("--"))


def shown_secret(option: str, value: str) -> str:
    """What is shown of the value of an option that ``takes_secret``."""
    if option == PASSWORD or names_secret(option):
        harmless = _PORTS.fullmatch(value) is not None if option == PASSWORD else is_harmless(option, value)
    else:
        harmless = value.lower() in _PLAIN_VALUES or (_TAME.fullmatch(value) is not None and is_plain(value))
        if not harmless and is_known(value.partition("=")[0]):
            return shown_assignment(value) or HIDDEN
    return value if harmless else HIDDEN


def _shown_items(value: str, depth: int) -> str:
    """``a=1,b=2``, ``ALL,NAME=VALUE``, ``x;y=z``; "" when an item is neither an assignment nor plain."""
    pieces = _ITEMS.split(value)
    items = [shown_assignment(piece, depth) or (piece if is_plain(piece) else "") for piece in pieces[::2]]
    if any(piece and not item for piece, item in zip(pieces[::2], items)):
        return ""
    if ";" in value and not all("=" in item for item in items if item):
        return ""
    return "".join(item + mark for item, mark in zip(items, [*pieces[1::2], ""]))


_PIECE = re.compile(
    r"(?P<space>\s+)"
    r"|(?P<quoted>\"(?:[^\"\\]|\\.)*(?:\"|\Z)|'(?:[^'\\]|\\.)*(?:'|\Z))"
    r"|(?P<mark>[(){}\[\],;|&<>`]+)"
    r"|(?P<bare>[^\s\"'(){}\[\],;|&<>`]+)",
    re.DOTALL,
)
_OPERATOR = re.compile(r"[=:+\-*/%!.@#^~\\?]{1,3}")
_GLUED = re.compile(r"([=:]=?)([^=:].*)", re.DOTALL)
_EDGE = "=:+*%!.@#^\\?"  # may stand at either end of a word of code
_ENDS_A_NAME = re.compile(r"[;|&<>`]")
_SCRIPT_OPTION = re.compile(r"-[a-zA-Z]{0,3}c")
_INTERPRETER = re.compile(r"(?:.*/)?(?:(?:python|pypy)[\w.-]*|(?:ba|da|z|k|mk|a|fi|c|tc)?sh|busybox|su|runuser|script)")
_SCHEMES = frozenset(("bearer", "basic", "token", "digest"))  # between "Authorization:" and what is secret


def is_script_option(argument: str) -> bool:
    """Whether what follows is code, behind an interpreter (``bash -lc``, ``python -c``)."""
    return _SCRIPT_OPTION.fullmatch(argument) is not None


def is_interpreter(program: str) -> bool:
    return _INTERPRETER.fullmatch(program) is not None


def is_scheme(name: str, word: str) -> bool:
    """``Bearer`` of "Authorization: Bearer TOKEN": the secret comes after it."""
    return name.rstrip(":").lower().endswith("authorization") and word.lower() in _SCHEMES


def shown_script(text: str, depth: int = 0) -> str:
    """Code, a shell's command lines, JSON: the plain words and strings of it."""
    cleaner = _Script(depth)
    return "".join(cleaner.shown(piece.lastgroup or "", piece[0]) for piece in _PIECE.finditer(text))


@dataclass
class _Script:
    """Goes through the pieces of a text. ``secret``: the name whose value comes next, ``is_open``: an operator (``=``,
    ``:``, ``,``) or an option has asked for it already; ``before``: the bare word or option before this one.

    A hidden value may go on: ``touches``: it ends where this piece begins ("b'…'"); ``typed``: the name whose it is
    ("key: str = …", "'%s' % …"); ``hiding``: so many of its brackets are open ("token=$(…)", "password=get(…)").
    """

    depth: int
    secret: str = ""
    is_open: bool = False
    before: str = ""
    typed: str = ""
    hiding: int = 0
    touches: bool = False

    def shown(self, kind: str, piece: str) -> str:
        if self.hiding:
            self.hiding = max(0, self.hiding + (_opened(piece) if kind == "mark" else 0))
            return ""
        touches, self.touches = self.touches, False
        if kind == "space":
            return piece
        if kind == "mark":
            return self._mark(piece)
        if touches and not self.secret:
            self.touches = True
            return ""
        before, self.before = self.before, piece
        if self.typed and _OPERATOR.match(piece):
            self.secret, self.is_open = self.typed, True
        self.typed = ""
        shown = self._quoted(piece, before) if kind == "quoted" else self._bare(piece)
        self.touches = shown.endswith(HIDDEN)
        return shown

    def _mark(self, piece: str) -> str:
        waits = bool(self.secret) and self.is_open
        if waits and not names_secret(self.secret) and piece[0] in _BRACKETS:
            self.secret, waits = "", False  # what an unknown name holds has names of its own
        waits = waits or (piece[0] == "(" and names_secret(self.before))  # login('me', 'secret')
        if (waits or self.typed) and piece[0] in _BRACKETS:
            self.hiding = max(0, _opened(piece))
            self.secret = self.typed = self.before = ""
            return HIDDEN if waits else ""
        self.typed = ""
        if _ENDS_A_NAME.search(piece):
            self.secret = ""
        elif "," in piece and self.secret and names_secret(self.secret):
            self.is_open = True  # putenv('TOKEN', 'value')
        self.before = ""
        return piece

    def _take(self, value: str) -> str:
        option, self.is_open = self.secret, False
        self.secret = value if option.lower() == "key" and names_secret(value) else ""  # {"key": "password", "value": …
        shown = shown_secret(option, value)
        self.typed = option if shown == HIDDEN else ""
        return shown

    def _quoted(self, piece: str, before: str) -> str:
        inner = piece[1:-1] if len(piece) > 1 and piece[-1] == piece[0] else piece[1:]
        if self.secret and self.is_open:
            return self._take(inner)
        if is_script_option(before) and self.depth < _DEEPEST:
            return f"{piece[0]}{shown_script(inner, self.depth + 1)}{piece[0]}"
        if inner and _NAME.fullmatch(inner) and is_plain(inner) and (names_secret(inner) or not is_known(inner)):
            self.secret, self.is_open = inner, False
            return piece
        shown = shown_value(inner, depth=self.depth)
        return shown if shown == HIDDEN else f"{piece[0]}{shown}{piece[0]}"

    def _bare(self, piece: str) -> str:
        if self.secret:
            if not self.is_open and (glued := _GLUED.fullmatch(piece)):  # {"pin":1234}
                self.is_open = True
                return glued[1] + self._bare(glued[2])
            if _OPERATOR.fullmatch(piece):
                self.is_open = True
                return piece
            if self.is_open and is_scheme(self.secret, piece):
                return piece
            if self.is_open and is_its_value(self.secret, piece):
                shown = self._take(piece)
                self._expect(piece)
                return shown
            self.secret = ""
        attached = hidden_password(piece)
        if attached:
            return attached
        is_harmless = _OPERATOR.fullmatch(piece) or is_plain(piece.strip(_EDGE))
        return self._named(piece) or (piece if is_harmless else shown_value(piece, depth=self.depth))

    def _named(self, piece: str) -> str:
        """Options and variables; "" for other words."""
        assignment = _ASSIGNMENT.fullmatch(piece)
        if assignment is None or _URL.fullmatch(piece):
            self._expect(piece)
            return ""
        name, _, value = assignment.groups()
        if not value.strip("=") and (names_secret(name) or not is_known(name)):
            self.secret, self.is_open = name, True
            return piece
        if not value and is_plain(name.lstrip("+~-")):
            return piece
        shown = shown_assignment(piece, self.depth)
        self.typed = name if names_secret(name) and shown != piece else ""
        return shown

    def _expect(self, piece: str) -> None:
        """A value after an option, or after a name that is not one of every day ("aws_secret_access_key VALUE")."""
        if takes_secret(piece):
            self.secret, self.is_open = piece, True
        elif names_secret(piece) and _NAME.fullmatch(piece):
            self.secret, self.is_open = piece, is_compound(piece)


def _opened(mark: str) -> int:
    """How many brackets it opens, less those that it closes."""
    return sum((letter in _BRACKETS) - (letter in _BRACKETS.values()) for letter in mark)


def is_compound(name: str) -> bool:
    """``HF_TOKEN``, ``api-key``, ``password`` and ``Bearer`` are followed by a secret; ``token`` may be any word."""
    lowered = name.lower()
    return "_" in name.strip("_") or "-" in name.strip("-") or name.isupper() or lowered.startswith(("bearer", "passw"))
