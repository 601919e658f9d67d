"""What a hospital's limits say of releases, whatever agreement or plan they come from."""

import pytest

from silodp import Experiment
from silodp.deploy.checks import refuse_releases_beyond_limits
from silodp.deploy.limits import Limits
from silodp.errors import InputError
from silodp.releases import Releases


def test_what_is_used_without_noise_is_beyond_every_limit(experiment: Experiment) -> None:
    """No ε covers it, so that a limit on ε alone would let it pass."""
    asked = experiment.change(clipping={"rule": "median"}, privacy__noise_multiplier=9.0)
    update, norm = Releases.of(asked, [10, 10, 10]).events(1, 1, None, False)
    limits = Limits(epsilon=1e6)
    refuse_releases_beyond_limits(limits, [], [update], 0.01)
    with pytest.raises(InputError, match="limits: «median norm» would be used without noise"):
        refuse_releases_beyond_limits(limits, [], [update, norm], 0.01)
