"""NVML's return codes (nvml.h, nvmlReturn_t) by what they mean for a monitor, and why a field has no value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Union

if TYPE_CHECKING:
    from mltop.probes.model.vocabulary import Fault, GapCode, GapKind

UNINITIALIZED = 1
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
INSUFFICIENT_SIZE = 7
INSUFFICIENT_POWER = 8
DRIVER_NOT_LOADED = 9
TIMEOUT = 10
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
OPERATING_SYSTEM = 17
LIB_RM_VERSION_MISMATCH = 18
ARGUMENT_VERSION_MISMATCH = 25
DEPRECATED = 26
GPU_NOT_FOUND = 28
UNKNOWN = 999

# This GPU or this driver does not have it: an older call may.
UNSUPPORTED = frozenset({NOT_SUPPORTED, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH, DEPRECATED})
# Will not change from one second to the next, so it is not asked every second.
REMEMBERED = UNSUPPORTED | {NO_PERMISSION}
# The GPU is gone, whichever call says so. Reading on would only disturb the driver's recovery.
GONE = frozenset({GPU_IS_LOST, RESET_REQUIRED})
# The handle lookup of a GPU that fell off the bus often says only "unknown error".
GONE_ON_LOOKUP = GONE | {UNKNOWN, GPU_NOT_FOUND}
# The library as a whole has to be initialised again.
LIBRARY_DOWN = frozenset({UNINITIALIZED, DRIVER_NOT_LOADED, LIB_RM_VERSION_MISMATCH})

# What a code means where nothing but the code is known.
_FAULTS: dict[int, Fault] = {
    NO_PERMISSION: "no_permission",
    INSUFFICIENT_POWER: "unpowered",
    DRIVER_NOT_LOADED: "driver_not_loaded",
    LIBRARY_NOT_FOUND: "no_driver",
    GPU_IS_LOST: "lost",
    RESET_REQUIRED: "needs_reset",
    LIB_RM_VERSION_MISMATCH: "driver_mismatch",
    OPERATING_SYSTEM: "blocked",
    UNKNOWN: "blocked",
}

TEXTS = {
    1: "Uninitialized",
    2: "Invalid Argument",
    3: "Not Supported",
    4: "Insufficient Permissions",
    6: "Not Found",
    7: "Insufficient Size",
    8: "Insufficient External Power",
    9: "Driver Not Loaded",
    10: "Timeout",
    11: "Interrupt Request Issue",
    12: "NVML Shared Library Not Found",
    13: "Function Not Found",
    14: "Corrupted infoROM",
    15: "GPU is lost",
    16: "GPU requires restart",
    17: "The operating system has blocked the request",
    18: "RM has detected an NVML/RM version mismatch",
    19: "GPU is in use",
    20: "Insufficient Memory",
    21: "No Data",
    23: "Insufficient Resources",
    25: "Argument Version Mismatch",
    26: "Deprecated",
    27: "Not Ready",
    28: "GPU Not Found",
    29: "Invalid State",
    999: "Unknown Error",
}


def fault(code: int) -> Fault:
    """What a return code says is wrong, "failed" for those that say nothing of use."""
    return _FAULTS.get(code, "failed")


def text(code: int) -> str:
    """NVML's own words for a return code (nvmlErrorString), known without calling NVML."""
    return TEXTS.get(code, f"NVML error {code}")


class Failure(NamedTuple):
    """A call that did not return success, and NVML's code."""

    call: str
    code: int


class Problem(NamedTuple):
    """Any other reason why a field has no value: what its Gap will say."""

    why: str
    fix: str = ""
    kind: GapKind = "unknown"
    code: GapCode = ""


Reason = Union[Failure, Problem]


def reason_of(fields: Sequence[Any]) -> Reason:
    """The reason as the child wrote it, through JSON: which of the two it is, its length tells."""
    return Failure(*fields) if len(fields) == len(Failure._fields) else Problem(*fields)


def unsupported(why: str) -> Problem:
    """This GPU or driver has no such thing: nothing is missed."""
    return Problem(why, kind="unsupported")


def starting(why: str) -> Problem:
    """The value comes with one of the next samples."""
    return Problem(why, kind="starting")


def implausible(why: str) -> Problem:
    """The driver answered with what cannot be; ``why`` says with what."""
    return Problem(why, code="implausible")


# Some drivers call fields and thresholds that they do not know an invalid argument. After the space comes the field's
# number: of a whole batch that is no answer.
_ASKED_BY_NUMBER = ("nvmlDeviceGetFieldValues ", "nvmlDeviceGetTemperatureThreshold", "nvmlDeviceGetGpuFabricInfo")


def is_unsupported(reason: Reason) -> bool:
    """Whether there is no such value here: nothing is missed."""
    if isinstance(reason, Problem):
        return reason.kind == "unsupported"
    return reason.code in UNSUPPORTED or (reason.code == INVALID_ARGUMENT and reason.call.startswith(_ASKED_BY_NUMBER))


# Of margins to limits of temperature (readers/limits.py).
T_LIMIT_ALONE = Problem(
    "this driver reports temperature limits only relative to a reading that it lacks: driver 570 has it",
    fix="update the NVIDIA driver to 570 or newer",
)
GPU_OR_MEMORY = Problem(
    "the GPU or its memory is above its limit: the driver reports only the distance to the nearer of the two"
)
