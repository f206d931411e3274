import subprocess
import sys

SCRIPT = """
import labelgap as lg
assert {"LargeLossCorrection", "FocalLoss"} <= set(dir(lg.losses)) and lg.losses.FocalLoss
assert lg.losses.ranking.__name__ == "labelgap.losses.ranking"
assert callable(lg.metrics.average_precision)
assert not hasattr(lg.models, "nothing")
"""


def test_a_lazy_package_shows_and_finds_its_names_and_modules() -> None:
    subprocess.run([sys.executable, "-c", SCRIPT], check=True)
