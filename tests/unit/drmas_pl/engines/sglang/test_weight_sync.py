"""What each weight sync sends, version by version; the sending itself is shown with a real server in tests/integration."""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drmas_pl.engines.sglang.engine import SglangEngine
from drmas_pl.engines.sglang.factory import lora_settings, make_weight_sync
from drmas_pl.engines.sglang.server import Server, attach
from drmas_pl.engines.sglang.settings import ServerSettings
from drmas_pl.engines.sglang.weight_sync import tensor as tensor_sync
from drmas_pl.engines.sglang.weight_sync.base import checkpoint_weights, has_adapters
from drmas_pl.engines.sglang.weight_sync.disk import AdapterSync, DiskSync
from drmas_pl.engines.sglang.weight_sync.tensor import GroupSync, TensorSync, serialize
from drmas_pl.errors import EngineError
from drmas_pl.models.adapters import LoraSettings, share_base
from drmas_pl.testing import tiny_policy
from drmas_pl.types import GenerationRequest, SamplingParams
from tests.helpers.fake_sglang import FakeSglang

POLICY, TOKENIZER = tiny_policy(seed=3, context_length=128)


@pytest.fixture
def fake() -> Iterator[FakeSglang]:
    server = FakeSglang(POLICY, TOKENIZER)
    yield server
    server.close()


def connect(fake: FakeSglang) -> Server:
    return attach(fake.url, start_timeout=5.0, client={"timeout": 10.0})


class Group:
    """Stands for the torch.distributed group and keeps what was broadcast."""

    made: list[Group]

    def __init__(self, name: str, **settings: Any) -> None:
        self.name, self.settings, self.sent, self.closed = name, settings, [], False  # type: ignore[var-annotated]
        Group.made.append(self)

    def broadcast(self, tensors: list[Tensor]) -> None:
        self.sent.append(tensors)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[Group]:
    Group.made = []
    monkeypatch.setattr(tensor_sync, "UpdateGroup", Group)
    return Group.made


@pytest.mark.parametrize(("version", "session"), [("0.5.21", True), ("0.5.20", False)])
def test_a_group_is_made_once_and_every_bucket_announced(
    fake: FakeSglang, groups: list[Group], version: str, session: bool
) -> None:
    fake.info |= {"version": version, "tp_size": 2}
    server, weight_sync = connect(fake), GroupSync(bucket_bytes=20_000, dtype=torch.bfloat16)
    for number in (1, 2):
        weight_sync.push(server, POLICY, number)
    (group,) = groups
    (meeting,) = fake.bodies("/init_weights_update_group")
    assert meeting["world_size"] == group.settings["world_size"] == 3 and meeting["rank_offset"] == 1
    assert meeting["backend"] == group.settings["backend"] == "gloo" and meeting["group_name"] == group.name
    assert meeting["master_port"] == group.settings["port"] and meeting["master_address"] == "127.0.0.1"
    announced = fake.bodies("/update_weights_from_distributed")
    buckets = len(announced) // 2
    assert (
        buckets > 1 and [body["flush_cache"] for body in announced] == ([False] * (buckets - 1) + [True]) * 2
    )
    assert [body.get("weight_version") for body in announced] == [None] * (buckets - 1) + ["1"] + [None] * (
        buckets - 1
    ) + ["2"]
    first = [body for body in announced[:buckets]]
    assert [name for body in first for name in body["names"]] == [
        name for name in POLICY.state_dict() if name != "lm_head.weight"
    ]
    assert {dtype for body in first for dtype in body["dtypes"]} == {"bfloat16"}
    assert [shape for body in first for shape in body["shapes"]] == [
        list(tensor.shape) for tensors in group.sent[:buckets] for tensor in tensors
    ]
    assert (fake.paths().count("/begin_weight_update"), fake.paths().count("/end_weight_update")) == (
        (2, 2) if session else (0, 0)
    )
    weight_sync.forget()
    assert group.closed
    weight_sync.push(server, POLICY, 3)
    assert (
        len(groups) == 2 and groups[1].name != group.name and not fake.bodies("/destroy_weights_update_group")
    )
    weight_sync.close()
    weight_sync.close()
    assert (
        fake.bodies("/destroy_weights_update_group") == [{"group_name": groups[1].name}] and groups[1].closed
    )
    server.stop(0)


def test_a_broadcast_that_fails_is_told_with_the_servers_reason_and_closes_the_session(
    fake: FakeSglang, groups: list[Group], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Group, tensors: list[Tensor]) -> None:
        raise RuntimeError("connection closed by peer")

    monkeypatch.setattr(Group, "broadcast", fail)
    server, weight_sync = connect(fake), GroupSync(timeout=5.0)
    with pytest.raises(EngineError, match="the broadcast of weights failed: connection closed by peer"):
        weight_sync.push(server, POLICY, 1)
    fake.hooks["/update_weights_from_distributed"] = lambda body: (
        400,
        {"success": False, "message": "no such name"},
    )
    with pytest.raises(EngineError, match="no such name"):
        weight_sync.push(server, POLICY, 1)
    assert not fake.session
    server.stop(0)


@pytest.mark.parametrize("version", ["0.5.21", "0.5.9"])
def test_tensors_arrive(fake: FakeSglang, version: str) -> None:
    fake.info["version"] = version
    server = connect(fake)
    other, _ = tiny_policy(seed=4, context_length=128)
    TensorSync(bucket_bytes=20_000).push(server, other, 7)
    assert (
        fake.weight_version == "7"
        and len(fake.bodies("/update_weights_from_tensor")) > 1
        and not fake.session
    )
    assert all(torch.equal(left, right) for left, right in zip(fake.policy.parameters(), other.parameters()))
    assert ("/begin_weight_update" in fake.paths()) == (version == "0.5.21")
    server.stop(0)


def test_every_rank_gets_tensors_of_its_own(fake: FakeSglang) -> None:
    fake.info["tp_size"] = 2
    server = connect(fake)
    TensorSync().push(server, POLICY, 1)
    (body,) = fake.bodies("/update_weights_from_tensor")
    assert len(body["serialized_named_tensors"]) == 2
    server.stop(0)


def test_a_view_is_sent_without_the_rest_of_its_storage() -> None:
    data = base64.b64decode(serialize([("row", torch.zeros(1000, 1000)[3])]))
    assert len(data) < 20_000 and pickle.loads(data)[0][1].shape == (1000,)


def test_the_disk_holds_one_version_for_as_long_as_it_is_read(fake: FakeSglang, tmp_path: Path) -> None:
    server, seen = connect(fake), []
    fake.hooks["/update_weights_from_disk"] = lambda body: seen.append(
        sorted(path.name for path in Path(body["model_path"]).iterdir())
    )
    weight_sync = DiskSync(TOKENIZER, folder=lambda: tmp_path, dtype=torch.float32)
    for version in (1, 2):
        weight_sync.push(server, POLICY, version)
    assert list(tmp_path.iterdir()) == [] and {"model.safetensors", "config.json", "tokenizer.json"} <= set(
        seen[0]
    )
    paths = [body["model_path"] for body in fake.bodies("/update_weights_from_disk")]
    assert paths[0] != paths[1] and fake.weight_version == "2"
    server.stop(0)


class Adapted(nn.Module):
    """Looks like a PEFT model from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.base, _ = tiny_policy(seed=3, context_length=128)
        self.config, self.generation_config = self.base.config, self.base.generation_config
        self.peft_config = {"default": SimpleNamespace(r=8, target_modules={"v_proj", "q_proj"})}

    def get_base_model(self) -> nn.Module:
        return self.base

    def get_input_embeddings(self) -> nn.Module:
        return self.base.get_input_embeddings()

    def forward(self, **inputs: Any) -> Any:
        return self.base(**inputs)

    def save_pretrained(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "adapter_config.json").write_text(json.dumps({"r": 8}))


def test_every_version_of_an_adapter_has_a_name_of_its_own(fake: FakeSglang, tmp_path: Path) -> None:
    server, weight_sync = connect(fake), AdapterSync(folder=lambda: tmp_path)
    names = []
    for version in (1, 2, 2):
        weight_sync.push(server, Adapted(), version)
        names.append(weight_sync.adapter)
    assert len(set(names)) == 3 and list(fake.adapters) == [names[2]] and list(tmp_path.iterdir()) == []
    assert [body["lora_name"] for body in fake.bodies("/unload_lora_adapter")] == names[:2]
    server.stop(0)


def test_an_engine_with_adapters_names_the_newest_in_every_request(fake: FakeSglang) -> None:
    engine = SglangEngine(Adapted(), TOKENIZER, url=fake.url, server=ServerSettings(start_timeout=5.0))
    engine.wake()
    request = GenerationRequest((5, 6), SamplingParams(max_new_tokens=2), seed=1)
    versions = []
    for version in (1, 2):
        engine.sync(version)
        versions.append(engine.generate([request])[0].weights_version)
    asked = [body["lora_path"] for body in fake.bodies("/generate")]
    assert versions == [1, 2] and [name.split("-")[0] for name in asked] == ["v1", "v1", "v2", "v2"]
    assert not fake.bodies("/update_weights_from_disk")
    fake.hooks["/load_lora_adapter"] = lambda body: (
        400,
        {"success": False, "error_message": "rank 8 is above 4"},
    )
    with pytest.raises(EngineError, match="rank 8 is above 4"):
        engine.sync(3)
    engine.close()


def test_an_agents_adapter_on_a_shared_base_travels_as_peft_writes_it(fake: FakeSglang) -> None:
    policy = share_base(
        tiny_policy(seed=3, context_length=128)[0], ["a", "b"], LoraSettings(rank=4), path="base"
    )["a"]
    assert set(checkpoint_weights(policy)) == set(checkpoint_weights(POLICY))
    assert has_adapters(policy) and not has_adapters(policy.without_adapter())
    seen: list[dict[str, Any]] = []
    fake.hooks["/load_lora_adapter"] = lambda body: seen.append(
        json.loads((Path(body["lora_path"]) / "adapter_config.json").read_text())
    )
    engine = SglangEngine(policy, TOKENIZER, url=fake.url, server=ServerSettings(start_timeout=5.0))
    engine.wake()
    engine.sync(1)
    engine.close()
    assert [config["r"] for config in seen] == [4]
    settings = lora_settings(policy, ServerSettings())
    assert settings.lora_rank == 4 and {"q_proj", "down_proj"} <= set(settings.lora_targets)


def test_a_server_is_prepared_for_the_policys_adapters() -> None:
    settings = lora_settings(Adapted(), ServerSettings())
    assert (settings.lora_rank, settings.lora_targets) == (8, ("q_proj", "v_proj"))
    assert (
        lora_settings(Adapted(), ServerSettings(lora_rank=16)).lora_rank == 16
        and lora_settings(POLICY, ServerSettings()).lora_rank is None
    )


def test_the_settings_choose_the_transport() -> None:
    def manager(policy: nn.Module) -> Any:
        return SimpleNamespace(
            settings=ServerSettings(),
            policy=policy,
            tokenizer=TOKENIZER,
            root=Path(),
            dtype=torch.float32,
            device="cpu",
        )

    kinds = [type(make_weight_sync(way, manager(POLICY))) for way in ("disk", "group", "tensor")]  # type: ignore[arg-type]
    assert kinds == [DiskSync, GroupSync, TensorSync]
    assert isinstance(make_weight_sync("group", manager(Adapted())), AdapterSync)
