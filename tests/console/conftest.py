import sys
from pathlib import Path

# The fleets of the end-to-end tests, of the control loop's, and the gateway's.
sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("e2e", "deploy", "router")]
