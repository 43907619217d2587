"""Time HTTP client libraries against a server on this machine: many requests at once, and one after the other.

    python -m benchmarks.bench_http --requests 1000 --out http.json

The first is what an sglang engine does with the prompts of an iteration, the second what a retriever does, whose waiting threads share one
request. Every library sends from a fresh process, so that its threads are its own; the server is a further process that answers
after a fixed time. httpx is measured where it is installed. ``urllib3`` waits in a thread per request, the others in one event loop.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ANSWER = json.dumps({"output_ids": list(range(300)), "logprobs": [-0.123456] * 300}).encode()
BODY = json.dumps({"input_ids": list(range(500))}).encode()
# until a request is given up, also on a busy machine
SECONDS = 600.0
TYPE = {"Content-Type": "application/json"}


@contextmanager
def serving(delay: float) -> Iterator[str]:
    """Serve in a process of its own and yield the address; every answer comes ``delay`` seconds after its request."""
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(delay, sender), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{receiver.recv()}/generate"
    finally:
        process.terminate()
        process.join()


def _serve(delay: float, sender: Any) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next(
                    line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
                )
                await reader.readexactly(int(length.partition(b":")[2]))
                await asyncio.sleep(delay)
                kind = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: "
                writer.write(kind + str(len(ANSWER)).encode() + b"\r\n\r\n" + ANSWER)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def run() -> None:
        server = await asyncio.start_server(handle, "127.0.0.1", 0, backlog=4096)
        sender.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


def send_with_aiohttp(url: str, requests: int, concurrent: int) -> int:
    """Send from one event loop; return the number of answers."""
    import aiohttp

    async def run() -> int:
        connector = aiohttp.TCPConnector(limit=concurrent)
        timeout = aiohttp.ClientTimeout(total=SECONDS)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

            async def send() -> bytes:
                async with session.post(url, data=BODY, headers=TYPE) as response:
                    return await response.read()

            return await _count(send, requests)

    return asyncio.run(run())


def send_with_httpx(url: str, requests: int, concurrent: int) -> int:
    """Send from one event loop; return the number of answers."""
    import httpx

    async def run() -> int:
        limits = httpx.Limits(max_connections=concurrent, max_keepalive_connections=concurrent)
        async with httpx.AsyncClient(limits=limits, timeout=SECONDS, trust_env=False) as session:

            async def send() -> bytes:
                return (await session.post(url, content=BODY, headers=TYPE)).content

            return await _count(send, requests)

    return asyncio.run(run())


def send_with_urllib3(url: str, requests: int, concurrent: int) -> int:
    """Send from a thread per request under way; return the number of answers."""
    import urllib3

    pool = urllib3.PoolManager(maxsize=concurrent, retries=False, timeout=SECONDS)

    def send(_: int) -> bytes:
        return pool.request("POST", url, body=BODY, headers=TYPE).data

    with ThreadPoolExecutor(concurrent) as threads:
        return sum(
            json.loads(answer)["output_ids"][-1] == 299 for answer in threads.map(send, range(requests))
        )


async def _count(send: Callable[[], Coroutine[Any, Any, bytes]], requests: int) -> int:
    answers = await asyncio.gather(*(send() for _ in range(requests)))
    return sum(json.loads(answer)["output_ids"][-1] == 299 for answer in answers)


CLIENTS = {"aiohttp": send_with_aiohttp, "urllib3": send_with_urllib3, "httpx": send_with_httpx}


def measure(name: str, url: str, requests: int, concurrent: int) -> dict[str, Any]:
    """Send all requests with one library from this process.

    Args:
        name: Key of :data:`CLIENTS`.
        url: Address of the server.
        requests: How many to send.
        concurrent: How many are under way at a time.

    Returns:
        Seconds, CPU seconds and most threads.

    Raises:
        RuntimeError: Not every request was answered.
    """
    # import and first use are not part of it
    CLIENTS[name](url, 1, 1)
    most = [threading.active_count()]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            most[0] = max(most[0], threading.active_count() - 1)

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.monotonic()
    cpu = time.process_time()
    try:
        answered = CLIENTS[name](url, requests, concurrent)
    finally:
        done.set()
        watcher.join()
    if answered != requests:
        raise RuntimeError(f"{name}: {answered} of {requests} requests were answered")
    return {
        "client": name,
        "requests": requests,
        "concurrent": concurrent,
        "seconds": time.monotonic() - start,
        "cpu_seconds": time.process_time() - cpu,
        "threads": most[0],
    }


def render(one: dict[str, Any]) -> str:
    """Format a measurement as a line."""
    return (
        f"{one['client']:<10}{one['concurrent']:>6} at a time{one['requests']:>7} requests{one['seconds']:>8.2f} s"
        f"{one['cpu_seconds']:>8.2f} CPU s{one['threads']:>6} threads"
    )


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(
        description="Time HTTP client libraries against a server on this machine."
    )
    parser.add_argument("--requests", type=int, default=1000, help="requests under way at a time")
    parser.add_argument("--single", type=int, default=200, help="requests sent one after the other")
    parser.add_argument(
        "--delay", type=float, default=0.2, help="seconds until an answer when many are under way"
    )
    parser.add_argument("--out", type=Path, help="write the record as JSON")
    options = parser.parse_args(argv)
    names = [name for name in CLIENTS if find_spec(name) is not None]
    records = []
    for requests, concurrent, delay in (
        (options.requests, options.requests, options.delay),
        (options.single, 1, 0.0),
    ):
        with serving(delay) as url:
            for name in names:
                with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as process:
                    records.append(process.submit(measure, name, url, requests, concurrent).result())
                sys.stdout.write(render(records[-1]) + "\n")
                sys.stdout.flush()
    if options.out is not None:
        options.out.write_text(json.dumps(records, indent=2))


if __name__ == "__main__":
    main()
