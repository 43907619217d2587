"""Finding files, reading rows, and what the errors say."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as arrow
import pytest
from pyarrow import parquet

from drmas_pl.data.files import find_files, locate, read_rows, write_json_lines
from drmas_pl.errors import DataError


def rows_of(file: Path) -> list[dict]:
    return [row.values for row in read_rows(file)]


def test_json_lines_keep_their_line_numbers_over_blank_lines_and_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'\xef\xbb\xbf{"a": "\xc3\xa9"}\r\n\n{"a": 2}')
    found = list(read_rows(file))
    assert [row.values for row in found] == [{"a": "é"}, {"a": 2}]
    assert [row.place for row in found] == [f"{file}, line 1", f"{file}, line 3"]


@pytest.mark.parametrize("suffix", [".jsonl", ".ndjson", ".json"])
def test_every_json_lines_suffix_is_read(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"a{suffix}"
    file.write_text('{"a": 1}\n')
    assert rows_of(file) == [{"a": 1}]


def test_parquet_rows_are_counted_over_batches(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    parquet.write_table(arrow.table({"a": list(range(3000)), "b": [["x", "y"]] * 3000}), file)
    found = list(read_rows(file))
    assert found[-1].values == {"a": 2999, "b": ["x", "y"]}
    assert found[-1].place == f"{file}, row 3000"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b'{"a": 1}\n{"a": 1\n',
            r"line 2: expected one JSON object, got '\{\"a\": 1' \(.* at column 8\); fix or remove the line",
        ),
        (b"[\n", r"line 1: expected one JSON object, .*; write one object a line instead of one array"),
        (
            b"[1, 2]\n",
            r"line 1: expected a JSON object, got '\[1, 2\]'; write one object with named columns a line",
        ),
        (b'{"a": "\xff"}\n', r"line 1: expected UTF-8, got byte 0xff; save the file as UTF-8"),
        (b'{"a": "\\ud800"}\n', r"line 1: expected Unicode text, got half of a surrogate pair"),
        (b"x" * 100, r"got 'x{59}…'"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_bytes(content)
    with pytest.raises(DataError, match=message):
        rows_of(file)


def test_a_file_that_is_no_parquet_says_so(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    file.write_text('{"a": 1}\n')
    with pytest.raises(
        DataError, match=r"a\.parquet: expected a Parquet file, got an error after row 0 .*; write it anew"
    ):
        rows_of(file)


def test_an_unknown_suffix_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"expected a suffix \.jsonl, .*\.parquet.*, got \.xlsx; convert or rename the file"
    ):
        read_rows(tmp_path / "a.xlsx")


def test_a_missing_file_lists_the_nearest_names(tmp_path: Path) -> None:
    for name in ("train.jsonl", "test.jsonl", "notes.md", ".hidden"):
        (tmp_path / name).touch()
    with pytest.raises(
        DataError, match=r"no file .*trian\.jsonl; nearest in its folder: train\.jsonl"
    ) as caught:
        locate(tmp_path / "trian.jsonl")
    assert "notes.md" not in str(caught.value)
    with pytest.raises(DataError, match=r"nearest in its folder: notes\.md, test\.jsonl, train\.jsonl$"):
        locate(tmp_path / "zzz")


def test_a_missing_folder_names_the_last_one_that_exists(tmp_path: Path) -> None:
    (tmp_path / "math").mkdir()
    with pytest.raises(DataError, match=rf"its folder does not exist; {tmp_path} does and holds math"):
        locate(tmp_path / "maths" / "deep" / "train.jsonl")


def test_a_folder_lists_its_files(tmp_path: Path) -> None:
    for number in range(10):
        (tmp_path / f"{number}.jsonl").touch()
    with pytest.raises(
        DataError, match=r"expected a file, got the folder .*: 0\.jsonl, .*7\.jsonl, … \(10 in all\)"
    ):
        locate(tmp_path)


@pytest.mark.parametrize("name", ["embedded:search/trian", "embedded:search/corpus", "embedded:../types"])
def test_only_embedded_tasks_can_be_named(name: str) -> None:
    with pytest.raises(
        DataError, match=r"no embedded tasks named .*embedded:math/test, .*embedded:search/train"
    ):
        locate(name)


def test_the_home_folder_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.jsonl").touch()
    assert locate("~/a.jsonl") == tmp_path / "a.jsonl"


def test_writing_is_all_or_nothing(tmp_path: Path) -> None:
    file = tmp_path / "new" / "a.jsonl"
    write_json_lines(file, [{"a": "é"}])
    assert file.read_text(encoding="utf-8") == '{"a": "é"}\n'
    with pytest.raises(TypeError):
        write_json_lines(file, [{"a": 2}, {"a": object()}])
    assert json.loads(file.read_text(encoding="utf-8")) == {"a": "é"}
    assert [entry.name for entry in file.parent.iterdir()] == ["a.jsonl"]


def write_arrow(file: Path, table: arrow.Table) -> None:
    with arrow.ipc.new_stream(str(file), table.schema) as writer:
        writer.write_table(table)


@pytest.mark.parametrize(("suffix", "comma"), [(".csv", ","), (".tsv", "\t")])
def test_csv_cells_are_texts_and_empty_ones_absent(tmp_path: Path, suffix: str, comma: str) -> None:
    file = tmp_path / f"a{suffix}"
    lines = (("a", "b", "c"), ('"x\ny"', "", "0.10"), ("é", "2", ""))
    file.write_text("\ufeff" + "\n".join(comma.join(line) for line in lines), encoding="utf-8")
    found = list(read_rows(file))
    assert [row.values for row in found] == [{"a": "x\ny", "c": "0.10"}, {"a": "é", "b": "2"}]
    assert [row.place for row in found] == [f"{file}, line 3", f"{file}, line 4"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a,b\n1,2,3\n", r"line 2: expected 2 cells, one for each column; quote cells"),
        (b"a,b\n1\n", r"line 2: expected 2 cells"),
        (b'a\n"x" y\n', r"a\.csv: expected CSV in UTF-8, got .*; save the file anew"),
        (b"a\n\xff\n", r"a\.csv: expected CSV in UTF-8"),
    ],
)
def test_damaged_csv_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(DataError, match=message):
        rows_of(tmp_path / "a.csv")


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_narrow_numbers_are_read_as_people_write_them(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"a{suffix}"
    columns = {
        "single": arrow.array([0.1, None], arrow.float32()),
        "half": arrow.array([0.1, 3.0], arrow.float16()),
        "double": arrow.array([0.1, 1e300]),
        "nested": arrow.array(
            [{"answers": [0.1, 2.5]}, {"answers": None}],
            arrow.struct([("answers", arrow.list_(arrow.float32()))]),
        ),
    }
    if suffix == ".parquet":
        parquet.write_table(arrow.table(columns), file)
    else:
        write_arrow(file, arrow.table(columns))
    assert rows_of(file) == [
        {"single": 0.1, "half": 0.1, "double": 0.1, "nested": {"answers": [0.1, 2.5]}},
        {"single": None, "half": 3.0, "double": 1e300, "nested": {"answers": None}},
    ]


def test_a_number_that_is_too_long_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n{"a": ' + "7" * 5000 + "}\n")
    with pytest.raises(
        DataError, match=r"a\.jsonl, line 2: expected one JSON object, .*; write it as a text"
    ):
        rows_of(tmp_path / "a.jsonl")


def test_a_folder_of_shards_a_saved_set_and_a_pattern_are_read_in_order(tmp_path: Path) -> None:
    for number in (1, 0):
        write_json_lines(tmp_path / f"hub/data/train-0000{number}-of-00002.jsonl", [{"a": number}])
    assert [rows_of(file) for file in find_files(tmp_path / "hub")] == [[{"a": 0}], [{"a": 1}]]
    assert find_files(tmp_path / "hub/data/train-*") == find_files(tmp_path / "hub")
    saved = tmp_path / "saved"
    saved.mkdir()
    write_arrow(saved / "data-00000-of-00001.arrow", arrow.table({"a": [1, 2]}))
    (saved / "dataset_info.json").write_text("{}")
    (saved / "state.json").write_text('{"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}')
    assert rows_of(*find_files(saved)) == [{"a": 1}, {"a": 2}]


def test_a_folder_that_is_not_one_split_says_what_to_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected files with a suffix \.jsonl, .* got nothing; name a file"):
        find_files(tmp_path)
    for split in ("test", "train"):
        write_json_lines(tmp_path / f"{split}-00000-of-00001.jsonl", [{"a": 1}])
    with pytest.raises(
        DataError, match=r"holds different files; name one of .*/test\*\.jsonl, .*/train\*\.jsonl"
    ):
        find_files(tmp_path)
    with pytest.raises(DataError, match=r"no file matches .*x\*\.jsonl; the folder holds test-"):
        find_files(tmp_path / "x*.jsonl")
    (tmp_path / "train").mkdir()
    (tmp_path / "dataset_dict.json").write_text("{}")
    with pytest.raises(DataError, match=r"holds several splits; name one of them: .*/\{train\}"):
        find_files(tmp_path)
    (tmp_path / "train" / "state.json").write_text("[]")
    with pytest.raises(DataError, match=r"state\.json: expected what datasets\.Dataset\.save_to_disk writes"):
        find_files(tmp_path / "train")
