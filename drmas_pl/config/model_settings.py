"""The model that a setting names: a file of the group ``model``, a path, or single settings over the run's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Literal

import yaml

from drmas_pl.config.construct import settings
from drmas_pl.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """A model and what goes well with it.

    Attributes:
        path: What :func:`drmas_pl.models.loading.load_model` understands.
        template: Name of the prompt template its roles use, or the template's fields.
        lr: Learning rate where none is set.
        max_prompt_tokens: Prompt budget.
        max_new_tokens: Response budget.
        dtype: Data type of the weights.
        attn_implementation: As in Transformers; None leaves the choice to it.
        chat_template: Jinja template in the place of the tokenizer's own, or a file that holds it.
        chat_options: What the chat template is told besides the messages, such as ``enable_thinking``.
        threads: CPU threads of torch; None leaves the choice to it.
    """

    path: str
    template: str | dict[str, Any]
    lr: float
    max_prompt_tokens: int
    max_new_tokens: int
    dtype: Literal["float32", "bfloat16", "float16"]
    attn_implementation: str | None
    chat_template: str | None = None
    chat_options: dict[str, Any] = field(default_factory=dict)
    threads: int | None = None


def with_named_roles(config: dict[str, Any]) -> dict[str, Any]:
    """Give every name in ``agents.names`` a role: what ``agents.roles`` says of it over ``agents.default_role``.

    Raises:
        ConfigError: A role is of nobody who is named.
    """
    agents = config["agents"]
    if "default_role" not in agents:
        return config
    names = list(agents.get("names") or ())
    wrong = [name for name in agents["roles"] if name not in names]
    if wrong:
        raise ConfigError(f"agents.roles names {wrong}, but agents.names={names}; add them to agents.names")
    roles = {name: {**agents["default_role"], **(agents["roles"].get(name) or {})} for name in names}
    return {**config, "agents": {**agents, "roles": roles}}


def role_model(name: str, config: Mapping[str, Any]) -> ModelSettings:
    """Return the model of a role."""
    return named_model(config["agents"]["roles"][name].get("model"), config, f"agents.roles.{name}.model")


def named_model(
    choice: str | Mapping[str, Any] | None, config: Mapping[str, Any], where: str
) -> ModelSettings:
    """Return the model that a setting names: the run's, that of a file in ``conf/model``, or a path with the run's other settings."""
    if isinstance(choice, str):
        file = resources.files("drmas_pl.conf") / "model" / f"{choice}.yaml"
        choice = yaml.safe_load(file.read_text()) if file.is_file() else {"path": choice}
    return settings(ModelSettings, {**config["model"], **(choice or {})}, where)
