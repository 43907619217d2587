"""The shipped programming tasks are what their script makes, and their tests can tell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drmas_pl.data.readers import read_tasks
from drmas_pl.data.splits import check_disjoint
from scripts.embedded.code_data import OUT, SPLITS, main, make_rows


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("code")
    main(["--out", str(folder)])
    return folder


@pytest.mark.parametrize("split", SPLITS)
def test_the_files_are_what_the_script_makes(made: Path, split: str) -> None:
    assert (OUT / f"{split}.jsonl").read_text() == (made / f"{split}.jsonl").read_text()


def test_splits_share_no_idea() -> None:
    names = [{idea.name for idea in ideas} for ideas in SPLITS.values()]
    assert sum(map(len, names)) == len(set.union(*names))
    tasks = {split: read_tasks(OUT / f"{split}.jsonl") for split in SPLITS}
    check_disjoint(tasks["train"], tasks["validation"], test=tasks["test"])


@pytest.mark.parametrize("split", SPLITS)
def test_no_answer_fits_most_tests_and_no_example_is_a_test(split: str) -> None:
    for row in make_rows(split, SPLITS[split]):
        about = row["env_kwargs"]
        outputs = [case["output"] for case in about["tests"]]
        assert len(outputs) == 8 and len(about["examples"]) == 2
        assert max(map(outputs.count, outputs)) <= 5
        assert not {case["input"] for case in about["tests"]} & {case["input"] for case in about["examples"]}
        assert all(json.dumps(case["input"])[1:-1] for case in about["tests"])


def test_the_files_are_small() -> None:
    assert sum(file.stat().st_size for file in OUT.iterdir()) < 2**20
