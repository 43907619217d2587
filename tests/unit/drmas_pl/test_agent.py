"""Settings, scoring and loss of one role, and what it leaves on disk."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from torch import nn

from drmas_pl.agent import Agent
from drmas_pl.algorithms.objective import ObjectiveOutput, PolicyObjective, make_objective
from drmas_pl.algorithms.token_batch import TrainingRow, collate
from drmas_pl.errors import CheckpointError, ConfigError
from drmas_pl.optim import OptimizerSettings
from drmas_pl.parsing import Parsed
from drmas_pl.prompts import PromptOverflow
from drmas_pl.testing import tiny_policy
from drmas_pl.types import Message, Observation, SamplingParams
from tests.helpers.toy import Speaker, make_groups, make_turn

POLICY, TOKENIZER = tiny_policy(seed=1)
CUT = Parsed("truncated")
ROWS = [
    TrainingRow("writer", (5, 6), (7, 8), (-5.0, -6.0), 1.0),
    TrainingRow("writer", (5,), (9,), (-4.0,), -2.0),
]


def speaker(**settings: Any) -> Agent:
    return Speaker("writer", **settings).bind(POLICY, TOKENIZER)


def test_settings_objects_and_mappings_mean_the_same() -> None:
    objects = speaker(
        template=Speaker.templates["full"],
        sampling=SamplingParams(temperature=0.5, stop=("x",)),
        objective=PolicyObjective(clip_low=0.1),
        optimizer=OptimizerSettings(lr=0.5),
    )
    mappings = speaker(
        sampling={"temperature": 0.5, "stop": ["x"]}, objective={"clip_low": 0.1}, optimizer={"lr": 0.5}
    )
    assert objects.settings() == mappings.settings()
    assert objects.sampling == mappings.sampling


class Halved(PolicyObjective):
    """Half the built-in loss."""

    def __call__(self, *args: Any, **more: Any) -> ObjectiveOutput:
        out = PolicyObjective.__call__(self, *args, **more)
        return ObjectiveOutput(out.loss / 2, out.metrics)


def test_an_objective_that_is_handed_in_is_kept_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Halved(clip_low=0.1)
    agent = speaker(objective=own)
    assert agent.objective is own
    batch = collate(ROWS, pad_id=0, denominator=3.0)
    plain = speaker(objective={"clip_low": 0.1}).training_step(batch)["loss"]
    torch.testing.assert_close(agent.training_step(batch)["loss"], plain / 2)
    described = json.loads(json.dumps(agent.settings()["objective"]))
    assert type(
        make_objective({**described, "_target_": f"{__name__}.Halved"})
    )  # importlib mode has no package
    assert described["_target_"] == f"{__name__}.Halved" and described["clip_low"] == 0.1
    monkeypatch.setitem(sys.modules, "my_losses", SimpleNamespace(Halved=Halved))
    assert make_objective({**described, "_target_": "my_losses.Halved"}) == own


@pytest.mark.parametrize("wrong", ["grpo", PolicyObjective, lambda logp: logp.sum(), 3])
def test_what_is_no_objective_is_refused(wrong: Any) -> None:
    with pytest.raises(
        TypeError, match="objective must be settings of PolicyObjective or an object with the members of"
    ):
        speaker(objective=wrong)


@pytest.mark.parametrize(
    "settings",
    [{}, {"aggregation": "seq-mean-token-sum"}, {"aggregation": "fixed-length", "fixed_length": 8}],
)
def test_a_batch_without_denominator_is_divided_as_the_objective_says(settings: dict[str, Any]) -> None:
    agent = speaker(objective=settings)
    rows = [*ROWS, TrainingRow("writer", (5,), (9,), (-4.0,), 1.0, weight=2.0)]
    whole = agent.objective.denominator_from_lengths(
        torch.tensor([2, 1, 1]), weight=torch.tensor([1.0, 1.0, 2.0])
    )
    wanted = agent.training_step(collate(rows, pad_id=0, denominator=float(whole)))["loss"]
    torch.testing.assert_close(agent.training_step(collate(rows, pad_id=0, denominator=None))["loss"], wanted)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"on_truncated": "drop"}, "on_truncated must be penalise, keep or mask, got 'drop'"),
        ({"max_prompt_tokens": 0}, "max_prompt_tokens must be at least 1, got 0"),
        ({"template": "short"}, r"Speaker has no template 'short'; it has \['full'\]"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        speaker(**settings)


def test_an_agent_without_policy_says_how_to_get_one() -> None:
    with pytest.raises(ConfigError, match="agent 'writer' has no policy yet; call bind"):
        Speaker("writer").configure_optimizers()


def test_prompts_keep_the_budget_in_the_chosen_way() -> None:
    observation = Observation("q", (Message("editor", "text", "a" * 30), Message("editor", "text", "bb")))
    newest, both = (
        speaker(max_prompt_tokens=10).render(observation),
        speaker(max_prompt_tokens=10, overflow="both_ends").render(observation),
    )
    assert (TOKENIZER.decode(list(newest.ids)), newest.truncated) == ("qbb", True)
    assert (TOKENIZER.decode(list(both.ids)), both.truncated) == ("qaaaaaa|bb", True)
    with pytest.raises(PromptOverflow, match="the question alone takes 11 tokens"):
        speaker(max_prompt_tokens=10).render(Observation("q" * 11))


def test_a_template_may_be_given_as_fields() -> None:
    agent = speaker(template={"user": "say {question}", "chat": False})
    assert TOKENIZER.decode(list(agent.render(Observation("hi")).ids)) == "say hi"


def test_the_end_token_is_no_text_but_other_special_tokens_are() -> None:
    ids = (*TOKENIZER.encode("ab<|user|>"), TOKENIZER.eos_token_id)
    assert speaker().decode(ids) == "ab<|user|>"
    assert speaker().decode(ids[:-1]) == "ab<|user|>"
    assert speaker().decode(()) == ""


def test_what_was_sampled_is_read_letter_by_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokenizers may be told to remove spaces before points and commas, which changes what was said."""
    monkeypatch.setattr(TOKENIZER, "clean_up_tokenization_spaces", True)
    # what Transformers 5 asks for as well, where 4 needs the first alone
    name = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"
    monkeypatch.setattr(TOKENIZER, name, True, raising=False)
    ids = tuple(TOKENIZER.encode("5 .5 , no"))
    assert TOKENIZER.decode(list(ids)) == "5.5, no"
    assert speaker().decode(ids) == "5 .5 , no"


def test_chinese_characters_may_be_forbidden() -> None:
    text = "<think>好</think><answer>Lima</answer>"
    assert speaker().parse(text).valid
    refused = speaker(forbid_cjk=True).parse(text)
    assert (refused.status, refused.tagged) == ("malformed", text)


@pytest.mark.parametrize(
    ("on_truncated", "parsed", "score"),
    [
        ("penalise", Parsed("valid"), 1.25),
        ("penalise", Parsed("malformed"), 0.75),
        ("penalise", CUT, 0.75),
        ("keep", CUT, 1.25),
        ("mask", CUT, 1.25),
        ("keep", Parsed("malformed"), 0.75),
        ("keep", Parsed("no_verdict"), 0.75),
    ],
)
def test_score_is_the_credit_minus_the_penalty(on_truncated: Any, parsed: Parsed, score: float) -> None:
    agent = speaker(invalid_penalty=0.5, on_truncated=on_truncated)
    assert agent.score(make_turn("writer", parsed=parsed), 1.25) == score


@pytest.mark.parametrize(("on_truncated", "trained"), [("penalise", True), ("keep", True), ("mask", False)])
def test_only_masking_leaves_cut_turns_out(on_truncated: Any, trained: bool) -> None:
    agent = speaker(on_truncated=on_truncated)
    assert agent.trains_on(make_turn("writer", parsed=CUT, finish_reason="length")) is trained
    assert agent.trains_on(make_turn("writer"))
    assert not agent.trains_on(make_turn("writer", ()))


def test_training_step_returns_a_loss_and_detached_metrics_and_changes_nothing() -> None:
    agent = speaker(sampling={"temperature": 0.5})
    batch = collate(ROWS, pad_id=0, denominator=3.0)
    before = POLICY.lm_head.weight.clone()
    out = agent.training_step(batch)
    assert out["loss"].requires_grad and not any(
        value.requires_grad for name, value in out.items() if name != "loss"
    )
    assert {"tokens", "entropy", "ratio", "mismatch"} <= out.keys() and out["tokens"] == 3
    assert torch.equal(POLICY.lm_head.weight, before) and POLICY.lm_head.weight.grad is None
    expected = agent.objective(
        agent(batch), batch.old_logp, batch.advantage, batch.response_mask, denominator=3.0
    )
    torch.testing.assert_close(out["loss"], expected.loss)


def test_entropy_keeps_no_graph_unless_the_loss_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[bool] = []

    def entropy(logits: torch.Tensor, *, temperature: float) -> torch.Tensor:
        kept.append(logits.requires_grad)
        return logits.sum(-1)

    monkeypatch.setattr("drmas_pl.kernels.policy_logprobs.token_entropy", entropy)
    for coefficient in (0.0, 0.1):
        speaker(objective={"entropy_coef": coefficient}).training_step(
            collate(ROWS, pad_id=0, denominator=3.0)
        )
    assert kept == [False, True]


def test_greedy_sampling_is_scored_at_temperature_one() -> None:
    assert speaker(sampling={"temperature": 0.0}).temperature == 1.0
    assert speaker(sampling={"temperature": 0.3}).temperature == 0.3


def test_predict_step_answers_greedily() -> None:
    agent = speaker(sampling={"max_new_tokens": 3})
    first, second = (
        agent.predict_step([Observation("a"), Observation("a")]),
        agent.predict_step([Observation("a")]),
    )
    assert first == second * 2 and isinstance(first[0], str)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Checkpoint folder of a worker group with one agent."""
    settings = {
        "sampling": {"stop": ("x",), "max_new_tokens": 3},
        "invalid_penalty": 0.5,
        "max_prompt_tokens": 9,
    }
    (group,) = make_groups(Fabric(accelerator="cpu", devices=1), names=["writer"], agent=settings).values()
    group.save(tmp_path / "groups" / "writer")
    group.agents["writer"].save(tmp_path / "agents" / "writer", model="../../groups/writer")
    return tmp_path / "agents" / "writer"


def test_an_agent_comes_back_from_its_folder_with_settings_and_policy(folder: Path) -> None:
    agent = Agent.load_from_checkpoint(folder)
    assert isinstance(agent, Speaker)
    assert (agent.sampling, agent.invalid_penalty, agent.max_prompt_tokens) == (
        SamplingParams(stop=("x",), max_new_tokens=3),
        0.5,
        9,
    )
    assert agent.template == Speaker.templates["full"]
    policy, _ = tiny_policy(seed=1, context_length=128)
    assert isinstance(agent.policy, nn.Module)
    assert all(
        torch.equal(mine, saved)
        for mine, saved in zip(agent.policy.parameters(), policy.parameters(), strict=True)
    )
    assert agent.tokenizer.encode("né") == TOKENIZER.encode("né")


def test_settings_may_be_overridden_while_loading(folder: Path) -> None:
    assert Speaker.load_from_checkpoint(folder, invalid_penalty=0.1).invalid_penalty == 0.1


def test_a_folder_without_agent_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is not an agent's folder .*expected …/agents/<name>"):
        Agent.load_from_checkpoint(tmp_path)


def change_record(folder: Path, **changes: Any) -> None:
    record = json.loads((folder / "agent.json").read_text())
    (folder / "agent.json").write_text(json.dumps({**record, **changes}))


@pytest.mark.parametrize("kind", ["no.such.module:Agent", "drmas_pl.agent:Missing", "", None])
def test_an_unknown_class_is_refused(folder: Path, kind: Any) -> None:
    change_record(folder, **{"class": kind})
    with pytest.raises(CheckpointError, match=r"cannot be built \(.*\); make its class importable"):
        Agent.load_from_checkpoint(folder, trust=True)


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that appears when the module ``a_stranger`` is imported."""
    trace = tmp_path / "was-imported"
    lines = [
        "from pathlib import Path",
        "from drmas_pl.algorithms.objective import PolicyObjective",
        "from tests.helpers.toy import Speaker",
        f"Path({str(trace)!r}).touch()",
        "class Talker(Speaker): ...",
        "class Loss(PolicyObjective): ...",
        "import torch",
        "class Steps(torch.optim.SGD): ...",
    ]
    (tmp_path / "a_stranger.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "a_stranger", raising=False)
    monkeypatch.delenv("DRMAS_TRUST", raising=False)
    return trace


@pytest.mark.parametrize(
    "changes",
    [
        {"class": "a_stranger:Talker"},
        {"settings": {"name": "writer", "objective": {"_target_": "a_stranger.Loss"}}},
        {"settings": {"name": "writer", "optimizer": {"_target_": "a_stranger.Steps"}}},
    ],
)
def test_nothing_that_a_file_names_is_imported_without_trust(
    folder: Path, stranger: Path, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    change_record(folder, **changes)
    refused = r"would import a_stranger\.\w+, which is no part of drmas_pl; .* with trust=True, or set DRMAS_TRUST=1"
    with pytest.raises(CheckpointError, match=refused):
        Agent.load_from_checkpoint(folder)
    assert not stranger.exists()
    assert isinstance(Agent.load_from_checkpoint(folder, trust=True), Speaker)
    assert stranger.exists()
    # its module is imported now, which is as good
    assert isinstance(Agent.load_from_checkpoint(folder), Speaker)
    monkeypatch.delitem(sys.modules, "a_stranger")
    monkeypatch.setenv("DRMAS_TRUST", "a_stranger")
    assert isinstance(Agent.load_from_checkpoint(folder), Speaker)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"class": "os:system"}, "would import os.system"),
        ({"class": "subprocess:Popen"}, "holds a Popen, not a Agent"),
        (
            {"class": "drmas_pl.models.agent_files:importlib"},
            "would import drmas_pl.models.agent_files.importlib",
        ),
        (
            {"settings": {"objective": {"_target_": "os.system", "command": "touch {}"}}},
            "would import os.system",
        ),
        (
            {"settings": {"objective": {"_target_": "subprocess.Popen", "args": ["touch", "{}"]}}},
            "names subprocess.Popen as its objective, which is none",
        ),
        (
            {"settings": {"optimizer": {"_target_": "subprocess.Popen", "args": ["touch", "{}"]}}},
            "names subprocess.Popen as its optimizer, which is none",
        ),
        (
            {
                "settings": {
                    "optimizer": {"schedule": {"_target_": "subprocess.Popen", "args": ["touch", "{}"]}}
                }
            },
            "names subprocess.Popen as its optimizer.schedule, which is none; pass optimizer=",
        ),
        (
            {"settings": {"objective": {"_target_": "drmas_pl.utils.atomic.write_atomically", "path": "{}"}}},
            "write_atomically as its objective, which is none",
        ),
    ],
)
def test_a_file_starts_nothing(folder: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    trace = tmp_path / "started"
    change_record(folder, **json.loads(json.dumps(changes).replace("{}", str(trace))))
    with pytest.raises(CheckpointError, match=message):
        Agent.load_from_checkpoint(folder)
    assert not trace.exists()


def test_another_class_is_refused_by_name(folder: Path) -> None:
    class Other(Agent):
        """Not what was saved."""

    with pytest.raises(
        CheckpointError, match=r"holds a Speaker, not a Other; call Speaker.load_from_checkpoint"
    ):
        Other.load_from_checkpoint(folder)
