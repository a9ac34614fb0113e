"""Calling NVML from the child: each call is noted in the breadcrumb first, each failure has a name."""

from __future__ import annotations

from typing import Any, Callable

from mltop.probes.collect.nvml import codes
from mltop.probes.collect.nvml.breadcrumb import NO_GPU, Breadcrumb


class NvmlError(Exception):
    """A call that did not return success."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(call, code)
        self.call = call
        self.code = code


class GarbageError(Exception):
    """A call that succeeded with a value that cannot be; the text says call and value."""


class Calls:
    """The functions of one loaded library. ``calls(name, gpu, *args)`` returns NVML's code."""

    def __init__(self, library: Any, crumb: Breadcrumb) -> None:
        self._library = library
        self._crumb = crumb
        self._functions: dict[str, tuple[Callable[..., int] | None, bytes]] = {}

    def __call__(self, name: str, gpu: int, *args: Any) -> int:
        found = self._functions.get(name)
        if found is None:
            found = self._functions[name] = (getattr(self._library, name, None), name.encode())
        function, encoded = found
        if function is None:
            return codes.FUNCTION_NOT_FOUND
        self._crumb.note(encoded, gpu)
        return function(*args)

    def system(self, name: str, *args: Any) -> None:
        """A call that concerns no single GPU; raises NvmlError."""
        code = self(name, NO_GPU, *args)
        if code:
            raise NvmlError(name, code)


def load(crumb: Breadcrumb) -> Calls:
    """Load libnvidia-ml.so.1 and initialise it.

    Raises NvmlError("nvmlInit", code), ImportError when pynvml is missing, OSError when the library is there
    but cannot be loaded.
    """
    import pynvml

    crumb.note(b"nvmlInit", NO_GPU)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if error.value == codes.LIBRARY_NOT_FOUND:
            from mltop.probes.collect.nvml.library import explain_missing

            explain_missing()
        raise NvmlError("nvmlInit", error.value) from None
    return Calls(pynvml.nvmlLib, crumb)
