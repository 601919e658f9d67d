"""A link whose site sends back what it gets: ADDRESS CA KEY."""

import logging
import sys
from pathlib import Path

from silodp.deploy.programs import stop_on_signals
from silodp.engines.flower.link import run_link

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
address, ca, key = sys.argv[1:]
run_link(address, Path(ca), Path(key), lambda question: question, stop_on_signals())
print("signed off; PyTorch was", "imported" if "torch" in sys.modules else "not imported")
