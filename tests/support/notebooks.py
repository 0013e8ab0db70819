"""Runs the code cells of a notebook, as one program, without Jupyter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def code_cells(notebook: Path) -> list[str]:
    """Return the source of the code cells of a notebook."""
    cells = json.loads(notebook.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def run_notebook(notebook: Path) -> dict[str, Any]:
    """Execute the code cells in order, in this process and directory; return what they defined."""
    names: dict[str, Any] = {"__name__": notebook.stem}
    for number, source in enumerate(code_cells(notebook), 1):
        exec(compile(source, f"{notebook.name}, code cell {number}", "exec"), names)
    return names
