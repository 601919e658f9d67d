"""All names that silodp uses from Flower's simulation runtime; importing them takes seconds, because of Ray.

`run_simulation` is deprecated in favour of `flwr run`; the version is pinned, and `flwr run` ends in the same
runtime after starting a SuperLink on loopback, to which every user of the machine may submit code.
"""

# ruff: noqa: F401  the names are for other modules

from __future__ import annotations

from silodp.errors import InputError

try:
    from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation
except ImportError as error:
    raise InputError(
        f"this needs Flower, which is not installed ({error}); pip install 'silodp[flower]'"
    ) from None
