"""What the figures of tests are held against: the paper's own, and the Gaussian formula with sixty digits."""

import mpmath  # type: ignore[import-untyped]

PAPER = [
    (0.5, 0.01, 245.6),
    (1.0, 0.01, 72.4),
    (1.5, 0.01, 36.9),
    (0.3, 0.1, 597.3),
    (0.5, 0.1, 224.7),
    (0.7, 0.1, 119.4),
]
"""z, δ and the ε that the paper prints for a hundred rounds."""

PAPER_SPLIT = [(0.5, 15, 0.1, 45_383.5, 224.7), (1.0, 12, 0.01, 7_478.2, 72.4)]
"""z, v and δ of the paper's tables, with the ε of a hospital and that of an intermediary."""


def exact_delta(mu: float, epsilon: float) -> float:
    """δ(ε) of a μ-GDP release."""
    with mpmath.workdps(60):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return float(mpmath.ncdf(-e / m + m / 2) - mpmath.exp(e) * mpmath.ncdf(-e / m - m / 2))
