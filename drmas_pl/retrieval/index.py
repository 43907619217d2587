"""The folder an index is kept in: complete or absent, and only served to the corpus and settings it was built for."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from drmas_pl.errors import DataError

_FINGERPRINT: Final = "fingerprint.json"


class IndexFolder:
    """One index on disk.

    Args:
        path: The folder; need not exist yet.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def exists(self) -> bool:
        """Whether a complete index lies there."""
        return (self.path / _FINGERPRINT).is_file()

    def check(self, fingerprint: str) -> None:
        """Make sure that the index belongs to ``fingerprint``.

        Raises:
            DataError: It was built for another corpus, backend or other settings.
        """
        stored = json.loads((self.path / _FINGERPRINT).read_text(encoding="utf-8"))["fingerprint"]
        if stored != fingerprint:
            raise DataError(
                f"index {self.path.name} was built for {stored}, but this corpus with these settings is {fingerprint}; delete it"
            )

    @contextmanager
    def writing(self, fingerprint: str) -> Iterator[Path]:
        """Yield a draft folder that gets its final name when the block ends without error.

        If another process finished the same index meanwhile, that one stays.

        Raises:
            DataError: Something that is no index lies in the way.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(dir=self.path.parent, prefix=f".{self.path.name}-"))
        try:
            yield draft
            (draft / _FINGERPRINT).write_text(json.dumps({"fingerprint": fingerprint}), encoding="utf-8")
            try:
                os.replace(draft, self.path)
            except OSError as error:
                if not self.exists:
                    raise DataError(
                        f"cannot write index {self.path}: {error.strerror}; remove what lies there"
                    ) from error
                self.check(fingerprint)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
