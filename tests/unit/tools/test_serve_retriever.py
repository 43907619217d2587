"""The serving program: settings, address, shutdown."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from drmas_pl.errors import ConfigError
from drmas_pl.retrieval import HttpRetriever
from drmas_pl.retrieval.bm25s import BM25sRetriever
from drmas_pl.tools.serve_retriever import build_parser, build_retriever, find_token, main
from tests.helpers.asking import request
from tests.helpers.pace import allowed
from tests.helpers.usual import usual

ROOT = Path(__file__).parents[3]
pytest.importorskip("uvicorn", reason="needs the extra serve")


def start(*words: str) -> tuple[subprocess.Popen[str], str]:
    """Start the program on a free port and return it with its address."""
    command = [sys.executable, "tools/serve_retriever.py", *words, "--port", "0"]
    program = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert program.stdout is not None
    program.stdout.readline()
    found = re.search(r"http://\S+", program.stdout.readline())
    assert found, program.communicate()
    return program, found[0]


@pytest.mark.parametrize("stop", usual([signal.SIGTERM, signal.SIGINT], [signal.SIGINT]))
def test_serves_until_it_is_told_to_stop(stop: signal.Signals) -> None:
    program, url = start("retriever=bm25s", "retriever.k1=1.2", "--topk", "1")
    try:
        assert url.startswith("http://127.0.0.1:")
        client = HttpRetriever(url)
        assert client.fingerprint.endswith("k1=1.2-b=0.4")
        assert client.search(["France capital"], 2)[0][0].id == "capital:France"
        body = json.dumps({"query": "France capital"}).encode()
        reply = request("POST", url, body=body, headers={"Content-Type": "application/json"})
        assert len(reply.json()["result"][0]) == 1
    finally:
        program.send_signal(stop)
        _, err = program.communicate(timeout=300)
    assert (program.returncode, err) == (0, "")


def test_listens_at_this_machine_unless_told_otherwise() -> None:
    assert build_parser().parse_args([]).host == "127.0.0.1"


def post(url: str, token: str | None = None) -> int:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    body = json.dumps({"query": "France capital"}).encode()
    return request("POST", url, body=body, headers=headers).status


@pytest.mark.slow
def test_beyond_this_machine_a_token_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRMAS_RETRIEVER_TOKEN", raising=False)
    program, url = start("--host", "0.0.0.0")
    try:
        here = url.replace("0.0.0.0", "127.0.0.1")
        assert program.stderr is not None
        told = re.search(r"DRMAS_RETRIEVER_TOKEN=(\S+) in the environment", program.stderr.readline())
        assert told and len(told[1]) > 40
        assert (post(here), post(here, "guess"), post(here, told[1])) == (401, 401, 200)
        monkeypatch.setenv("DRMAS_RETRIEVER_TOKEN", told[1])
        assert HttpRetriever(here).search(["France capital"], 1)[0][0].id == "capital:France"
    finally:
        program.terminate()
        program.communicate(timeout=300)


def test_the_token_of_the_environment_is_asked_for_unless_everybody_may_ask(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DRMAS_RETRIEVER_TOKEN", "known")
    assert (find_token(True), find_token(False), capsys.readouterr().err) == ("known", "known", "")
    monkeypatch.delenv("DRMAS_RETRIEVER_TOKEN")
    assert find_token(True) is None and find_token(False) not in (None, find_token(False))
    assert build_parser().parse_args(["--no-token"]).no_token


def test_slow_clients_with_few_descriptors_keep_nobody_out() -> None:
    """As many descriptors as a shell may give, and more slow clients than that."""
    command = f"ulimit -n 128; exec {sys.executable} tools/serve_retriever.py --port 0 --read-timeout 30"
    program = subprocess.Popen(
        ["bash", "-c", command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    slow: list[socket.socket] = []
    try:
        assert program.stdout is not None
        program.stdout.readline()
        found = re.search(r"http://\S+", program.stdout.readline())
        assert found
        port = int(found[0].split(":")[2].split("/")[0])
        beginnings = (
            b"",
            b"POST /retr",
            b"POST /retrieve HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{",
        )
        for index in range(200):
            slow.append(socket.create_connection(("127.0.0.1", port)))
            slow[-1].sendall(beginnings[index % 3])
        client = HttpRetriever(found[0], timeout=allowed(5.0), retries=0, startup_timeout=0)
        assert client.search(["France capital"], 1)[0][0].id == "capital:France"
    finally:
        for one in slow:
            one.close()
        program.terminate()
        program.communicate(timeout=300)


def test_a_taken_port_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["--port", str(taken.getsockname()[1])]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: cannot listen at 127.0.0.1") and error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["retriever=bm25"], "did you mean 'bm25s'?"),
        (["retriever.corpsu=x"], "unknown setting 'retriever.corpsu'; did you mean 'retriever.corpus'?"),
        (["retriever.k1=many"], "retriever.k1: Input should be a valid number"),
        (["retriever.k1=-1"], "retriever: BM25sRetriever rejects its settings"),
        (["env=search"], "expected retriever=FILE or retriever.SETTING=VALUE, got 'env=search'"),
        (["--max-queries", "0"], "max_queries must be at least 1, got 0"),
        (["--max-connections", "0"], "connections must be at least 1, got 0"),
        (["--read-timeout", "0"], "read_seconds and answer_seconds must be above 0, got 0.0 and 120.0"),
    ],
)
def test_wrong_settings_are_one_line_and_exit_code_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--port", "0"]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_a_missing_corpus_is_exit_code_1(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([f"retriever.corpus={tmp_path}/none.jsonl", "--port", "0"]) == 1
    assert "none.jsonl" in capsys.readouterr().err


def test_any_file_of_the_group_can_be_chosen_and_changed() -> None:
    retriever = build_retriever(["retriever.cache_size=5", "retriever=bm25s"])
    assert isinstance(retriever, BM25sRetriever) and retriever.cache_size == 5


def test_a_retriever_of_ones_own_takes_its_own_settings_and_paths_any_characters(tmp_path: Path) -> None:
    corpus = tmp_path / "a=b (c), ${d}.jsonl"
    corpus.write_text('{"id": "1", "contents": "\\"Oslo\\"\\nA city."}\n')
    assert build_retriever([f"retriever.corpus={corpus}"]).search(["Oslo"], 1)[0]
    own = "retriever._target_=drmas_pl.retrieval.http.HttpRetriever"
    made = build_retriever([own, "retriever.retries=7", "retriever.startup_timeout=0"])
    assert made.retries == 7  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"unknown setting 'retriever.k1'"):
        build_retriever([own, "retriever.k1=1"])


@pytest.mark.parametrize(
    ("package", "message"), [("uvicorn", "serving needs uvicorn"), ("fastapi", "serving needs fastapi")]
)
def test_without_the_extra_one_line_says_so(
    package: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["--port", "0"]) == 2
    error = capsys.readouterr().err
    assert message in error and "pip install 'drmas_pl[serve]'" in error
