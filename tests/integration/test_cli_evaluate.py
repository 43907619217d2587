"""The evaluation program from the command line, on checkpoints of a real (tiny) run and on plain models."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

import drmas_pl
from drmas_pl.data.recorded import read_trajectories
from drmas_pl.engines.transformers import TransformersEngine
from drmas_pl.env import StepResult
from drmas_pl.tools.evaluate import main
from drmas_pl.tools.train import main as train
from drmas_pl.types import MetricInfo
from drmas_pl.utils.manifest import seal_record
from scripts.durability.damages import reseal
from tests.helpers.toy import TEAM_WORDS, EvenEnv, make_tasks

HERE = "tests.integration.test_cli_evaluate"
TOY = [
    "+env=custom",
    f"env._target_={HERE}.ToyEnv",
    *TEAM_WORDS,
    "agents.roles.editor.sampling.top_k=50",
    "model=tiny_random",
    "model.max_new_tokens=3",
]


class ToyEnv(EvenEnv):
    """A toy environment with tasks of two sources."""

    def __init__(self) -> None:
        super().__init__((*make_tasks(4, "near"), *make_tasks(2, "far")))


class GappyEnv(ToyEnv):
    """Tells a number of solved episodes alone, and now and then breaks."""

    metric_info = {**EvenEnv.metric_info, "even": MetricInfo("1 if solved", "As success.")}

    def act(self, action: str) -> StepResult:
        if sum(map(ord, action)) % 7 == 0:
            raise RuntimeError("the environment broke")
        result = super().act(action)
        return replace(result, metrics={**result.metrics, **({"even": 1.0} if result.success else {})})


@pytest.fixture(autouse=True)
def trust(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environments and teams of these runs are the tests' own."""
    monkeypatch.setenv("DRMAS_TRUST", "tests")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two iterations with a checkpoint after each; nobody shares weights."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    words = [
        "sharing=per_agent",
        "trainer.max_iterations=2",
        "trainer.checkpoint_every=1",
        "rollout.samples=4",
        "logger=none",
    ]
    assert (
        train([*TOY, *words, "data.tasks_per_iteration=2", "optimizer.lr=0.1", f"output_dir={folder}"]) == 0
    )
    return folder


@pytest.fixture
def trained(run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the run in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(run_folder, tmp_path / "run")


def test_a_checkpoint_is_evaluated_as_it_was_trained(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(path.relative_to(trained) for path in trained.rglob("*"))
    assert (
        main(
            [
                "checkpoint=run",
                "evaluation.samples=4",
                "evaluation.pass_at=[1,4]",
                "evaluation.temperature=0.5",
            ]
        )
        == 0
    )
    out = capsys.readouterr().out
    for text in (
        "avg@4",
        "pass@1",
        "pass@4",
        "greedy",
        "near",
        "far",
        "all",
        "calls of writer",
        "record run/evaluation-test.json",
    ):
        assert text in out
    new = [
        path.relative_to(trained) for path in trained.rglob("*") if path.relative_to(trained) not in before
    ]
    assert new == [Path("evaluation-test.json")]
    record = json.loads((trained / "evaluation-test.json").read_text())
    assert (record["iteration"], record["k"], record["seed"], record["grader_version"]) == (
        2,
        4,
        0,
        drmas_pl.__version__,
    )
    assert record["models"]["editor"] == {"path": "random:llama-tiny", "weights_version": 2}
    assert record["sampling"]["editor"] == {
        "temperature": 0.5,
        "top_p": 1.0,
        "top_k": -1,
        "max_new_tokens": 3,
        "stop": [],
    }
    assert record["data"]["tasks"] == 6 and len(record["data"]["fingerprint"]) == 32
    assert set(record["templates"]) == {"writer", "editor"} and record["environment"] == f"{HERE}.ToyEnv"
    assert {"avg@4", "pass@1", "pass@4", "greedy", "calls", "failed"} <= record.keys()
    assert record["pass@1"] == pytest.approx(record["avg@4"]) and record["pass@4"] >= record["avg@4"]
    mean = (4 * record["sources"]["near"]["sampled"] + 2 * record["sources"]["far"]["sampled"]) / 6
    assert record["avg@4"] == pytest.approx(mean)


def test_validation_of_the_last_checkpoint_repeats_what_training_saw(trained: Path) -> None:
    assert main(["checkpoint=run", "split=validation", "output=record.json", "trajectories=said.jsonl"]) == 0
    summary, record = (
        json.loads((trained / "summary.json").read_text()),
        json.loads(Path("record.json").read_text()),
    )
    assert (record["avg@1"], record["greedy"]) == (summary["after"], summary["after_greedy"])
    said = list(read_trajectories("said.jsonl"))
    assert len(said) == 12 and {turn.weights_version for trajectory in said for turn in trajectory.turns} == {
        2
    }
    assert not (trained / "evaluation-validation.json").exists()


def test_one_name_has_one_number_wherever_it_stands(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Table, metrics.jsonl, summary.json and the record of an evaluation of the same weights agree, faults and gaps included."""
    env = ["+env=custom", f"env._target_={HERE}.GappyEnv", *TOY[2:]]
    words = ["trainer.max_iterations=1", "rollout.samples=2", "logger=none", "evaluation.samples=3"]
    faults = ["evaluation.retries=0", "rollout.max_failed_share=0.9", "data.tasks_per_iteration=2"]
    faults.append("trainer.env_check=false")
    assert train([*env, *words, *faults, "output_dir=run"]) == 0
    rows = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines() if line}
    records = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    before, after = (record for record in records if "validation/success" in record)
    summary = json.loads(Path("run/summary.json").read_text())
    for logged, told, column in ((before, "logged_before", 0), (after, "logged_after", 1)):
        for name, value in summary[told].items():
            assert value == logged[name]
            shown = [word for word in rows[name] if word != "%"][column]
            scale = 1 if name.endswith("/calls") else 100
            assert float(shown) == pytest.approx(scale * value, abs=0.051 if scale == 100 else 0.0051)
    assert {"validation/success", "validation-greedy/success", "validation/writer/calls"} <= rows.keys()
    assert {"validation-greedy/source/near/success", "validation-greedy/source/far/success"} <= rows.keys()
    assert (summary["after"], summary["after_greedy"]) == (
        after["validation/success"],
        after["validation-greedy/success"],
    )
    assert after["validation/even"] == after["validation/success"] and after["validation/failed"] > 0
    assert main(["checkpoint=run", "split=validation", "output=record.json"]) == 0
    record = json.loads(Path("record.json").read_text())
    assert record["metrics"] == {name: after[name] for name in record["metrics"]}
    assert len(record["metrics"]) == len(after) - 2  # iteration and time are the run's alone
    assert (record["avg@3"], record["greedy"]) == (summary["after"], summary["after_greedy"])
    assert record["sources"] == summary["sources_after"]


def test_what_was_said_is_written_with_its_iteration_and_on_request_its_prompts(trained: Path) -> None:
    said = ["trajectories=said.jsonl", "output=record.json"]
    assert main(["checkpoint=run", *said]) == 0
    played = read_trajectories("said.jsonl")
    assert {(one.phase, one.iteration) for one in played} == {("test", 2)}
    assert [one.mode for one in played] == ["sampled"] * 6 + ["greedy"] * 6
    assert {turn.prompt for one in played for turn in one.turns} == {None}
    assert main(["checkpoint=run", *said, "trainer.record_prompts=true"]) == 0
    for one in read_trajectories("said.jsonl"):
        assert all(one.task.question in str(turn.prompt) for turn in one.turns)


def test_each_agent_speaks_with_the_weights_of_the_named_checkpoint(trained: Path) -> None:
    last = trained / "checkpoints/iteration-000002"
    file = last / "groups/editor/model.safetensors"
    weights = load_file(file)
    save_file(
        {name: torch.zeros_like(value) for name, value in weights.items()}, file, metadata={"format": "pt"}
    )
    reseal(last)
    assert main([f"checkpoint={last}", "output=zero.json", "trajectories=zero.jsonl"]) == 0
    texts = {
        turn.response_ids
        for trajectory in read_trajectories("zero.jsonl")
        for turn in trajectory.turns
        if turn.agent == "editor"
    }
    assert (0, 0, 0) in texts  # greedy play over equal logits takes the first token
    first = trained / "checkpoints/iteration-000001"
    if first.exists():
        assert main([f"checkpoint={first}", "output=first.json"]) == 0
        assert json.loads(Path("first.json").read_text())["models"]["editor"]["weights_version"] == 1


def refused(words: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == code
    captured = capsys.readouterr()
    assert message in captured.err and "Traceback" not in captured.err and "avg@" not in captured.out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["checkpoint=nowhere"], 1, "no checkpoint in nowhere"),
        (["checkpoint=run/checkpoints/iteration-000099"], 1, "no checkpoint in"),
        (["checkpoint=run", "split=train"], 2, "split: Input should be 'validation' or 'test'"),
        (["checkpoint=run", "evaluation.sample=4"], 2, "did you mean 'evaluation.samples'"),
        (["checkpoint=run", "+evaluation.sample=4"], 2, "did you mean 'evaluation.samples'"),
        (["checkpoint=run", "evaluation=papr"], 2, "evaluation has no option 'papr'; did you mean 'paper'"),
        (
            ["checkpoint=run", "evaluation.samples=2", "evaluation.pass_at=[4]"],
            2,
            "each k must be between 1 and evaluation.samples=2",
        ),
        (
            ["checkpoint=run", "evaluation.temperature=hot"],
            2,
            "evaluation.temperature: Input should be a valid number",
        ),
        (["checkpoint=run", "model=tiny_math"], 2, "model is what the checkpoint was trained with"),
        (["checkpoint=run", "+env=math"], 2, "env is what the checkpoint was trained with"),
        (
            ["checkpoint=run", "agents.roles.writer.template=x"],
            2,
            "agents.roles.writer.template is what the checkpoint was trained with",
        ),
        (["checkpoint=run", "advantage=grpo"], 2, "advantage has no say in an evaluation"),
        (["checkpoint=run", "rollout.retries=3"], 2, "rollout.retries has no say in an evaluation"),
        (
            ["checkpoint=run", "trainer.max_iterations=3"],
            2,
            "trainer.max_iterations has no say in an evaluation",
        ),
        (["checkpoint=run", "seed=0,1"], 2, "seed has several values"),
        (["checkpoint=run", "~logger.csv"], 2, "logger.csv has no say in an evaluation"),
        (["checkpoint=run", "~env.fails"], 2, "nothing can be removed"),
        (["checkpoint=run", "seed=[0"], 2, "cannot read"),
        (["checkpoint=run", "--multirun"], 2, "--multirun is no flag of this program"),
        (
            ["chekpoint=run"],
            2,
            "say what to evaluate: checkpoint=RUN_FOLDER, or +env=… +agents=… model=… for a plain model, got 'chekpoint'",
        ),
        (["+env=math"], 2, "choose agents"),
        (["checkpoint=run", "data.test=missing.jsonl"], 1, "no file missing.jsonl"),
    ],
)
def test_a_wrong_request_is_one_line(
    words: list[str], code: int, message: str, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(words, code, message, capsys)
    assert not list(trained.glob("evaluation-*"))


def test_a_damaged_checkpoint_is_never_replaced_by_the_base_model(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last = trained / "checkpoints/iteration-000002"
    config = (trained / "config.yaml").read_text()
    (trained / "config.yaml").write_text("roles: [")
    refused(["checkpoint=run"], 1, "config.yaml cannot be read", capsys)
    (trained / "config.yaml").unlink()
    refused(["checkpoint=run"], 1, "a checkpoint is used with the configuration of its run", capsys)
    (trained / "config.yaml").write_text(config)
    (last / "groups/editor/model.safetensors").unlink()
    refused(["checkpoint=run"], 1, "is damaged: groups/editor/model.safetensors is missing; ", capsys)
    reseal(last)
    refused(["checkpoint=run"], 2, "groups/editor holds no weights (no model.safetensors)", capsys)
    shutil.rmtree(last / "groups/editor")
    refused(["checkpoint=run"], 1, "is damaged: groups/editor/", capsys)


@pytest.mark.parametrize(
    "node",
    [
        {"env": {"_target_": "os.system", "command": "touch started", "name": "math"}},
        {"advantage": {"_target_": "os.system", "command": "touch started"}},
        {"data": {"test": {"_target_": "os.system", "command": "touch started"}}},
        {"agents": {"_target_": "subprocess.Popen", "args": ["touch", "started"]}},
        {"env": {"_target_": "drmas_pl.utils.atomic.write_atomically", "path": "started", "text": ""}},
        {"engine": {"_target_": "drmas_pl.engines.sglang.engine.SglangEngine", "python": "./evil"}},
        {"env": {"_target_": "evil.Env", "name": "math"}},
    ],
)
def test_a_run_folder_of_a_stranger_starts_nothing(
    trained: Path, node: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("evil").write_text("#!/bin/sh\ntouch started\n")
    Path("evil").chmod(0o755)
    Path("evil.py").write_text("open('started', 'w')\n")
    file = trained / "config.yaml"
    config = yaml.safe_load(file.read_text())
    (section,) = node
    config[section] = {**config[section], **node[section]}
    file.write_text(yaml.safe_dump(config))
    refused(["checkpoint=run"], 2, "run/config.yaml would run code that is no part of drmas_pl:", capsys)
    assert not Path("started").exists()


def test_what_a_run_is_made_of_is_listed_once_and_one_word_allows_it(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("DRMAS_TRUST")
    refused(["checkpoint=run"], 2, f"  env._target_={HERE}.ToyEnv\n", capsys)
    words = ["checkpoint=run", "data.limit_test=1", "evaluation.samples=1", "evaluation.greedy=false"]
    refused(words, 2, "add trust=true, or trust=[tests] for these packages alone", capsys)
    assert main([*words, "trust=[tests]"]) == 0
    assert main([*words, "trust=true"]) == 0
    record = json.loads((trained / "evaluation-test.json").read_text())
    assert "trust" not in record


def test_a_changed_prompt_is_pointed_out(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = trained / "checkpoints/iteration-000002/manifest.json"
    manifest: dict[str, Any] = json.loads(file.read_text())
    manifest["templates"]["writer"] = "0" * 16
    file.write_text(seal_record(manifest))
    assert main(["checkpoint=run", "evaluation=paper", "evaluation.samples=1", "evaluation.pass_at=[]"]) == 0
    captured = capsys.readouterr()
    assert (
        "the prompt template of writer is not the one it was trained with" in captured.err
        and "editor is not" not in captured.err
    )
    assert "greedy" not in captured.out  # the paper's protocol has no greedy pass


def test_a_plain_model_is_evaluated_without_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*TOY, "data.limit_test=3", "evaluation.samples=2"]) == 0
    (file,) = tmp_path.glob("outputs/custom-custom/*/evaluation-test.json")
    record = json.loads(file.read_text())
    assert record["checkpoint"] is None and record["iteration"] is None
    assert (
        record["models"]["writer"] == {"path": "random:llama-tiny", "weights_version": 0}
        and record["data"]["tasks"] == 3
    )


@pytest.mark.slow
def test_what_a_group_asked_for_holds_for_its_weights_here_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [
        "trainer.max_iterations=1",
        "rollout.samples=2",
        "logger=none",
        "data.tasks_per_iteration=2",
        "output_dir=run",
    ]
    assert train([*TOY, *words, "engine.groups.shared.max_batch_tokens=300"]) == 0
    built: list[int] = []
    monkeypatch.setattr(TransformersEngine, "__init__", _noting(TransformersEngine.__init__, built))
    assert main(["checkpoint=run", "evaluation.samples=1", "evaluation.pass_at=[1]"]) == 0
    assert built == [300]


def _noting(build: Any, built: list[int]) -> Any:
    def init(self: Any, *args: Any, max_batch_tokens: int = 0, **more: Any) -> None:
        built.append(max_batch_tokens)
        build(self, *args, max_batch_tokens=max_batch_tokens, **more)

    return init


def test_any_folder_a_shell_can_name_can_be_trained_into_and_evaluated(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "lr=1e-5 (a), \"b\" 'c' ${seed} [d] {e}"
    words = ["trainer.max_iterations=1", "rollout.samples=2", "data.tasks_per_iteration=2", "logger=none"]
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    assert train([*TOY, *words, f"output_dir={name}", f"model.chat_template={template}"]) == 0
    config = yaml.safe_load((folder / name / "config.yaml").read_text())
    assert (config["output_dir"], config["model"]["chat_template"]) == (name, template)
    output, said = f"{name}.json", f"{name}.jsonl"
    asked = [f"checkpoint={name}", f"output={output}", f"trajectories={said}"]
    assert main([*asked, "evaluation.samples=1"]) == 0
    record = json.loads((folder / output).read_text())
    assert record["checkpoint"] == f"{name}/checkpoints/iteration-000001" and (folder / said).is_file()
    assert main([f"checkpoint={name}?"]) == 1 and f"no checkpoint in {name}?" in capsys.readouterr().err
