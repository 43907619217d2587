"""HTTP requests that leave no connection open."""

from __future__ import annotations

from typing import Any

import urllib3


def request(method: str, url: str, **options: Any) -> urllib3.BaseHTTPResponse:
    """Send a request and return the whole response; its connection is closed."""
    with urllib3.PoolManager() as http:
        return http.request(method, url, **options)
