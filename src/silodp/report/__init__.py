"""The page that a person looks at: a run, or several side by side, as one HTML file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from silodp.report.page import make_report

__all__ = ["make_report"]


def __getattr__(name: str) -> Any:
    """Only when it is asked for: live pages take frame and charts from this room, and need no PyTorch."""
    if name != "make_report":
        raise AttributeError(f"module 'silodp.report' has no attribute {name!r}")
    from silodp.report.page import make_report

    return make_report
