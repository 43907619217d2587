"""The configuration of an evaluation: of a run's checkpoint as it was trained, or of a plain model.

Either way nothing is trained: every role is frozen, and only the split that is played is read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from drmas_pl.config.arguments import nearest, split_override
from drmas_pl.config.compose import complete, compose_run, resolved
from drmas_pl.config.construct import settings
from drmas_pl.config.model_settings import role_model, with_named_roles
from drmas_pl.config.stored import CONFIG, changed_config, read_config
from drmas_pl.config.trust import check_trust, take_trust
from drmas_pl.errors import CheckpointError, ConfigError
from drmas_pl.trainer.checkpoint import find_checkpoint
from drmas_pl.utils.checkpoint_damage import read_checked
from drmas_pl.utils.manifest import Manifest
from drmas_pl.utils.trust import Trust

# Settings that change nothing in an evaluation, and those that a checkpoint has fixed.
_IDLE = re.compile(
    r"(advantage|critic|credit|schedule|objective|optimizer|update|logger|sharing|resume|output_dir|sweep_metric)(\..*)?"
    r"|data\.train|rollout\.(samples|max_draws|align_turns|max_staleness|retries)"
    r"|trainer\.(?!(accelerator|devices|strategy|precision|record_prompts)$).*"
)
_FIXED = re.compile(
    r"env|agents|experiment|model|model\.(path|template|chat_template|lr)|retriever(\..*)?"
    r"|agents\.roles\.\w+\.(_target_|model|template|trainable|lr|objective|optimizer|update)(\..*)?"
)
_KEPT = ("accelerator", "devices", "strategy", "precision", "record_prompts")


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """What is evaluated and where the result goes.

    Attributes:
        checkpoint: Checkpoint folder, or None for a plain model.
        split: Split that is played.
        output: JSON record; None means beside the run's ``config.yaml``.
        trajectories: JSON lines of everything that was said, or None.
    """

    checkpoint: str | None
    split: Literal["validation", "test"]
    output: str | None
    trajectories: str | None


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """Everything an evaluation is built from.

    Attributes:
        request: What is evaluated and where the result goes.
        config: Resolved configuration with frozen roles; a role's model is the folder of its weights in the checkpoint.
        models: For each agent the model that its run, or this evaluation, starts from.
        manifest: What the checkpoint says about itself, if there is one.
    """

    request: EvaluationRequest
    config: Mapping[str, Any]
    models: Mapping[str, str]
    manifest: Manifest | None = None


def plan_evaluation(overrides: Sequence[str]) -> EvaluationPlan:
    """Compose the configuration of an evaluation.

    Args:
        overrides: Overrides as typed.

    Raises:
        ConfigError: A choice, a key or a value is wrong.
        CheckpointError: The checkpoint or the configuration of its run is missing or damaged.
    """
    trust, overrides = take_trust(overrides)
    _refuse(overrides, _IDLE, "has no say in an evaluation; leave it out")
    values = {key: value for _, key, value in map(split_override, overrides)}
    if not {"checkpoint", "env", "agents", "experiment"} & values.keys():
        hint = next((f", got {key!r}" for key in values if nearest(key, ["checkpoint"])), "")
        raise ConfigError(
            f"say what to evaluate: checkpoint=RUN_FOLDER, or +env=… +agents=… model=… for a plain model{hint}"
        )
    if values.get("checkpoint") in (None, "", "null"):
        config = with_named_roles(resolved(complete(compose_run(overrides, config_name="evaluate")[0])))
        return EvaluationPlan(_request(config), _frozen(config, {}), _models(config))
    checkpoint = find_checkpoint(str(values["checkpoint"]))
    manifest = read_checked(checkpoint)
    config = _stored(checkpoint, overrides, trust)
    folders = {agent: str(checkpoint / "groups" / group) for agent, group in manifest.agents.items()}
    if set(folders) != set(config["agents"]["roles"]):
        raise CheckpointError(
            f"checkpoint {checkpoint} holds agents {sorted(folders)}, but config.yaml names {sorted(config['agents']['roles'])}"
        )
    return EvaluationPlan(
        _request({**config, "checkpoint": str(checkpoint)}),
        _frozen(config, folders),
        _models(config),
        manifest,
    )


def _stored(checkpoint: Path, overrides: Sequence[str], trust: Trust) -> dict[str, Any]:
    """Read the configuration of a checkpoint's run, as far as it is trusted, and apply overrides to it."""
    run = checkpoint.parent.parent
    _refuse(
        overrides, _FIXED, "is what the checkpoint was trained with; leave it out, or evaluate a plain model"
    )
    removed = next((word for word in overrides if word.startswith("~")), None)
    if removed is not None:
        raise ConfigError(
            f"{removed!r}: nothing can be removed from the configuration of a run; set a value instead"
        )
    stored = read_config(run)
    # neither is built here, so that whatever they name is not imported either
    stored["logger"] = {}
    if isinstance(stored.get("trainer"), dict):
        stored["trainer"] = {**stored["trainer"], "callbacks": []}
    check_trust(stored, trust, run / CONFIG)
    asked = {"checkpoint": None, "split": "test", "output": None, "trajectories": None}
    return changed_config({**stored, **asked}, overrides, folder=run)[1]


def _frozen(config: Mapping[str, Any], folders: Mapping[str, str]) -> dict[str, Any]:
    """Freeze every role, on the weights in ``folders`` if given, and leave out whatever only training reads."""
    roles = {}
    for name, role in config["agents"]["roles"].items():
        model = asdict(role_model(name, config))
        roles[name] = {
            **role,
            "model": {**model, "path": folders.get(name, model["path"])},
            "trainable": False,
            "objective": {},
        }
    quiet: dict[str, Any] = {
        "max_iterations": 1,
        "max_epochs": None,
        "callbacks": [],
        "record": [],
        "allow_changed_data": True,
    }
    kept = {key: config["trainer"][key] for key in _KEPT if key in config["trainer"]}
    others = {split: None for split in ("train", "validation", "test") if split != config["split"]}
    return {
        **config,
        **{
            name: _by_frozen_group(config[name], config["sharing"], folders)
            for name in ("engine", "cluster")
            if config.get(name)
        },
        "agents": {**config["agents"], "roles": roles},
        "data": {**config["data"], **others},
        "trainer": {**kept, **quiet},
        "objective": {},
        "critic": {},
        "logger": {},
        "resume": None,
    }


def _by_frozen_group(section: Mapping[str, Any], sharing: str, folders: Mapping[str, str]) -> dict[str, Any]:
    """Give what groups of the run ask for to the groups that have their weights now, which are called otherwise where weights are shared.

    Critics are left out, since there are none.
    """
    # comes with torch, which a word that is not known does not wait for
    from drmas_pl.workers.value_worker import CRITIC

    groups = {Path(folder).name for folder in folders.values()} if sharing == "shared" else set()
    names = {group: "frozen" if len(groups) == 1 else f"frozen-{group}" for group in groups}
    asked = {
        name: value for name, value in (section.get("groups") or {}).items() if not name.startswith(CRITIC)
    }
    return {**section, "groups": {names.get(name, name): value for name, value in asked.items()}}


def _models(config: Mapping[str, Any]) -> dict[str, str]:
    return {name: role_model(name, config).path for name in config["agents"]["roles"]}


def _request(config: Mapping[str, Any]) -> EvaluationRequest:
    return settings(EvaluationRequest, {item.name: config[item.name] for item in fields(EvaluationRequest)})


def _refuse(overrides: Sequence[str], keys: re.Pattern[str], reason: str) -> None:
    """Refuse settings that would be ignored."""
    for word in overrides:
        key = split_override(word)[1]
        if keys.fullmatch(key):
            raise ConfigError(f"{key} {reason}")
