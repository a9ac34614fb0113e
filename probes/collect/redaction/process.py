"""What may be shown and recorded of a process: its command line, and of its environment what changes how a job runs.

Of a command line an allow-list of shapes (``shapes.is_plain``), whatever an option is called:

* names of options and variables; after a name that holds secrets (``values.names_secret``) no value but a count, yes or
  no;
* plain values: numbers, words, file names and paths, HOST:PORT, module names, lists and NAME=VALUE pairs of such;
* of a path the components that are plain; of JSON and of the code after ``-c`` the plain words and strings;
* of a URL scheme, host, port and the first part of the path (of a bucket's or a file's all plain parts); never the
  user, the query or the fragment;
* instead of everything else ``***``, and instead of what has the shape of a known token wherever it stands.

So a token, a random key and a passphrase are hidden under any name and without one. A password that looks as a plain
word is hidden only where a name tells it: no shape could.

Of an environment the variables of ``NAMES`` and those that begin with one of ``PREFIXES``, unless their name sounds as
if they held a secret; of their values the plain words, paths, addresses and GPUs' UUIDs, the rest is ``***``.
``probes/record/`` lists the names, which are those of NCCL's, PyTorch's, CUDA's, Transformer Engine's, UCX's
and libfabric's lists of environment variables, and OpenMP's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from mltop.probes.collect.redaction.shapes import HIDDEN, UUID, clipped, is_plain, masked
from mltop.probes.collect.redaction.values import (
    hidden_password,
    is_compound,
    is_harmless,
    is_interpreter,
    is_its_value,
    is_known,
    is_scheme,
    is_script_option,
    names_secret,
    shown_assignment,
    shown_path,
    shown_script,
    shown_secret,
    shown_text,
    shown_url,
    shown_value,
    takes_secret,
)

MAX_COMMAND_CHARACTERS = 200
MAX_SETTINGS, MAX_VALUE_CHARACTERS = 40, 100
_LOOKED_AT = 1000  # characters of one argument or value: strangers choose how long it is
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\s]+")
_NUMBER = re.compile(r"-\.?\d.*")
_OPTION = re.compile(r"--?[^\W\d][\w.-]*")
_ATTACHED = re.compile(r"(-[A-Za-z])([\w.:%-]{4,})")
_LIST = re.compile(r"[^s]s\Z")  # --api-keys A B


# fmt: off
NAMES = frozenset((
    "CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_MODULE_LOADING", "CUDA_INJECTION64_PATH", "CUDA_ENABLE_COREDUMP_ON_EXCEPTION", "CUBLAS_WORKSPACE_CONFIG",
    "NVIDIA_TF32_OVERRIDE", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "LD_PRELOAD",
    "MALLOC_ARENA_MAX", "MALLOC_CHECK_", "OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "PYTHONMALLOC", "PYTHONDEVMODE",
    "PYTHONTRACEMALLOC", "PYTHONFAULTHANDLER", "PYTHONASYNCIODEBUG", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TORCH_CPP_LOG_LEVEL",
    "TORCH_DISTRIBUTED_DEBUG", "TORCH_LOGS", "TORCH_SHOW_CPP_STACKTRACES", "TORCH_USE_CUDA_DSA", "TORCHDYNAMO_DISABLE",
    "TP_SOCKET_IFNAME", "FI_PROVIDER", "RDMAV_FORK_SAFE",
))
# fmt: on
PREFIXES = ("NCCL_", "TORCH_NCCL_", "NSIGHT_", "NVTE_", "GLOO_", "UCX_", "FI_EFA_", "NVSHMEM_", "SHARP_COLL_")
_MARKS = tuple(name.encode() for name in (*NAMES, *PREFIXES))
_NAME = re.compile("[\\w\ufffd]{1,64}")
_URL = re.compile(r"[A-Za-z][\w+.-]*://[^\s,;|]*")
_DEVICE = re.compile(rf"(?:GPU-|MIG-)+{UUID.pattern}(?:/\d+)*")
# Between the words of such values: "mlx5_0:1,mlx5_1", "^lo,docker0", "expandable_segments:True", "{0:4},{4:4}".
_WORD = re.compile(r"[^\s,;:|^=(){}\[\]]+")


def shown_command(argv: Sequence[str]) -> str:
    """The arguments joined, at most 200 characters, with ``***`` for what may be a secret."""
    on_one_line = [_CONTROL.sub(" ", masked(clipped(argument, _LOOKED_AT), blobs=False)) for argument in argv]
    return clipped(masked(" ".join(_shown_arguments(on_one_line)), blobs=False).strip(), MAX_COMMAND_CHARACTERS)


def _shown_arguments(argv: Sequence[str]) -> Iterator[str]:
    before = ""  # the option, or the name of a secret, whose value may come next
    for index, argument in enumerate(argv):
        if takes_secret(before) or (before and not before.startswith("-")):
            if argument in ("--", "=", ":") or is_scheme(before, argument):
                yield argument
                continue
            if is_its_value(before, argument):
                yield shown_secret(before, argument)
                goes_on = _LIST.search(before) and not "".join(argv[index + 1 : index + 2]).startswith("-")
                before = argument if takes_secret(argument) else before if goes_on else ""
                continue
        if index == 0:  # a path; or a title, which programs write over all of their arguments
            yield shown_script(argument) if " " in argument else shown_value(argument)
        elif is_script_option(before) and any(map(is_interpreter, argv[:index])):
            yield shown_script(argument)
        else:
            yield _argument(argument, before)
        before = argument if _expects(argument, before) else ""


def _expects(argument: str, before: str) -> bool:
    """Whether the next argument is its value."""
    if argument.startswith("-"):
        return _OPTION.fullmatch(argument) is not None or takes_secret(argument)
    if not names_secret(argument):
        return False
    return argument.endswith((":", "=")) or (not before and is_compound(argument) and argument.isidentifier())


def _argument(argument: str, before: str) -> str:
    """``before``: the option whose value it may be, "" for none."""
    cleaned = hidden_password(argument) or shown_assignment(argument)
    if cleaned or not argument.startswith("-") or _NUMBER.fullmatch(argument):
        return cleaned or shown_value(argument, before)
    attached = _ATTACHED.fullmatch(argument)
    if attached and not is_known(argument):
        return attached[1] + shown_secret(argument, attached[2])  # "-kVALUE"
    return argument if is_plain(argument) else HIDDEN


def settings_of(environ: bytes) -> dict[str, str]:
    """The settings in /proc/PID/environ by name, in order; at most 40, values cut at 100 characters."""
    settings: dict[str, str] = {}
    for item in environ.split(b"\0"):
        if item.startswith(_MARKS) and b"=" in item:
            raw_name, _, raw_value = item.partition(b"=")
            value = raw_value[: 4 * _LOOKED_AT].decode("utf-8", "replace")
            settings.setdefault(raw_name.decode("utf-8", "replace"), value)
    return shown_settings(settings)


def shown_settings(variables: Mapping[str, str]) -> dict[str, str]:
    """Those of the variables that may be shown, with as much of their values as may be."""
    shown = {
        name: _shown_setting(clipped(value, _LOOKED_AT))
        for name, value in variables.items()
        if (name in NAMES or name.startswith(PREFIXES))
        and (_NAME.fullmatch(name) and is_plain(name) and (not names_secret(name) or is_harmless(name, value)))
    }
    # The well-known names first, when there are too many.
    names = sorted(shown, key=lambda name: (name not in NAMES, name))[:MAX_SETTINGS]
    return {name: shown[name] for name in sorted(names)}


@lru_cache(maxsize=256)  # ranks have the same ones
def _shown_setting(value: str) -> str:
    text = " ".join(shown_text(value).split())
    text = shown_url(text) if _URL.fullmatch(text) else _WORD.sub(lambda found: _shown_word(found[0]), text)
    return clipped(text, MAX_VALUE_CHARACTERS)


def _shown_word(word: str) -> str:
    return word if is_plain(word) or _DEVICE.fullmatch(word) else shown_path(word) or HIDDEN
