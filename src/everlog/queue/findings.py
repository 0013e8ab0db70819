"""One problem of a queue: what `doctor` and the deep check report."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """Error: messages cannot be read. Warning: an operator should act. Info: nothing to do."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem: a stable code, the file or reader it is about, and what to do."""

    code: str
    severity: Severity
    subject: str
    message: str
