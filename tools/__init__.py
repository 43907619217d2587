"""Command-line programs; `drmas` lists them, and `python tools/train.py` and so on run them from a checkout."""
