"""Write ``docs/metrics.md`` from the registry of metrics: ``python -m scripts.metrics_page``."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from drmas_pl.agents.coder_tester import CoderTesterTeam
from drmas_pl.agents.debate import DebateTeam
from drmas_pl.agents.hierarchy import HierarchyTeam
from drmas_pl.agents.loop import LoopTeam
from drmas_pl.agents.reasoner_tool import ReasonerToolTeam
from drmas_pl.agents.self_play import SelfPlayTeam
from drmas_pl.agents.single import SingleTeam
from drmas_pl.agents.tool_planner import ToolPlannerTeam
from drmas_pl.envs.board_games import BoardGameEnv
from drmas_pl.envs.code import CodeEnv
from drmas_pl.envs.math import MathEnv
from drmas_pl.envs.matrix_games import MatrixGameEnv
from drmas_pl.envs.plan_path import PlanPathEnv
from drmas_pl.envs.reasoning_gym import ReasoningGymEnv
from drmas_pl.envs.search import SearchEnv
from drmas_pl.envs.sokoban import SokobanEnv
from drmas_pl.envs.sudoku import SudokuEnv
from drmas_pl.integrations.gymnasium_env import GymnasiumTextEnv
from drmas_pl.integrations.players import PlayersEnv
from drmas_pl.trainer.metric_registry import SECTIONS, Metric, declared_metric

PAGE = Path(__file__).resolve().parents[1] / "docs" / "metrics.md"
DECLARING = (
    SearchEnv,
    MathEnv,
    ReasoningGymEnv,
    CodeEnv,
    PlanPathEnv,
    SokobanEnv,
    SudokuEnv,
    BoardGameEnv,
    GymnasiumTextEnv,
    PlayersEnv,
    MatrixGameEnv,
    HierarchyTeam,
    LoopTeam,
    DebateTeam,
    CoderTesterTeam,
    ReasonerToolTeam,
    ToolPlannerTeam,
    SelfPlayTeam,
    SingleTeam,
)
INTRODUCTION = """# Metrics

Every name that a run logs. `python -m scripts.metrics_page` writes this page from `drmas_pl/trainer/metric_registry.py`.

A name has one number everywhere: in `metrics.jsonl`, in the loggers, in the trainer's `callback_metrics`, in the closing table, and as
`logged_before` and `logged_after` in `summary.json`; the record of an evaluation has it under `metrics`. `{phase}` is `train`,
`validation`, `validation-greedy`, `test` or `test-greedy`, `{evaluation}` one of the last four; `{agent}`, `{group}`, `{critic}` and
`{source}` are names of agents, worker groups, critics and data sources. An average over nothing is absent.
"""
OWN = """
## Environments and teams

Averaged as the trajectories' own metrics are: one without the metric counts as 0, such as one that ended before it could be scored. Those
marked conditional are averaged over the trajectories that have them. A class of your own describes its metrics in `metric_info`.
"""


def page() -> str:
    """Return the page's text."""
    parts = [INTRODUCTION]
    for section in SECTIONS:
        parts.append(f"\n## {section.title}\n\n{section.text}\n")
        parts.append(_table(section.metrics))
    parts.append(OWN)
    parts.append(_table(_declared()))
    return "".join(parts)


def _declared() -> Iterable[Metric]:
    for kind in DECLARING:
        for name, info in kind.metric_info.items():
            yield declared_metric(name, info, kind.__name__)


def _table(metrics: Iterable[Metric]) -> str:
    rows = [("name", "formula", "meaning", "healthy", "from"), ("---",) * 5]
    for metric in metrics:
        texts = (metric.formula, metric.meaning, metric.healthy or "–")
        rows.append((f"`{metric.pattern}`", *texts, f"`{metric.origin}`"))
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return "\n" + "".join(f"| {' | '.join(row)} |\n" for row in cells)


def main() -> int:
    """Write the page."""
    PAGE.write_text(page())
    print(PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
