"""The page of a run in a real browser, opened from disk."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from drmas_pl.report.live_server import ServedRuns, create_view
from drmas_pl.report.run_page import write_page
from tests.helpers.run_folders import (
    agent_metrics,
    team_config,
    trajectory,
    turn,
    write_empty_responses,
    write_equal_groups,
    write_folder,
    write_paid_length,
    write_unfinished_run,
)

pytestmark = pytest.mark.browser

CHROMIUM = Path("/usr/bin/chromium")
# Milliseconds; a loaded machine takes long to start a browser.
PATIENCE = 60_000
EVIL = {
    "script": "<script>window.hurt = 1</script>",
    "image": "<img src=x onerror='window.hurt = 2'>",
    "unclosed": "<b><div title='\"><table></p> & &lt; <!-- </textarea>",
    "direction": "\u202eright to left\u202c \u2067עברית\u2069 اللغة",
    "long": "0123456789" * 10_000 + " end of it",
    "separators": "a\u2028b\u2029c\x00d",
}
# The smallest contrast of a text with what is painted behind it, and where.
CONTRAST = """() => {
  const channel = (c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const read = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => 0.2126 * channel(r / 255) + 0.7152 * channel(g / 255) + 0.0722 * channel(b / 255);
  let worst = [99, ""];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
    if (!own || ["SCRIPT", "STYLE", "NOSCRIPT"].includes(node.tagName) || !node.getClientRects().length) continue;
    const style = getComputedStyle(node);
    let behind = node;
    while (behind && (read(getComputedStyle(behind).backgroundColor)[3] ?? 1) === 0) behind = behind.parentElement;
    const ground = light(read(getComputedStyle(behind || document.body).backgroundColor));
    const ink = light(read(node instanceof SVGElement ? style.fill : style.color));
    const ratio = (Math.max(ground, ink) + 0.05) / (Math.min(ground, ink) + 0.05);
    if (ratio < worst[0]) worst = [ratio, node.className + ": " + node.textContent.slice(0, 40)];
  }
  return worst;
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        path = str(CHROMIUM) if CHROMIUM.exists() else None
        launched = started.chromium.launch(
            executable_path=path,
            timeout=PATIENCE,
            args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
        )
        yield launched
        launched.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open a page; at the end nothing may have been fetched, and nothing complained."""
    contexts, noise = [], []

    def opened(path: Path, *, width: int = 1280, scheme: str = "light") -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.set_default_navigation_timeout(PATIENCE)
        page.on("console", lambda message: noise.append(message.text))
        page.on("pageerror", lambda error: noise.append(str(error)))
        page.on("request", lambda request: noise.extend([request.url] * (request.url != path.as_uri())))
        page.goto(path.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not noise


def rich_run(folder: Path) -> Path:
    """Write a run of four tasks with two samples each, played before and after, and once for training."""
    plays = []
    for iteration in (0, 6):
        for number in range(4):
            for sample in range(2):
                right = iteration == 6 and number < 3
                turns = [
                    turn("solver", f"attempt of task {number}", observation=f"question of t{number}"),
                    turn("verifier", "<verify>yes</verify>", observation="the answer was written down"),
                ]
                plays.append(
                    trajectory(f"t{number}", turns, success=right, iteration=iteration, sample=sample)
                )
    trained = [turn("solver", "a good one", advantage=1.25), turn("verifier", "masked one", advantage=None)]
    plays.append(trajectory("t9", trained, success=True, phase="train", iteration=2))
    records = [
        {"iteration": 0, "validation/success": 0.0, "validation/tasks": 4.0},
        *(agent_metrics(step, grad_norm=0.1 * step) for step in range(1, 7)),
        {"iteration": 6, "validation/success": 0.75, "validation/tasks": 4.0},
    ]
    return write_folder(
        folder, records=records, trajectories=plays, config=team_config(), summary={"metric": "accuracy"}
    )


def tree_run(folder: Path) -> Path:
    """Write a run of one training trajectory with two candidates for each of its first two turns."""
    candidates = [
        turn(agent, f"{agent} {number}", index=place, candidate=number, advantage=float(number) - 0.5)
        for place, agent in enumerate(("solver", "verifier"))
        for number in range(2)
    ]
    chosen = [candidates[1], candidates[2], turn("solver", "alone", index=2, advantage=0.25)]
    played = trajectory("t0", chosen, success=True, phase="train", iteration=1) | {"candidates": candidates}
    return write_folder(folder, trajectories=[played], config=team_config())


def page_of(folder: Path, **settings: Any) -> Path:
    path = folder / "report.html"
    write_page([folder], path, **settings)
    return path


def wait_until(holds: Callable[[], bool]) -> None:
    """Look again until something holds; the page's policy forbids Playwright's own waiting in the page."""
    end = time.monotonic() + PATIENCE / 1000
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def count_of(page: Any) -> int:
    return int(page.locator(".filters [role=status]").inner_text().split()[0].replace(",", ""))


def test_filters_views_and_keys(tmp_path: Path, visit: Callable[..., Any]) -> None:
    page = visit(page_of(rich_run(tmp_path / "run")))
    page.wait_for_selector(".row")
    assert "0.0 % → 75.0 %" in page.locator("#outcome").inner_text()
    assert count_of(page) == 17

    page.get_by_label("outcome", exact=True).select_option("gain")
    assert count_of(page) == 12
    page.get_by_label("iteration", exact=True).select_option("6")
    assert count_of(page) == 6
    page.get_by_role("button", name="Clear").click()
    page.get_by_label("agent spoke", exact=True).select_option("verifier")
    page.get_by_label("reward ≥", exact=True).fill("1")
    wait_until(lambda: count_of(page) == 7)
    page.get_by_label("text", exact=True).fill("<VERIFY>")
    wait_until(lambda: count_of(page) == 6)
    page.get_by_label("task", exact=True).fill("t1")
    wait_until(lambda: count_of(page) == 2)

    page.get_by_role("tab", name="Before and after").click()
    assert page.locator(".dialogue").count() == 2
    assert [text.split()[0] for text in page.locator(".dialogue h3").all_inner_texts()] == ["before", "after"]
    page.get_by_role("tab", name="Group of 2").click()
    assert "sample 1" in page.locator(".dialogue h3").nth(1).inner_text()
    assert (
        page.locator(".tokens i").first.get_attribute("title")
        == "token 1 of 4: log p -0.500 nats, p = 60.7 %"
    )

    page.get_by_role("button", name="Clear").click()
    page.get_by_label("responses", exact=True).select_option(label="one not trained")
    assert count_of(page) == 1
    assert page.locator(".turn.masked").count() == 1
    assert page.locator(".chip.pos.strong").inner_text() == "advantage +1.25"
    page.get_by_role("button", name="Clear").click()

    page.locator(".list").focus()
    page.keyboard.press("Home")
    for key, place in (("ArrowDown", 2), ("End", 17), ("ArrowUp", 16), ("k", 15), ("j", 16), ("Home", 1)):
        page.keyboard.press(key)
        assert page.locator(".row[aria-selected=true]").get_attribute("aria-posinset") == str(place)
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.placeholder") == "said or observed"
    page.keyboard.type("jjk")
    assert page.get_by_label("text", exact=True).input_value() == "jjk"


def test_text_of_a_model_stays_text(tmp_path: Path, visit: Callable[..., Any]) -> None:
    plays = [
        trajectory(name, [turn("solver", text, logprobs=[])], success=False, question=text)
        for name, text in EVIL.items()
    ]
    page = visit(page_of(write_folder(tmp_path / "run", trajectories=plays, config=team_config())))
    page.wait_for_selector(".row")
    for name, text in EVIL.items():
        page.get_by_label("task", exact=True).fill(name)
        wait_until(
            lambda name=name: page.locator("#reader .small").first.inner_text().endswith(f"toy {name}")
        )
        assert page.locator("pre[aria-label=response]").first.text_content() == text
    assert page.evaluate("window.hurt") is None
    assert page.locator("#main script, #main img, #main b > div").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_can_be_read(scheme: str, tmp_path: Path, visit: Callable[..., Any]) -> None:
    """Contrast AA in every view, of findings too."""
    page = visit(page_of(rich_run(tmp_path / "run")), scheme=scheme)
    page.wait_for_selector(".row")
    page.get_by_label("responses", exact=True).select_option(label="one not trained")
    pages = [page]
    for write in (tree_run, write_empty_responses, write_paid_length):
        pages.append(visit(page_of(write(tmp_path / write.__name__)), scheme=scheme))
        pages[-1].wait_for_selector("#conversations")
    pages[1].keyboard.press("4")
    for shown in pages:
        ratio, place = shown.evaluate(CONTRAST)
        assert ratio >= 4.5, f"{place} has a contrast of {ratio:.2f}"


def test_turns_at_once_stand_beside_each_other_and_are_one_node(
    tmp_path: Path, visit: Callable[..., Any]
) -> None:
    said = [("solver", 0), ("verifier", 0), ("solver", 1), ("verifier", 1)]
    turns = [turn(name, f"{name} in round {move}", move=move) for name, move in said]
    played = trajectory("t0", turns, success=False) | {"rewards": {"solver": 1.0, "verifier": -1.0}}
    folder = write_folder(
        tmp_path / "run", trajectories=[played], config=team_config(), summary={"metric": "first_won"}
    )
    page = visit(page_of(folder))
    page.wait_for_selector(".row")
    assert page.locator(".at-once").count() == 2
    left, right = (
        page.locator(".at-once").first.locator(".turn").nth(place).bounding_box() for place in (0, 1)
    )
    assert left["y"] == right["y"] and left["x"] + left["width"] <= right["x"]
    assert "reward 0, solver 1.00, verifier -1.00, 4 turns" in page.locator(".dialogue h3").inner_text()
    assert page.locator(".row .badge").inner_text() == "✗ not won"
    said_by_graph = page.locator("svg.graph").get_attribute("aria-label")
    assert "start to solver + verifier 1.00" in said_by_graph
    assert "solver + verifier to solver + verifier 1.00" in said_by_graph
    assert page.locator("svg.graph rect.node").count() == 3


def test_candidates_of_a_tree_are_shown_as_a_tree(tmp_path: Path, visit: Callable[..., Any]) -> None:
    page = visit(page_of(tree_run(tmp_path / "run")))
    page.wait_for_selector(".row")
    page.get_by_role("tab", name="Tree").click()
    levels = [page.locator(".dialogue > .tree" + " > li > .tree" * depth) for depth in range(4)]
    assert [level.count() for level in levels] == [1, 1, 1, 0]
    labels = [level.locator("> li > .label").all_inner_texts() for level in levels[:3]]
    assert labels == [
        ["candidate 1 of 2", "candidate 2 of 2, chosen"],
        ["candidate 1 of 2, chosen", "candidate 2 of 2"],
        ["sampled alone"],
    ]
    assert page.locator(".tree > .chosen > .turn pre[aria-label=response]").all_inner_texts() == [
        "solver 1",
        "verifier 0",
        "alone",
    ]
    assert page.locator(".tree .chip.neg").all_inner_texts() == ["advantage −0.50"] * 2


def test_a_whole_tree_is_shown_with_what_its_candidates_are_worth(
    tmp_path: Path, visit: Callable[..., Any]
) -> None:
    candidates = [
        turn("solver", "first", index=0, candidate=0, reward=0.5),
        turn("verifier", "yes", index=1, candidate=0, parent=0, reward=1.0),
        turn("verifier", "no", index=1, candidate=1, parent=0, reward=0.0),
        turn("solver", "second", index=0, candidate=1, reward=0.0),
    ]
    played = trajectory("t0", candidates[:2], success=True, phase="train", iteration=1) | {
        "candidates": candidates
    }
    page = visit(page_of(write_folder(tmp_path / "run", trajectories=[played], config=team_config())))
    page.wait_for_selector(".row")
    page.get_by_role("tab", name="Tree").click()
    roots = page.locator(".dialogue > .tree > li > .label").all_inner_texts()
    assert roots == [
        "candidate 1 of 2, worth 0.50, chosen",
        "candidate 2 of 2, worth 0",
    ]
    answers = page.locator(".dialogue > .tree > li > .tree > li > .label").all_inner_texts()
    assert answers == ["candidate 1 of 2, worth 1.00, chosen", "candidate 2 of 2, worth 0"]


def test_in_a_whole_tree_something_follows_every_candidate(tmp_path: Path, visit: Callable[..., Any]) -> None:
    roots = [turn("solver", f"root {number}", index=0, candidate=number) for number in range(2)]
    leaves = [
        turn(
            "verifier",
            f"leaf {parent}{number}",
            index=1,
            candidate=number,
            parent=parent,
            reward=float(number),
        )
        for parent in range(2)
        for number in range(2)
    ]
    chosen = [roots[1], leaves[2]]
    played = trajectory("t0", chosen, success=True, phase="train", iteration=1)
    played |= {"candidates": [*roots, *leaves]}
    page = visit(page_of(write_folder(tmp_path / "run", trajectories=[played], config=team_config())))
    page.wait_for_selector(".row")
    page.keyboard.press("4")
    assert "6 candidates" in page.locator(".dialogue h3").inner_text()
    first, second = (page.locator(".dialogue > .tree > li").nth(place) for place in range(2))
    first.locator("summary").click()
    assert [first.locator(".tree pre[aria-label=response]").nth(place).inner_text() for place in (0, 1)] == [
        "leaf 00",
        "leaf 01",
    ]
    assert second.locator(".tree .chosen pre[aria-label=response]").all_inner_texts() == ["leaf 10"]
    assert "reward 1.00" in second.locator(".tree > li").nth(1).inner_text()


def test_everything_is_reached_with_the_keyboard(tmp_path: Path, visit: Callable[..., Any]) -> None:
    """Tab walks through all controls, each shows that it has the focus, and a filter is chosen and a view opened by keys alone."""
    page = visit(page_of(rich_run(tmp_path / "run")))
    page.wait_for_selector(".row")
    controls = page.locator("a[href], button, input, select, summary, [tabindex='0']")
    visible = [place for place in range(controls.count()) if controls.nth(place).is_visible()]
    reached, invisible = set(), []
    for _ in range(2 * len(visible)):
        page.keyboard.press("Tab")
        name, outline = page.evaluate(
            """() => {
              const all = [...document.querySelectorAll("a[href], button, input, select, summary, [tabindex='0']")];
              const node = document.activeElement;
              return [all.indexOf(node), getComputedStyle(node).outlineStyle];
            }"""
        )
        if name in reached or name < 0:
            break
        reached.add(name)
        invisible += [name] if outline == "none" else []
    assert reached == set(visible) and not invisible

    page.get_by_label("outcome", exact=True).focus()
    for _ in range(5):
        page.keyboard.press("ArrowDown")
    wait_until(lambda: count_of(page) == 12)
    page.get_by_role("tab", name="Before and after").focus()
    page.keyboard.press("Enter")
    assert page.locator(".dialogue").count() == 2


def test_on_a_phone_the_graph_stands_upright_and_can_be_read(
    tmp_path: Path, visit: Callable[..., Any]
) -> None:
    page = visit(page_of(rich_run(tmp_path / "run")), width=390)
    graph = page.locator("svg.graph").first
    box = graph.bounding_box()
    assert box["height"] > box["width"]
    heights = graph.evaluate(
        "(node) => [...node.querySelectorAll('text')].map((text) => text.getBoundingClientRect().height)"
    )
    ticks = page.locator("svg .tick").first.evaluate("(node) => node.getBoundingClientRect().height")
    assert min(heights) > 11 and ticks > 11


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_is_not_wider_than_the_window(width: int, tmp_path: Path, visit: Callable[..., Any]) -> None:
    page = visit(page_of(rich_run(tmp_path / "run")), width=width)
    page.wait_for_selector(".row")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize(
    ("write", "cause"),
    [
        (write_empty_responses, "100.0 % of the responses of solver are empty"),
        (write_equal_groups, "teach nothing: nearly all samples fail"),
        (write_paid_length, "reward likely grows with the text"),
    ],
)
def test_a_broken_run_shows_its_cause_on_the_first_screen(
    write: Callable[[Path], Path], cause: str, tmp_path: Path, visit: Callable[..., Any]
) -> None:
    page = visit(page_of(write(tmp_path / "run")))
    finding = page.locator(".health .bad").first
    assert cause.split(":")[-1].strip() in finding.inner_text()
    box = finding.bounding_box()
    assert box["y"] + box["height"] < 900


def test_runs_that_have_not_ended_and_several_runs(tmp_path: Path, visit: Callable[..., Any]) -> None:
    stopped = write_unfinished_run(tmp_path / "stopped")
    assert "Not finished" in visit(page_of(stopped)).locator(".health").inner_text()
    path = tmp_path / "both.html"
    write_page([stopped, rich_run(tmp_path / "whole")], path)
    page = visit(path)
    page.wait_for_selector(".row")
    assert page.locator("#runs tbody tr").count() == 2
    page.get_by_label("run", exact=True).select_option(index=1)
    assert count_of(page) == 1


def test_fifty_thousand_conversations_load_in_three_seconds(
    tmp_path: Path, visit: Callable[..., Any]
) -> None:
    plays = [
        trajectory(
            f"t{number % 9000}", [turn("solver", f"answer {number}")], success=False, sample=number // 9000
        )
        for number in range(50_000)
    ]

    def loading(number: int) -> float:
        folder = write_folder(tmp_path / f"{number}", trajectories=plays[:number], config=team_config())
        path = page_of(folder, max_bytes=60_000_000)
        start = time.perf_counter()
        page = visit(path)
        page.wait_for_selector(".row")
        seconds = time.perf_counter() - start
        assert count_of(page) == number
        return seconds

    loading(9)
    small = loading(10)
    # an ordinary machine shows the small page within a quarter of a second; a loaded one gets more time for both
    assert loading(50_000) < 3 * max(1.0, small / 0.25)


def test_a_served_page_is_loaded_anew_when_its_run_has_gone_on(tmp_path: Path, browser: Any) -> None:
    uvicorn = pytest.importorskip("uvicorn", reason="needs the extra serve")
    run = write_unfinished_run(tmp_path / "run")
    place = socket.create_server(("127.0.0.1", 0))
    app = create_view(ServedRuns(tmp_path))
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [place]})
    thread.start()
    noise: list[str] = []
    context = browser.new_context()
    try:
        page = context.new_page()
        page.set_default_navigation_timeout(PATIENCE)
        page.on("console", lambda message: noise.append(message.text))
        page.on("pageerror", lambda error: noise.append(str(error)))
        (name,) = ServedRuns(tmp_path).folders()
        page.goto(f"http://127.0.0.1:{place.getsockname()[1]}/runs/{name}/")
        assert "iteration 2 of 6" in page.locator("#main").inner_text()
        with (run / "metrics.jsonl").open("a") as file:
            file.write("\n" + json.dumps(agent_metrics(5)) + "\n")
        wait_until(lambda: "iteration 5 of 6" in page.locator("#main").inner_text())
        assert not noise
    finally:
        context.close()
        server.should_exit = True
        thread.join()
        place.close()
