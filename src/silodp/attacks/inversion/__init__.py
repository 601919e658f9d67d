"""Gradient inversion: reconstruct training images from what leaves a hospital."""

from __future__ import annotations

from silodp.attacks.inversion.attack import invert
from silodp.attacks.inversion.result import AttackResult, AttackSettings, Score
from silodp.attacks.inversion.search import Search

__all__ = ["AttackResult", "AttackSettings", "Score", "Search", "invert"]
