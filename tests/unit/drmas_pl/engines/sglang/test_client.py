"""HTTP to one server: answers, refusals, silence and loss."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest

from drmas_pl.engines.sglang import client as client_module
from drmas_pl.engines.sglang.client import Client, RequestRefused, RequestTimeout, ServerLost
from drmas_pl.engines.sglang.server import attach
from drmas_pl.errors import EngineError
from drmas_pl.testing import tiny_policy
from tests.helpers.fake_sglang import FakeSglang, cut, slow
from tests.helpers.pace import allowed


@pytest.fixture
def fake() -> Iterator[FakeSglang]:
    server = FakeSglang(*tiny_policy(), info={"nested": {"a": 1}})
    yield server
    server.close()


@pytest.fixture
def client(fake: FakeSglang) -> Iterator[Client]:
    client = Client(fake.url + "/", timeout=5.0)
    yield client
    client.close()


def test_json_and_text_are_read_as_what_they_are(fake: FakeSglang, client: Client) -> None:
    assert (
        client.get("/server_info")["nested"] == {"a": 1} and client.post("/flush_cache") == "Cache flushed."
    )
    assert (
        client.start("/update_weight_version", {"new_version": "5"}).result() == {"success": True}
        and fake.weight_version == "5"
    )


@pytest.mark.parametrize("size", [1, client_module.LARGE_BODY_BYTES + 1])
def test_bodies_of_every_size_arrive_without_a_warning(fake: FakeSglang, client: Client, size: int) -> None:
    body = {"text": "ä" * size}
    client.post("/flush_cache", body)
    assert fake.bodies("/flush_cache") == [body]


def test_refusals_silence_and_loss_are_told_apart(fake: FakeSglang, client: Client) -> None:
    fake.hooks["/flush_cache"] = lambda body: (400, {"error": "busy"})
    with pytest.raises(RequestRefused, match=r"/flush_cache answered 400: .*busy") as refused:
        client.post("/flush_cache")
    assert refused.value.status == 400
    fake.hooks["/flush_cache"] = slow(0.5, lambda body: True)
    with pytest.raises(RequestTimeout, match=r"/flush_cache did not answer within 0\.1 s"):
        client.post("/flush_cache", timeout=0.1)
    fake.hooks["/flush_cache"] = cut()
    with pytest.raises(ServerLost, match="went away during /flush_cache"):
        client.post("/flush_cache")
    with pytest.raises(ServerLost, match="went away during /health"):
        other = Client("http://127.0.0.1:9")
        try:
            other.get("/health")
        finally:
            other.close()


def test_what_a_dead_server_has_not_answered_is_cancelled(
    fake: FakeSglang, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "WATCH_SECONDS", 0.01)
    hold, alive = threading.Event(), threading.Event()
    alive.set()
    fake.hooks["/flush_cache"] = lambda body: (hold.wait(20), (200, body))[1] if body["n"] else None
    client.watch(alive.is_set)
    answered, unanswered = (client.start("/flush_cache", {"n": n}) for n in range(2))
    assert answered.result(20.0) == "Cache flushed."
    assert not unanswered.done()
    alive.clear()
    with pytest.raises(CancelledError):
        unanswered.result(20.0)
    hold.set()


def test_a_closed_client_may_be_closed_again(fake: FakeSglang) -> None:
    client = Client(fake.url)
    client.close()
    client.close()


def test_what_another_thread_waits_for_counts_as_lost_when_the_client_is_closed(fake: FakeSglang) -> None:
    client, arrived, leave = Client(fake.url, timeout=30.0), threading.Event(), threading.Event()
    fake.hooks["/generate"] = lambda body: (arrived.set(), leave.wait(20.0), None)[2]  # type: ignore[func-returns-value]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.post, "/generate")
        started = client.start("/generate", {})
        assert arrived.wait(20.0)
        client.close()
        with pytest.raises(ServerLost):
            waiting.result(20.0)
        assert started.cancelled() or isinstance(started.exception(20.0), ServerLost)
        leave.set()
    with pytest.raises(ServerLost, match="is closed"):
        client.post("/generate")


def test_what_is_sent_when_all_has_been_ended_is_refused_at_once(fake: FakeSglang) -> None:
    ended, refused = threading.Event(), threading.Event()

    class Late(Client):
        async def _end(self) -> None:
            await super()._end()
            ended.set()
            await asyncio.to_thread(refused.wait)

    client = Late(fake.url)
    closing = threading.Thread(target=client.close)
    closing.start()
    try:
        assert ended.wait(allowed(10.0))
        with pytest.raises(ServerLost, match="is closed"):
            client.post("/generate")
    finally:
        refused.set()
        closing.join()


def test_what_another_thread_sends_while_the_client_is_being_closed_counts_as_lost(client: Client) -> None:
    client._wait(client._session.close())
    with pytest.raises(ServerLost, match="is being closed"):
        client.get("/server_info")
    with pytest.raises(ServerLost, match="is being closed"):
        client.start("/generate", {}).result(20.0)


def test_a_key_is_shown_where_it_should_be(monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeSglang(*tiny_policy(), key="secret")
    try:
        with pytest.raises(EngineError, match="401"):
            attach(server.url, start_timeout=5.0, client={})
        monkeypatch.setenv("DRMAS_ENGINE_KEY", "secret")
        found = attach(server.url, start_timeout=5.0, client={})
        assert found.client.post("/flush_cache") == "Cache flushed."
        found.stop(1.0)
        assert server.keys_shown[-1] == "Bearer secret"
    finally:
        server.close()


def test_answers_that_make_no_sense_are_errors_of_the_engine(fake: FakeSglang, client: Client) -> None:
    for text in ("{", "[" * 100_000):
        fake.raw["/flush_cache"] = text
        with pytest.raises(EngineError, match=r"/flush_cache answers cannot be read: "):
            client.post("/flush_cache")


def test_a_server_that_sends_elsewhere_is_named(fake: FakeSglang, client: Client) -> None:
    fake.moved["/flush_cache"] = "http://elsewhere/flush_cache"
    with pytest.raises(
        RequestRefused, match=r"sends to http://elsewhere/flush_cache; give the address of the server"
    ):
        client.post("/flush_cache")
