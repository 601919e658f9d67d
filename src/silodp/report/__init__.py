"""The page that a person looks at: a run, or several side by side, as one HTML file."""

from __future__ import annotations

from silodp.report.page import make_report

__all__ = ["make_report"]
