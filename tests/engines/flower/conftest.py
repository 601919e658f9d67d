"""One SuperLink, proxy and three links for all tests of a worker: each takes seconds to start."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not here: pip install 'silodp[flower]'")

from flower_stage import HOSPITALS, Stage, until

from silodp.engines.flower.grid import FlowerTransport


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    if not (shutil.which("nginx") or Path("/usr/sbin/nginx").exists()):
        pytest.fail("nginx is not here; install Debian's nginx-light, or what your system calls it")
    stage = Stage(tmp_path_factory.mktemp("flower"))
    try:
        stage.start()
        yield stage
    finally:
        stage.stop()


@pytest.fixture
def transport(stage: Stage) -> Iterator[FlowerTransport]:
    """With all links of the three hospitals up, whatever the test before did to them."""
    for name in HOSPITALS:
        if name not in stage.links:
            stage.link(name)
    transport = stage.transport()
    until(lambda: transport.connected() >= set(HOSPITALS), "three hospitals are connected")
    yield transport
    transport.close()
