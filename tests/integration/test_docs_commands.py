"""Every command of the README and of the pages is known, its settings exist, and it runs or has a reason why it does not here."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest

from drmas_pl.config.arguments import is_multirun, primary_file, resumed_from, separate
from drmas_pl.config.compose import compose_run
from drmas_pl.tools.command import PROGRAMS
from drmas_pl.tools.train import main as train

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
# what a command contains: why no test runs it as it stands
REASONS = {
    r"^(pip install|git clone|python -m venv|source |cd |hf download)": "fetches packages or data, as .ci/run does",
    r"model=(qwen2\.5-3b|smollm2-135m)": "needs weights that tests do not fetch",
    r"^(small=|export |run=|words=|if |else$|fi$|child=|trap |wait |exit )": "a line of a script; test_interrupt plays its signals",
    r'drmas train "\$\{words': "a line of a script; test_interrupt plays its signals",
    r"experiment=paper_(?!math model=tiny_math)": "the papers' sizes need a GPU; test_presets builds them with small models",
    r"cluster=ray|^ray start": "the tests marked ray start clusters",
    r"sglang": "the tests marked sglang start servers",
    r"engine\.device=cuda": "needs two GPUs",
    r"my_package|my_module": "names what the reader has written",
    r"logger=\[?(wandb|mlflow)": "the tests marked loggers run them",
    r"retriever=(lucene|http)|wiki-18|tools/serve_retriever": "needs a corpus, Java or a server; the tests marked retrieval have them",
    r"prepare_data\.py (math|search|code|check)": "fetches public data sets; test_prepare_data reads small copies",
    r"python -m (scripts|benchmarks)\.": "takes minutes to hours; its own tests run a small form",
    r"pytest|^ruff|^mypy|^\.ci/run": "is what runs the tests",
    r"\+env=(pettingzoo|textarena)": "needs an extra; test_docs_integrations and the tests of these environments",
    r"env=code agents=coder_tester|env=code \+agents=coder_tester": "test_code runs it where programs can be isolated",
    r"--preferences": "needs recorded trees; test_cli_trees exports them",
    r"evaluation=paper": "plays hundreds of tasks; test_cli_evaluate reads its settings",
    r"--push": "uploads; test_export does so against a stand-in of the Hub",
    r"^drmas view": "serves until it is stopped; test_view does so",
    r"drmas-train .*(echo_env|guessing|close_reward|writing:run)": "needs the file above it; the tests of that page run it",
    r"hydra/sweeper=optuna": "test_sweeps runs a search with fewer trials",
    r"tictactoe-self_play": "test_cli_games evaluates against a perfect player",
    r"drmas-train \+env=(search|math) \+agents=(hierarchy|loop)$": "the README's first command, which the tests of search run shorter",
    r"questions\.txt": "test_cli_chat reads questions from a file",
    r"drmas prepare-data smollm2": "needs weights that tests do not fetch",
    r"examples[/ ]": "test_examples runs the examples",
}
SHORT = (
    "trainer.max_iterations=1",
    "data.tasks_per_iteration=2",
    "rollout.samples=2",
    "data.limit_validation=2",
    "evaluation.samples=1",
)


@dataclass(frozen=True)
class Command:
    """A command of a page: the program of this library that it starts, if any, and its words."""

    page: str
    text: str
    program: str | None
    words: tuple[str, ...]

    @property
    def reason(self) -> str | None:
        """Why it is not run here."""
        return next((why for part, why in REASONS.items() if re.search(part, self.text)), None)


def commands() -> Iterator[Command]:
    """Yield every command of every page; those that are put together by ``&&`` one by one."""
    for page in PAGES:
        for block in re.findall(r"```bash\n(.*?)```", page.read_text(), re.DOTALL):
            lines = block.replace("\\\n", " ").splitlines()
            for line in filter(None, (re.sub(r"\s+#.*|^#.*", "", line).strip() for line in lines)):
                for text in re.split(r"\s+&&\s+(?!kill)", re.sub(r"\s+", " ", line)):
                    yield read(page.name, text)


def read(page: str, text: str) -> Command:
    """Read a command; without a program it is something of the shell, or a setting."""
    found = re.match(
        r"(?:[A-Z]+=\S+ )*(?:python tools/(\w+)\.py|drmas[ -]([\w-]+)|python -m drmas_pl (\w+))\s*(.*)", text
    )
    if found is None:
        return Command(page, text, None, ())
    name = next(filter(None, found.groups()[:3])).replace("_", "-")
    return Command(page, text, name, tuple(shlex.split(found[4].replace("&", ""))))


ALL = tuple(commands())
RUN = tuple(dict.fromkeys((one.program, one.words) for one in ALL if one.program and one.reason is None))


def test_there_are_commands_and_all_are_programs_of_the_library() -> None:
    assert len(ALL) > 150
    assert {one.program for one in ALL if one.program} <= set(PROGRAMS)
    assert len(RUN) > 20


def test_what_is_not_run_has_a_reason_and_no_reason_is_left_over() -> None:
    settings = r"^(\+?(agents|engine|rollout|trainer)\.[\w.-]+=\S+ ?)+$"
    unknown = [
        one.text for one in ALL if not one.program and one.reason is None and not re.match(settings, one.text)
    ]
    assert unknown == []
    used = {one.reason for one in ALL}
    assert [why for why in REASONS.values() if why not in used] == []
    assert [part for part in REASONS if not any(re.search(part, one.text) for one in ALL)] == []


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(name, marks=() if name == "README.md" else pytest.mark.slow)
        for name in sorted({one.page for one in ALL if one.program == "train"})
    ],
)
def test_settings_of_a_page_exist(page: str) -> None:
    """Also of commands that are not run: every one composes, but for those that name what the reader has."""
    for one in ALL:
        own = re.search(
            r"my_package|my_module|search_program|echo_env|guessing|writing:|close_reward|optuna|\$|…",
            one.text,
        )
        if one.page != page or one.program != "train" or own is not None:
            continue
        flags, overrides = separate(one.words)
        if resumed_from(overrides) is None:
            primary, flags = primary_file(flags)
            compose_run(overrides, config_name=primary, multirun=is_multirun(flags))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working directory of a reader who has run searches: two finished runs, one of them under the name of the pages."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        for name in ("search/0", "search-hierarchy/0", "math/0"):
            made = ("+env=math", "+agents=loop") if name == "math/0" else ("+env=search", "+agents=hierarchy")
            assert train([*made, *SHORT, "logger=none", f"output_dir=outputs/{name}"]) == 0
        run = home / "outputs/search-hierarchy/0"
        run.rename(home / "outputs/search-hierarchy/…")
        (home / "outputs/search-hierarchy/…/checkpoints/iteration-000030").symlink_to("iteration-000001")
    return home


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "words"), RUN, ids=[" ".join((name, *words))[:80] for name, words in RUN]
)
def test_a_command_runs(
    program: str, words: tuple[str, ...], finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it stands, but shorter."""
    monkeypatch.chdir(finished)
    monkeypatch.setenv("DRMAS_TRUST", "drmas_pl")
    main: Callable[[list[str]], int] = import_module(f"drmas_pl.tools.{PROGRAMS[program][0]}").main
    more: list[str] = []
    if program == "train" and "--cfg" not in words:
        more = [*SHORT, f"output_dir={tmp_path / 'run'}"]
        if any(word.startswith("resume=") for word in words):
            more = ["trainer.max_iterations=2", "data.limit_validation=2"]
    elif program == "evaluate":
        more = ["data.limit_test=2"] if "split=test" in words else ["data.limit_validation=2"]
    names = {word.partition("=")[0] for word in more}
    words = tuple(word for word in words if word.partition("=")[0] not in names)
    # two pages export to the same folder
    own = [word.replace("exported/", f"{tmp_path}/exported/") for word in words]
    assert main([*own, *more]) == 0
