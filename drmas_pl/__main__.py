"""``python -m drmas_pl`` is the command ``drmas``."""

from drmas_pl.tools.command import main

if __name__ == "__main__":
    raise SystemExit(main())
