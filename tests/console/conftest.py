import sys
from pathlib import Path

# The fleets of the end-to-end tests.
sys.path.append(str(Path(__file__).parents[1] / "e2e"))
