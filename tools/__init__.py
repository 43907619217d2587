"""Command-line programs; run `drmas-train` or `python tools/train.py`, and so on."""
