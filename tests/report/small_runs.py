"""Experiments of a second or two, for pages about them."""

from typing import Any

MRI: dict[str, Any] = {
    "name": "mri",
    "rounds": 3,
    "threads": 1,
    "cohort": {"kind": "synthetic-mri", "hospitals": 3, "slices": 210, "image_size": 32},
    "model": {"features": 2, "levels": 1},
    "local": {"learning_rate": 0.02, "batch_size": 4},
    "intermediaries": {"rule": "fixed", "count": 2},
    "clipping": {"rule": "fixed", "bound": 0.5},
    "privacy": {"noise_multiplier": 1.0},
}
CT: dict[str, Any] = {
    "name": "ct",
    "task": "classification",
    "rounds": 2,
    "threads": 1,
    "cohort": {"kind": "synthetic-ct", "hospitals": 3, "slices": 45, "image_size": 32, "channels": 1},
    "model": {"kind": "densenet", "features": 4, "growth": 2, "blocks": [1, 1]},
}
