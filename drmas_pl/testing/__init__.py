"""For users' own tests: conformance suites, tiny models, an engine that says what a test tells it to."""

from drmas_pl.engines.scripted import ScriptedEngine
from drmas_pl.models.tiny import tiny_policy, tiny_tokenizer
from drmas_pl.retrieval.checks import check_retriever
from drmas_pl.testing.conformance import check_env, check_team, probe_team
from drmas_pl.testing.engine_suite import check_engine

__all__ = [
    "ScriptedEngine",
    "check_engine",
    "check_env",
    "check_retriever",
    "check_team",
    "probe_team",
    "tiny_policy",
    "tiny_tokenizer",
]
