"""The command line that prepares data, on local copies with the layout of the public sets."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import pyarrow as arrow
import pytest
from pyarrow import parquet

from drmas_pl.data import check_disjoint, read_tasks
from drmas_pl.data.files import read_rows
from drmas_pl.data.public_sets import MATH, SEARCH, PublicSet
from drmas_pl.retrieval.bm25s import BM25sRetriever
from drmas_pl.tools.prepare_data import main
from tests.helpers.pace import allowed

ROOT = Path(__file__).parents[3]


def write(file: Path, rows: list[dict[str, Any]]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".parquet":
        parquet.write_table(arrow.Table.from_pylist(rows), file)
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    """Small copies of every public set, named as their repositories name them."""
    folder = tmp_path / "hub"
    suffix = "\n\nLet's think step by step and output the final answer within \\boxed{}."
    training = [
        {
            "prompt": [{"role": "user", "content": f"Problem {number}?{suffix}"}],
            "reward_model": {"ground_truth": str(number), "style": "rule"},
        }
        for number in range(20)
    ]
    write(folder / "aaabiao/dapo_filter/train.parquet", training)
    for place, public in enumerate(MATH[1:], start=1):
        rows = [
            {"problem": f"Problem {20 * place + number}?", "answer": str(number), "level": 2}
            for number in range(4)
        ]
        name = (
            f"{public.split}.jsonl"
            if public.source == "math_500"
            else f"data/{public.split}-00000-of-00001.parquet"
        )
        write(folder / public.hub / name, rows)
    for split, count in (("train", 30), ("test", 7)):
        search = [
            {
                "id": f"{split}_{number}",
                "question": f"{split} question {number}",
                "golden_answers": ["a", "b"],
                "data_source": ("nq", "hotpotqa")[number % 2],
                "reward_model": {"ground_truth": {"target": ["a", "b"]}, "style": "rule"},
            }
            for number in range(count)
        ]
        write(folder / "PeterJinGo/nq_hotpotqa_train" / f"{split}.parquet", search)
    return folder


@pytest.mark.parametrize(("command", "sizes"), [("math", (16, 4, 24)), ("search", (26, 4, 7))])
def test_public_sets_become_three_checked_files(
    command: str, sizes: tuple[int, int, int], hub: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "data"
    assert main([command, "--output", str(output), "--validation", "4", "--local", str(hub)]) == 0
    tasks = {
        split: read_tasks(output / f"{split}.jsonl", split=split) for split in ("train", "validation", "test")
    }
    assert tuple(len(found) for found in tasks.values()) == sizes
    check_disjoint(tasks["train"], tasks["validation"], test=tasks["test"])
    assert "Let's" not in tasks["train"][0].question
    report = capsys.readouterr().out
    assert report.startswith(
        "left out of training: 0 repeated questions, 0 that a test set asks too\n\nsource"
    )
    assert f"total {sizes[0]} {sizes[1]} {sizes[2]}" in " ".join(report.split())


def test_programming_sets_are_mapped_and_rows_without_tests_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub = tmp_path / "hub"
    pairs = {"input": ["1"], "output": ["2"]}
    for split in ("train", "test"):
        apps = [
            {
                "question": f"{split} {number}",
                "input_output": '{"inputs": ["1"], "outputs": ["2"]}' if number else "",
            }
            for number in range(4)
        ]
        write(hub / f"codeparrot/apps/{split}.jsonl", apps)
        contest = {"description": f"contest {split}", "public_tests": pairs, "private_tests": pairs}
        write(hub / f"deepmind/code_contests/data/{split}-00000-of-00001.parquet", [contest])
    tests = '[{"input": "1", "output": "2", "testtype": "stdin"}]'
    bench = {
        "question_content": "bench",
        "public_test_cases": tests,
        "private_test_cases": tests,
        "metadata": "{}",
    }
    write(hub / "livecodebench/code_generation_lite/test.jsonl", [bench])
    output = tmp_path / "data"
    assert main(["code", "--output", str(output), "--validation", "1", "--local", str(hub)]) == 0
    assert capsys.readouterr().out.startswith(
        "left out: 2 rows without tests\nleft out of training: 0 repeated"
    )
    sizes = [len(read_tasks(output / f"{split}.jsonl")) for split in ("train", "validation", "test")]
    assert sizes == [3, 1, 5]
    assert read_tasks(output / "test.jsonl")[0].metadata["tests"] == [{"input": "1", "output": "2"}]


def test_the_seed_and_the_size_of_validation_are_heard(hub: Path, tmp_path: Path) -> None:
    chosen = {}
    for seed in ("0", "1", "0"):
        assert (
            main(
                [
                    "math",
                    "--output",
                    str(tmp_path / seed),
                    "--validation",
                    "5",
                    "--seed",
                    seed,
                    "--local",
                    str(hub),
                ]
            )
            == 0
        )
        chosen[seed] = (tmp_path / seed / "validation.jsonl").read_text()
        assert len(chosen[seed].splitlines()) == 5
    assert chosen["0"] != chosen["1"]
    assert main(["search", "--output", str(tmp_path / "none"), "--validation", "0", "--local", str(hub)]) == 0
    assert not (tmp_path / "none" / "validation.jsonl").exists()


def test_long_questions_are_left_out_and_counted(
    hub: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "math",
        "--output",
        str(tmp_path / "o"),
        "--validation",
        "2",
        "--local",
        str(hub),
        "--max-characters",
    ]
    assert main([*arguments, "10"]) == 0
    assert "asks too, 10 that are too long" in capsys.readouterr().out
    assert len(read_tasks(tmp_path / "o" / "train.jsonl")) == 8
    assert len(read_tasks(tmp_path / "o" / "test.jsonl")) == 24
    assert main([*arguments, "0"]) == 1
    assert "--max-characters must be at least 1, got 0" in capsys.readouterr().err


def test_checking_refuses_long_questions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--test", "embedded:math/test", "--max-characters", "5"]) == 1
    assert "questions are longer than 5, the longest is task" in capsys.readouterr().err


def test_a_missing_local_copy_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", "--output", str(tmp_path / "o"), "--local", str(tmp_path)]) == 1
    captured = capsys.readouterr().err
    assert "expected train*.parquet or train*.jsonl below" in captured
    assert captured.count("\n") == 1
    assert not (tmp_path / "o").exists()


def test_a_negative_validation_size_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["math", "--output", str(tmp_path / "o"), "--validation", "-1", "--local", str(tmp_path)]) == 1
    )
    assert "--validation must be at least 0, got -1" in capsys.readouterr().err


def test_without_the_datasets_library_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert main(["math", "--output", str(tmp_path / "o")]) == 1
    assert (
        capsys.readouterr().err
        == "error: fetching needs the datasets library; pip install 'drmas_pl[hub]', or use --local\n"
    )


def test_an_unreachable_hub_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    library = types.ModuleType("datasets")

    def load_dataset(name: str, **settings: Any) -> None:
        raise RuntimeError(f"no route for {name}\nsecond line")

    library.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", library)
    assert main(["search", "--output", str(tmp_path / "o")]) == 1
    captured = capsys.readouterr().err
    assert captured.startswith(
        "error: the hub did not deliver PeterJinGo/nq_hotpotqa_train (no route for PeterJinGo/nq_hotpotqa_train); check"
    )
    assert captured.count("\n") == 1


class FakeHub:
    """Stands in for the ``datasets`` library: reads the copies of the ``hub`` fixture and notes what was asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[tuple[str, str]] = []

    def load_dataset(self, name: str, *, data_files: dict[str, str], split: str) -> list[dict[str, Any]]:
        self.asked.append((name, split))
        assert list(data_files) == [split]
        (file,) = (self.folder / name).glob(data_files[split])
        return [row.values for row in read_rows(file)]

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        library = types.ModuleType("datasets")
        library.load_dataset = self.load_dataset  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "datasets", library)


@pytest.mark.parametrize(("command", "sets"), [("math", MATH), ("search", SEARCH)])
def test_the_hub_and_a_local_copy_give_the_same_files(
    command: str, sets: tuple[PublicSet, ...], hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeHub(hub)
    fake.install(monkeypatch)
    assert main([command, "--output", str(tmp_path / "hub-output"), "--validation", "4"]) == 0
    assert fake.asked == [(public.hub, public.split) for public in sets]
    assert (
        main([command, "--output", str(tmp_path / "local-output"), "--validation", "4", "--local", str(hub)])
        == 0
    )
    for split in ("train", "validation", "test"):
        assert (tmp_path / "hub-output" / f"{split}.jsonl").read_bytes() == (
            tmp_path / "local-output" / f"{split}.jsonl"
        ).read_bytes()


def test_a_bad_row_of_the_hub_is_named_and_nothing_is_written(
    hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(
        hub / "knoveleng/AMC-23/data/train-00000-of-00001.parquet",
        [{"problem": "One?", "answer": "1"}, {"problem": "Two?", "answer": None}],
    )
    FakeHub(hub).install(monkeypatch)
    assert main(["math", "--output", str(tmp_path / "o")]) == 1
    captured = capsys.readouterr().err
    assert captured.startswith("error: knoveleng/AMC-23, row 2: expected reward_model.ground_truth")
    assert captured.count("\n") == 1
    assert not (tmp_path / "o").exists()


@pytest.mark.network
def test_the_hub_delivers_the_known_columns(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    for command in ("math", "search"):
        assert main([command, "--output", str(tmp_path / command)]) == 0
        assert len(read_tasks(tmp_path / command / "validation.jsonl")) == 512


def test_an_index_is_built_once_and_then_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = write(
        tmp_path / "corpus.jsonl",
        [{"id": str(n), "contents": f'"City {n}"\nIt is city number {n}.'} for n in range(20)],
    )
    index = tmp_path / "index"
    assert main(["corpus", str(corpus), "--index", str(index)]) == 0
    first = capsys.readouterr().out
    assert "20 passages indexed" in first
    built = (index / "fingerprint.json").stat().st_mtime_ns
    assert main(["corpus", str(corpus), "--index", str(index)]) == 0
    assert capsys.readouterr().out == first
    assert (index / "fingerprint.json").stat().st_mtime_ns == built
    retriever = BM25sRetriever(corpus, index=index)
    assert retriever.fingerprint in first
    assert retriever.search(["city 7"], 1)[0][0].id == "7"
    assert main(["corpus", str(corpus), "--index", str(index), "--k1", "1.2", "--b", "0.75"]) == 1
    assert "was built for" in capsys.readouterr().err


@pytest.mark.parametrize(("backend", "package"), [("lucene", "pyserini"), ("dense", "faiss")])
def test_an_index_that_needs_an_extra_says_so_in_one_line(
    backend: str,
    package: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    monkeypatch.setattr("drmas_pl.retrieval.pyserini.prepare_java", lambda: None)
    assert (
        main(["corpus", "embedded:search/corpus", "--index", str(tmp_path / "index"), "--backend", backend])
        == 1
    )
    error = capsys.readouterr().err
    assert (
        f"needs {package}" in error
        and "pip install 'drmas_pl[retrieval]'" in error
        and error.count("\n") == 1
    )


def test_a_wrong_number_for_an_index_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["corpus", "embedded:search/corpus", "--index", str(tmp_path / "index"), "--b", "2"]) == 1
    assert "0 <= b <= 1" in capsys.readouterr().err


def test_a_bad_corpus_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = write(tmp_path / "corpus.jsonl", [{"id": "1", "text": "no contents"}])
    assert main(["corpus", str(corpus), "--index", str(tmp_path / "index")]) == 1
    assert "corpus.jsonl line 1" in capsys.readouterr().err
    assert not (tmp_path / "index").exists()


def test_checking_prints_counts_fingerprints_and_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["check", "--train", "embedded:search/train", "--validation", "embedded:search/validation"]) == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["source", "train", "validation"]
    assert lines[3].split() == ["total", "5724", "717"]
    assert [line.split()[0] for line in lines[5:7]] == ["train", "validation"]
    assert lines[-1] == "no question stands in two splits"


def test_overlap_fails_after_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--train", "embedded:math/test", "--test", "embedded:math/test"]) == 1
    captured = capsys.readouterr()
    assert "total" in captured.out
    assert captured.err.startswith("error: train and test share 300 questions")


def test_a_bad_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "a.jsonl", [{"question": "Who?"}])
    assert main(["check", "--test", str(file)]) == 1
    assert f"error: {file}, line 1: expected reward_model.ground_truth" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["check"], [], ["math"], ["corpus", "a.jsonl"]])
def test_incomplete_commands_explain_the_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert "usage: drmas prepare-data" in capsys.readouterr().err


def test_help_is_fast_and_needs_no_torch() -> None:
    code = (
        "import sys; from drmas_pl.tools.prepare_data import build_parser; build_parser().format_help(); "
        "print(sorted({'torch', 'pyarrow', 'bm25s'} & set(sys.modules)))"
    )
    start = time.monotonic()
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=300, check=True
    )
    assert result.stdout.strip() == "[]"
    assert time.monotonic() - start < allowed(5)
