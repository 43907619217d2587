"""A server process of our own: started with sglang's launcher, watched, restarted, and never left behind.

A package named sglang that answers the least that an engine asks stands in for the real one; process, launcher and pipes are real.
"""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from drmas_pl.engines.sglang.engine import SglangEngine
from drmas_pl.engines.sglang.process import ServerProcess, free_port, reserved_port
from drmas_pl.engines.sglang.settings import ServerSettings
from drmas_pl.errors import ConfigError, EngineError
from drmas_pl.testing import tiny_policy
from drmas_pl.types import GenerationRequest, SamplingParams
from tests.helpers.fake_sglang import FakeSglang

REQUEST = GenerationRequest((5, 6, 7), SamplingParams(max_new_tokens=2), seed=1)
STAND_IN = """
import json, os, subprocess, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

flags = dict(zip(sys.argv[1::1], sys.argv[2::1]))
hidden = {flags.get("--api-key"), flags.get("--served-model-name")}
print("flags", [word for word in sys.argv[1:] if word not in hidden], flush=True)
print("inherited", [name for name in os.environ if name.startswith("DRMAS_SERVER")], flush=True)
print("gpus", os.environ.get("CUDA_VISIBLE_DEVICES"), "rank", os.environ.get("RANK"), os.environ.get("MASTER_ADDR"), flush=True)
if "FAIL" in os.environ:
    sys.exit("no memory left on the device")
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("worker", worker.pid, flush=True)
state = {"version": flags["--weight-version"]}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path != "/health" and not self.may_ask():
            return
        name = os.environ.get("CLAIM", flags.get("--served-model-name"))
        self.reply({"version": "0.5.21", "tp_size": 1, "dp_size": 1, "max_req_input_len": 100, "served_model_name": name})

    def may_ask(self):
        allowed = "OPEN" in os.environ or self.headers["Authorization"] == "Bearer " + flags["--api-key"]
        if not allowed:
            self.send_error(401)
        return allowed

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.may_ask():
            return
        if self.path == "/generate":
            ids = body["input_ids"]
            meta = {"finish_reason": {"type": "length"}, "output_token_logprobs": [[-1.0, 3, None], [-1.0, 4, None]]}
            meta |= {"weight_version": state["version"], "input_token_logprobs": [[-1.0, token, None] for token in ids]}
            return self.reply({"output_ids": [3, 4], "meta_info": meta})
        state["version"] = body.get("weight_version") or body.get("new_version") or state["version"]
        self.reply({"success": True})

    def reply(self, content):
        data = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


class Listener(ThreadingHTTPServer):
    # as many connections wait to be accepted as with a real server; a full queue resets some of those that come at once
    request_queue_size = 2048


Listener((flags["--host"], int(flags["--port"])), Handler).serve_forever()
"""


@pytest.fixture
def make_engine(tmp_path: Path) -> Iterator[Callable[..., SglangEngine]]:
    """Build engines whose sglang is the stand-in; all are closed in the end."""
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang/__init__.py").touch()
    (tmp_path / "sglang/launch_server.py").write_text(STAND_IN)
    engines = []

    def make(environment: dict[str, str] | None = None, **server: Any) -> SglangEngine:
        settings = {
            "device": "cpu",
            "start_timeout": 60.0,
            "environment": {"PYTHONPATH": str(tmp_path), **(environment or {})},
            **server,
        }
        engine = SglangEngine(
            *tiny_policy(),
            python=sys.executable,
            server=ServerSettings(**settings),
            folder=str(tmp_path / "run"),
            probe_tolerance=1e9,
        )
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.close()


def process_of(engine: SglangEngine) -> ServerProcess:
    server = engine._manager.server
    assert server is not None and server.process is not None
    return server.process


def gone(pid: int) -> bool:
    """Wait until a process has ended; what nobody waits for stays behind as a zombie."""
    for _ in range(200):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False


def worker_of(process: ServerProcess) -> int:
    (line,) = [line for line in process.log_file.read_text().splitlines() if line.startswith("worker")]
    return int(line.split()[1])


def test_a_server_is_started_with_its_flags_used_and_stopped_with_its_workers(
    make_engine: Any, tmp_path: Path
) -> None:
    engine = make_engine(
        max_total_tokens=4096, arguments={"log_level": "warning", "skip_server_warmup": True}
    )
    engine.wake()
    process = process_of(engine)
    worker = worker_of(process)
    assert engine.generate([REQUEST])[0].token_ids == (3, 4)
    engine.sync(4)
    assert engine.generate([REQUEST])[0].weights_version == 4
    words = process.log_file.read_text()
    for flag in (
        "'--device', 'cpu'",
        "'--max-total-tokens', '4096'",
        "'--log-level', 'warning'",
        "'--skip-server-warmup'",
    ):
        assert flag in words
    assert (
        "'--enable-deterministic-inference'" in words
        and "'--dtype', 'float32'" in words
        and "memory-saver" not in words
    )
    assert not list(tmp_path.glob("run/*/*.safetensors")) and not list(tmp_path.glob("run/*/start"))
    engine.close()
    assert gone(process.pid) and gone(worker)


def test_it_sees_the_devices_it_is_told_of_and_nothing_of_the_trainers_ranks(
    make_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("RANK", "1"), ("MASTER_ADDR", "here"), ("CUDA_VISIBLE_DEVICES", "1")):
        monkeypatch.setenv(name, value)
    for devices, seen in ((("1", "3"), "1,3"), ((), "1")):
        engine = make_engine(device="cuda", tensor_parallel=2)
        engine.use_devices(devices)
        engine.wake()
        assert f"gpus {seen} rank None None" in process_of(engine).log_file.read_text()
    engine = make_engine()
    engine.use_devices(("1", "3"))
    engine.wake()
    assert "gpus 1 rank" in process_of(engine).log_file.read_text()


def test_more_devices_than_there_are_are_refused(make_engine: Any) -> None:
    engine = make_engine(device="cuda", tensor_parallel=2, data_parallel=2, base_gpu_id=1)
    with pytest.raises(
        ConfigError,
        match=r"needs 5 GPUs .*data_parallel=2, base_gpu_id=1\), but .* have 4 on the first one's machine",
    ):
        engine.use_devices(("0", "1", "2", "3"))
    make_engine(
        device="cuda", tensor_parallel=2, data_parallel=2, arguments={"enable_dp_attention": True}
    ).use_devices(("0", "1"))


def test_a_killed_server_is_replaced_and_nothing_of_it_stays(make_engine: Any) -> None:
    engine = make_engine()
    engine.wake()
    first = process_of(engine)
    worker = worker_of(first)
    os.kill(first.pid, signal.SIGKILL)
    assert engine.generate([REQUEST])[0].token_ids == (3, 4)
    assert process_of(engine).pid != first.pid and gone(worker)


def test_a_server_killed_with_requests_under_way_is_replaced_and_asked_again(make_engine: Any) -> None:
    engine = make_engine()
    engine.wake()
    engine.generate([REQUEST])
    first = process_of(engine)
    # stopped first, so that it certainly dies with requests under way
    os.kill(first.pid, signal.SIGSTOP)
    futures = [engine.submit(REQUEST) for _ in range(20)]
    assert len(engine._dispatcher._under_way) == 20
    os.kill(first.pid, signal.SIGKILL)
    assert [future.result(60.0).token_ids for future in futures] == [(3, 4)] * 20
    assert process_of(engine).pid != first.pid and engine._manager.starts == 2


def test_everybody_elses_requests_are_refused_and_nobody_can_read_the_key(make_engine: Any) -> None:
    engine = make_engine()
    engine.wake()
    assert engine.generate([REQUEST])[0].token_ids == (3, 4)
    server = engine._manager.server
    for path in ("/server_info", "/generate"):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(server.client.url + path, data=b"{}" if path == "/generate" else None)
    command = Path(f"/proc/{server.process.pid}/cmdline").read_text()
    assert (
        "--weight-version" in command
        and "api-key" not in command
        and "drmas-" not in command.split("--port")[1]
    )
    assert "inherited []" in server.process.log_file.read_text()
    key = server.client._headers["Authorization"]
    assert len(key) > 40 and stat.S_IMODE(server.process.log_file.parent.stat().st_mode) == 0o700
    other = make_engine()
    other.wake()
    assert other._manager.server.client._headers["Authorization"] != key


def test_a_key_and_a_name_of_the_users_own_are_kept(make_engine: Any) -> None:
    engine = make_engine(arguments={"api-key": "mine", "served_model_name": "my-model"})
    engine.wake()
    server = engine._manager.server
    assert server.client._headers == {"Authorization": "Bearer mine"}
    assert server.info["served_model_name"] == "my-model"


@pytest.mark.parametrize(
    ("environment", "reason"),
    [({"OPEN": "1"}, "it answers without the key"), ({"CLAIM": "other"}, "it has another name")],
)
def test_a_server_that_is_not_ours_is_not_used(
    make_engine: Any, environment: dict[str, str], reason: str
) -> None:
    engine = make_engine(environment)
    with pytest.raises(
        EngineError, match=f"is not the one that was started there: {reason}; leave engine.server.port out"
    ):
        engine.wake()


def test_a_stranger_on_the_port_gets_neither_key_nor_prompts(make_engine: Any) -> None:
    stranger = FakeSglang(*tiny_policy())
    try:
        engine = make_engine(port=int(stranger.url.rpartition(":")[2]))
        with pytest.raises(
            EngineError, match=r"is not the one that was started there|ended while it started"
        ):
            engine.wake()
        assert not stranger.calls and set(stranger.keys_shown) <= {None}
    finally:
        stranger.close()


def test_a_reserved_port_is_given_to_nobody_but_a_server_that_asks_for_it() -> None:
    with reserved_port("127.0.0.1") as port:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        with socket.create_server(("127.0.0.1", port)):
            pass
        with reserved_port("127.0.0.1") as second:
            assert second != port


def test_a_server_that_cannot_start_says_why(make_engine: Any) -> None:
    engine = make_engine({"FAIL": "1"})
    with pytest.raises(
        EngineError, match=r"(?s)ended while it started; its exit code is 1.*no memory left on the device"
    ):
        engine.wake()


@pytest.mark.slow
def test_a_server_ends_when_the_trainer_does_however_that_ends(tmp_path: Path) -> None:
    code = f"""
    import os, sys
    from pathlib import Path
    from drmas_pl.engines.sglang.process import LAUNCHER, ServerProcess
    flags = ["--host", "127.0.0.1", "--port", "{free_port("127.0.0.1")}", "--weight-version", "0"]
    here = {{"PYTHONPATH": os.getcwd()}}
    process = ServerProcess([sys.executable, str(LAUNCHER), *flags], log_file=Path("server.log"), environment=here)
    while "worker" not in process.tail():
        pass
    print(process.pid, process.tail().rpartition("worker ")[2], flush=True)
    os.kill(os.getpid(), 9)
    """
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang/__init__.py").touch()
    (tmp_path / "sglang/launch_server.py").write_text(STAND_IN)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[5])}
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=900,
        env=environment,
    )
    assert result.returncode == -9, result.stderr
    server, worker = map(int, result.stdout.split())
    assert gone(server) and gone(worker)


def test_a_process_that_ignores_the_request_to_stop_is_killed(tmp_path: Path) -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    process = ServerProcess([sys.executable, "-c", code], log_file=tmp_path / "log")
    while process.tail() != "up":
        time.sleep(0.01)
    process.stop(0.1)
    assert process.exit_code == -signal.SIGKILL


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"'/nowhere/python' cannot be started: .*check engine.python"):
        ServerProcess(["/nowhere/python"], log_file=tmp_path / "log")
