"""A dcgmi that prints a diagnosis as DCGM's does, of version 3 or 4; or hangs, or fails."""

from __future__ import annotations

import json
from pathlib import Path

from tests.fakes.scripts import python_script

VERSION_3 = {
    "DCGM GPU Diagnostic": {
        "test_categories": [
            {
                "category": "Deployment",
                "tests": [
                    {"name": "Denylist", "results": [{"status": "Pass"}]},
                    {"name": "Persistence Mode", "results": [{"status": "Warn", "warnings": "is off"}]},
                    {
                        "name": "Page Retirement/Row Remap",
                        "results": [
                            {"gpu_ids": "0,1", "status": "Pass"},
                            {"gpu_id": "2", "status": "Fail", "warnings": ["a row remapping failed"]},
                        ],
                    },
                ],
            }
        ]
    }
}
VERSION_4 = {
    "DCGM Diagnostic": {
        "metadata": {"version": "4.1.0"},
        "test_categories": [
            {
                "category": "Deployment",
                "tests": [
                    {
                        "name": "software",
                        "results": [
                            {"entity_group": "GPU", "entity_group_id": 1, "entity_id": 0, "status": "Pass"},
                            {
                                "entity_group": "GPU",
                                "entity_group_id": 1,
                                "entity_id": 1,
                                "status": "Fail",
                                "warnings": [{"error_id": 95, "warning": "row remap failure"}],
                            },
                        ],
                        "test_summary": {"status": "Fail"},
                    }
                ],
            }
        ],
    }
}
NOT_RUNNING = {"DCGM Diagnostic": {"runtime_error": "Error: unable to establish a connection to the host engine"}}


def fake_dcgmi(folder: Path, output: object, code: str = "") -> Path:
    """``code`` runs before; what it was called with stands in ``args`` beside it."""
    text = output if isinstance(output, str) else json.dumps(output)
    note = f"import pathlib, sys\npathlib.Path({str(folder / 'args')!r}).write_text(' '.join(sys.argv[1:]))\n"
    return python_script(folder / "dcgmi", f"{note}{code}\nprint({text!r})\n")
