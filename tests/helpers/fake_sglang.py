"""A small server that speaks sglang's protocol, strictly: it generates with a real tiny model and refuses what comes in a wrong order.

It runs in a thread of the test's process, or in one of its own that ``stand_in`` starts. What it cannot show is sglang itself;
tests/integration/test_sglang.py does.
"""

from __future__ import annotations

import base64
import copy
import json
import pickle
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from drmas_pl.engines.served import policy_logprobs
from drmas_pl.engines.transformers import TransformersEngine
from drmas_pl.models.adapters import merge
from drmas_pl.types import GenerationRequest, SamplingParams

Answer = tuple[int, Any]
Hook = Callable[[Mapping[str, Any]], Answer | None]
NEEDS_IDLE = ("/update_weights", "/release_memory_occupation")
UNAUTHORIZED: Answer = (401, {"error": "Unauthorized"})


class _Listener(ThreadingHTTPServer):
    # connections that may wait to be accepted
    request_queue_size = 2048


class FakeSglang:
    """Serves a copy of a policy.

    Args:
        policy: Copied; the copy is what weight updates change.
        tokenizer: Its tokenizer.
        version: The version that it claims to be.
        info: Further entries of its server info.
        port: Port it listens on; a free one unless given.
        log: File that gets a line of JSON for every POST.
        key: What a request must show, except for its health; None lets everybody ask.

    Attributes:
        calls: Path and body of every POST, in order.
        hooks: By path, asked first: an answer of theirs replaces the server's own; what they raise cuts the connection.
        released: Memory that is released.
        paused: Whether generation is paused.
        adapters: Folder that an adapter was read from, by its name.
        keys_shown: What each request showed for a key.
        raw: By path, text that is sent as JSON in the place of an answer.
        moved: By path, the address that requests are sent on to.
        delay: Seconds that a response takes, unless it is aborted before.
        clearing: Seconds for which a request counts as there after its answer.
        weight_version: Name of the weights.
        session: Whether a weight update is open.
    """

    def __init__(
        self,
        policy: Any,
        tokenizer: Any,
        *,
        version: str = "0.5.21",
        info: Mapping[str, Any] | None = None,
        port: int = 0,
        log: Path | None = None,
        key: str | None = None,
    ) -> None:
        self.tokenizer, self.log = tokenizer, log
        self.keys_shown: list[str | None] = []
        self.raw: dict[str, str] = {}
        self.moved: dict[str, str] = {}
        self.delay: Callable[[Mapping[str, Any]], float] = lambda body: 0.0
        self.clearing = 0.0
        self._unfinished = 0
        self._cleared_at = 0.0
        self._aborts: dict[str, threading.Event] = {}
        self.policy = copy.deepcopy(policy)
        self.engine = TransformersEngine(self.policy, tokenizer, reuse_prefixes=False)
        self.info = {"version": version, "tp_size": 1, "dp_size": 1, "max_req_input_len": 122, **(info or {})}
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.hooks: dict[str, Hook] = {}
        self.released: set[str] = set()
        self.adapters: dict[str, str] = {}
        self._adapted: dict[str, TransformersEngine] = {}
        self.paused = self.session = False
        self.weight_version = "default"
        self.busy = self.busiest = 0
        self._lock = threading.Lock()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._reply(fake.get(self.path) if self._may_ask() else UNAUTHORIZED)

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
                if not self._may_ask():
                    self._reply(UNAUTHORIZED)
                    return
                try:
                    answer = fake.post(self.path, body)
                except ConnectionAbortedError:
                    self.close_connection = True
                    return
                self._reply(answer)

            def _may_ask(self) -> bool:
                shown = self.headers["Authorization"]
                fake.keys_shown.append(shown)
                return key is None or self.path == "/health" or shown == f"Bearer {key}"

            def _reply(self, answer: Answer) -> None:
                status, headers, data = fake.written(self.path, answer)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                # an interrupted client does not wait for its answer
                with suppress(BrokenPipeError):
                    self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._http = _Listener(("127.0.0.1", port), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Address."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def close(self) -> None:
        """Stop serving."""
        self._http.shutdown()
        self._http.server_close()

    def paths(self, *, but: tuple[str, ...] = ("/generate",)) -> list[str]:
        """Return the paths that were posted to, in order."""
        return [path for path, _ in self.calls if path not in but]

    def bodies(self, path: str) -> list[dict[str, Any]]:
        """Return what was posted to one path."""
        return [body for called, body in self.calls if called == path]

    def written(self, path: str, answer: Answer) -> tuple[int, dict[str, str], bytes]:
        """Return an answer as status, headers and body."""
        status, content = answer
        as_text = isinstance(content, str) and path not in self.raw
        text = self.raw.get(path, content if isinstance(content, str) else json.dumps(content))
        headers = {
            "Content-Type": "text/plain" if as_text else "application/json",
            "Content-Length": str(len(text.encode())),
        }
        if path in self.moved:
            return 307, {**headers, "Location": self.moved[path]}, text.encode()
        return status, headers, text.encode()

    def get(self, path: str) -> Answer:
        """Answer a GET."""
        if path in self.hooks and (answer := self.hooks[path]({})) is not None:
            return answer
        if path == "/health":
            return 200, ""
        return (
            (200, self.info)
            if path in ("/server_info", "/get_server_info")
            else (404, {"detail": "Not Found"})
        )

    def post(self, path: str, body: dict[str, Any]) -> Answer:
        """Answer a POST."""
        with self._lock:
            self.calls.append((path, body))
            if self.log is not None:
                with self.log.open("a") as file:
                    file.write(
                        json.dumps(
                            [path, {name: value for name, value in body.items() if name != "input_ids"}]
                        )
                        + "\n"
                    )
            self.busy += 1
            self._unfinished += path == "/generate"
            self.busiest = max(self.busiest, self.busy)
        try:
            if path in self.hooks and (answer := self.hooks[path](body)) is not None:
                return answer
            aborted = path == "/generate" and self._take_time(body)
            with self._lock:
                return _cut_short(self._sample(body)) if aborted else self._act(path, body)
        finally:
            with self._lock:
                self.busy -= 1
                if path == "/generate":
                    self._unfinished -= 1
                    self._cleared_at = time.monotonic() + self.clearing

    def _take_time(self, body: Mapping[str, Any]) -> bool:
        """Wait as long as the response takes; return whether it was aborted."""
        seconds = self.delay(body)
        if not seconds:
            return False
        aborted = (
            self._aborts.setdefault(body["rid"], threading.Event()) if "rid" in body else threading.Event()
        )
        return aborted.wait(seconds)

    @property
    def _idle(self) -> bool:
        return not self._unfinished and time.monotonic() >= self._cleared_at

    def _act(self, path: str, body: dict[str, Any]) -> Answer:
        if path.startswith(NEEDS_IDLE) and not self._idle:
            # where sglang's scheduler ends with a failed assertion
            return 500, {"error": {"message": f"{path} while there are requests"}}
        act = getattr(self, "do_" + path.strip("/"), None)
        return (404, {"detail": "Not Found"}) if act is None else act(body)

    def do_generate(self, body: dict[str, Any]) -> Answer:
        if self.paused or self.released:
            return 500, {"error": {"message": f"paused={self.paused}, released={sorted(self.released)}"}}
        if body.get("lora_path") is not None and body["lora_path"] not in self.adapters:
            return 400, {"error": {"message": f"no adapter {body['lora_path']}"}}
        return self._sample(body)

    def _sample(self, body: dict[str, Any]) -> Answer:
        ids, sampling = tuple(body["input_ids"]), body["sampling_params"]
        settings = {"max_new_tokens": sampling["max_new_tokens"], "temperature": sampling["temperature"]}
        more = {
            "top_p": sampling.get("top_p", 1.0),
            "top_k": sampling.get("top_k", -1),
            "stop": tuple(sampling.get("stop", ())),
        }
        request = GenerationRequest(
            ids, SamplingParams(**settings, **more), sampling.get("sampling_seed", 42)
        )
        engine = self._adapted.get(str(body.get("lora_path")), self.engine)
        (completion,) = engine.generate([request])
        entries = list(zip(completion.logprobs, completion.token_ids, [None] * len(completion.token_ids)))
        meta: dict[str, Any] = {
            "finish_reason": {"type": completion.finish_reason},
            "output_token_logprobs": entries,
        }
        meta["weight_version"] = self.weight_version
        if body.get("logprob_start_len") == 0:
            scores = policy_logprobs(engine.policy, ids, engine.autocast)
            meta["input_token_logprobs"] = [
                [None, ids[0], None],
                *([score, token, None] for score, token in zip(scores, ids[1:])),
            ]
        return 200, {"output_ids": list(completion.token_ids), "meta_info": meta}

    def do_pause_generation(self, body: dict[str, Any]) -> Answer:
        self.paused = True
        for abort in self._aborts.values():
            abort.set()
        return 200, {"status": "ok"}

    def do_continue_generation(self, body: dict[str, Any]) -> Answer:
        self.paused = False
        return 200, {"status": "ok"}

    def do_flush_cache(self, body: dict[str, Any]) -> Answer:
        return (200, "Cache flushed.") if self._idle else (400, "Flush cache failed.")

    def do_abort_request(self, body: dict[str, Any]) -> Answer:
        if body["rid"] in self._aborts:
            self._aborts[body["rid"]].set()
        return 200, ""

    def do_release_memory_occupation(self, body: dict[str, Any]) -> Answer:
        self.released |= set(body["tags"])
        if "weights" in body["tags"] and not self.info.get("enable_weights_cpu_backup"):
            with torch.no_grad():
                for parameter in self.policy.parameters():
                    parameter.zero_()
        return 200, ""

    def do_resume_memory_occupation(self, body: dict[str, Any]) -> Answer:
        self.released -= set(body["tags"])
        return 200, ""

    def do_update_weight_version(self, body: dict[str, Any]) -> Answer:
        self.weight_version = body["new_version"]
        return 200, {"success": True}

    def do_update_weights_from_disk(self, body: dict[str, Any]) -> Answer:
        return self._load(load_file(Path(body["model_path"]) / "model.safetensors"), body)

    def do_begin_weight_update(self, body: dict[str, Any]) -> Answer:
        if self.session:
            return 400, {"success": False, "message": "a session is already open"}
        self.session = True
        return 200, {"success": True}

    def do_end_weight_update(self, body: dict[str, Any]) -> Answer:
        self.session = False
        return 200, {"success": True}

    def do_update_weights_from_tensor(self, body: dict[str, Any]) -> Answer:
        if not self.session and self.info["version"] == "0.5.21":
            return 400, {"success": False, "message": "must run between begin and end"}
        return self._load(dict(pickle.loads(base64.b64decode(body["serialized_named_tensors"][0]))), body)

    def do_init_weights_update_group(self, body: dict[str, Any]) -> Answer:
        return 200, {"success": True}

    def do_destroy_weights_update_group(self, body: dict[str, Any]) -> Answer:
        return 200, {"success": True}

    def do_update_weights_from_distributed(self, body: dict[str, Any]) -> Answer:
        self.weight_version = body.get("weight_version", self.weight_version)
        return 200, {"success": True}

    def do_load_lora_adapter(self, body: dict[str, Any]) -> Answer:
        if body["lora_name"] in self.adapters:
            return 400, {"success": False, "error_message": "that name is taken"}
        name, folder = body["lora_name"], Path(body["lora_path"])
        self.adapters[name] = str(folder)
        if (folder / "adapter_model.safetensors").exists():
            self._adapted[name] = TransformersEngine(
                merge(copy.deepcopy(self.policy), folder), self.tokenizer, reuse_prefixes=False
            )
        return 200, {"success": True}

    def do_unload_lora_adapter(self, body: dict[str, Any]) -> Answer:
        del self.adapters[body["lora_name"]]
        self._adapted.pop(body["lora_name"], None)
        return 200, {"success": True}

    def _load(self, weights: Mapping[str, torch.Tensor], body: Mapping[str, Any]) -> Answer:
        if "weights" in self.released:
            return 400, {"success": False, "message": "the memory of the weights is released"}
        unexpected = nn.Module.load_state_dict(self.policy, weights, strict=False).unexpected_keys
        if unexpected:
            return 400, {"success": False, "message": f"unexpected {unexpected}"}
        self.weight_version = body.get("weight_version", self.weight_version)
        return 200, {"success": True, "message": "ok"}


def _cut_short(answer: Answer) -> Answer:
    """Return an answer as that of a request which was aborted after its first token."""
    status, content = answer
    meta = content["meta_info"]
    reason = {"type": "abort", "message": "Abort in waiting queue"}
    cut_meta = {**meta, "finish_reason": reason, "output_token_logprobs": meta["output_token_logprobs"][:1]}
    return status, {"output_ids": content["output_ids"][:1], "meta_info": cut_meta}


def cut(times: int = 1) -> Hook:
    """Return a hook that cuts the first ``times`` connections and then lets the server answer."""
    left = [times]
    lock = threading.Lock()

    def hook(body: Mapping[str, Any]) -> Answer | None:
        with lock:
            left[0] -= 1
            if left[0] >= 0:
                raise ConnectionAbortedError
        return None

    return hook


def slow(seconds: float, chosen: Callable[[Mapping[str, Any]], bool]) -> Hook:
    """Return a hook that holds chosen requests back."""

    def hook(body: Mapping[str, Any]) -> Answer | None:
        if chosen(body):
            time.sleep(seconds)
        return None

    return hook
