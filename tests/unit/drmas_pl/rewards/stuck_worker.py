"""A grading program that never finishes an answer; tests run it in place of the real one."""

import json
import sys
import time

from drmas_pl.rewards.worker import READY, RUNNING


def main() -> None:
    """Greet, accept a request, and hang."""
    print(json.dumps(READY), flush=True)
    sys.stdin.readline()
    print(json.dumps(RUNNING), flush=True)
    time.sleep(600)


if __name__ == "__main__":
    main()
