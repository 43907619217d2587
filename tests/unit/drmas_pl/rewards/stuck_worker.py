"""A grading program that never finishes an answer; tests run it in place of the real one.

It makes the file named by ``STUCK_WORKER_BEGAN`` when it is at work.
"""

import json
import os
import sys
import time
from pathlib import Path

from drmas_pl.rewards.worker import READY, RUNNING


def main() -> None:
    """Greet, accept a request, and hang."""
    print(json.dumps(READY), flush=True)
    sys.stdin.readline()
    print(json.dumps(RUNNING), flush=True)
    if marker := os.environ.get("STUCK_WORKER_BEGAN"):
        Path(marker).touch()
    time.sleep(600)


if __name__ == "__main__":
    main()
