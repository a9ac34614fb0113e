"""What travels: samples, findings, digests and verdicts.

These dataclasses are the wire format and the JSON output (same names). Units stand in the names:
``_bytes``, ``_w``, ``_c``, ``_mhz``, ``_s``, ``_bytes_per_s``; fractions are 0..1. A value is a number or
``None``; why it is ``None`` stands in the sample's ``gaps``. Unknown is never 0.

Runs on every node: Python 3.9, standard library only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mltop.probes.model.encoding import *  # noqa: F403
    from mltop.probes.model.gap import *  # noqa: F403
    from mltop.probes.model.gpu import *  # noqa: F403
    from mltop.probes.model.incident import *  # noqa: F403
    from mltop.probes.model.sample import *  # noqa: F403
    from mltop.probes.model.verdict import *  # noqa: F403
    from mltop.probes.model.vocabulary import *  # noqa: F403
else:
    _MODULES = ("vocabulary", "encoding", "gap", "gpu", "sample", "verdict", "incident")  # the smallest first

    def __getattr__(name: str) -> Any:
        """A name of one of these modules, loaded when somebody asks for it (PEP 562): NVML's reader process, which has
        to stay small, needs tables of this package and none of its dataclasses.
        """
        from importlib import import_module

        for module in () if name.startswith("_") else _MODULES:
            names = vars(import_module(f"{__name__}.{module}"))
            if name in names:
                globals()[name] = names[name]
                return names[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
