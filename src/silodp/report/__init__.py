"""A run, or several side by side, as one HTML page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from silodp.report.page import make_report

__all__ = ["make_report"]


def __getattr__(name: str) -> Any:
    """Imports `make_report` on first use: live pages use frame and charts of this package without PyTorch."""
    if name != "make_report":
        raise AttributeError(f"module 'silodp.report' has no attribute {name!r}")
    from silodp.report.page import make_report

    return make_report
