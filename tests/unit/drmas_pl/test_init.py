"""The package's public names, and what importing it costs."""

import subprocess
import sys
from pathlib import Path

import drmas_pl

ROOT = Path(__file__).parents[3]


def test_every_public_name_exists_and_is_listed_once() -> None:
    assert len(set(drmas_pl.__all__)) == len(drmas_pl.__all__)
    assert set(drmas_pl._HOMES) | {"__version__"} == set(drmas_pl.__all__)
    for name in drmas_pl.__all__:
        assert getattr(drmas_pl, name) is not None


def test_importing_the_package_costs_next_to_nothing() -> None:
    heavy = (
        "torch",
        "lightning",
        "transformers",
        "psutil",
        "packaging",
        "matplotlib",
        "tensorboard",
        "hydra",
        "rich",
    )
    code = (
        "import sys, time; start = time.process_time(); import drmas_pl; spent = time.process_time() - start\n"
        f"print([name for name in {heavy} if name in sys.modules], spent < 0.3)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, cwd=ROOT
    )
    assert result.stdout.strip() == "[] True", result.stdout + result.stderr
