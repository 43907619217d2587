"""Programs as teams: who is asked, at once or in turn, what is paid, copies, and programs that fail."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from drmas_pl.errors import ConfigError, ContractError, EnvironmentFault
from drmas_pl.program import ProgramEnv, ProgramResult, ProgramTeam, ScriptedAgent
from drmas_pl.program.calls import loop as _loop
from drmas_pl.testing.conformance import check_env, check_team
from drmas_pl.types import Message, Task
from tests.helpers.toy import EvenEnv, make_tasks

TASKS = [Task(f"t{n}", f"question {n}", (str(n),)) for n in range(3)]


async def chain(task: Task, agents: Any) -> float:
    """Ask two agents at once, and one of them again about what both said."""
    both = await asyncio.gather(
        agents["a"].ask(task.question),
        agents["b"].chat(
            [{"role": "system", "content": "be brief"}, {"role": "user", "content": task.question}]
        ),
    )
    last = await agents["a"].ask(" and ".join(both), system="sum up")
    agents["b"].reward(0.25)
    agents["b"].reward(0.25)
    return float(last == task.reference[0])


def start(program: Any = chain, **settings: Any) -> ProgramTeam:
    team = ProgramTeam(ProgramEnv(program, TASKS), names=["a", "b"], **settings)
    team.reset(seed=0, options={"task": TASKS[1]})
    return team


def test_what_waits_at_the_same_time_is_asked_at_once() -> None:
    team = start()
    assert team.agents_selection == ("a", "b")
    assert team.observe("a").history == (Message("user", "chat", "question 1"),)
    assert [message.author for message in team.observe("b").history] == ["system", "user"]
    team.step({"a": "<think>hm</think>yes", "b": "no"})
    assert team.agents_selection == ("a",)
    assert [message.text for message in team.observe("a").history] == ["sum up", "yes and no"]
    _, reward, terminated, truncated, info = team.step("1")
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)
    assert info["rewards"] == {"b": 0.5}


def test_calls_of_one_agent_are_answered_in_their_order() -> None:
    async def twice(task: Task, agents: Any) -> Any:
        return {"a": float("".join(await asyncio.gather(*(agents["a"].ask(word) for word in "xyz"))))}

    team = start(twice)
    for number, word in enumerate("xyz", start=1):
        assert [message.text for message in team.observe("a").history] == [word]
        *_, info = team.step(str(number))
    assert info["rewards"] == {"a": 123.0} and info["success"] is False


@pytest.mark.parametrize(
    ("returned", "reward", "rewards", "success"),
    [
        (None, 0.0, {}, False),
        (True, 1.0, {}, True),
        (0.5, 0.5, {}, False),
        ({"b": -1}, 0.0, {"b": -1.0}, False),
        (ProgramResult(2.0, {"a": 1.0}, success=False, metrics={"rounds": 3}), 2.0, {"a": 1.0}, False),
        (ProgramResult(success=True), 0.0, {}, True),
    ],
)
def test_a_program_returns_rewards_in_several_forms(
    returned: Any, reward: float, rewards: Mapping[str, float], success: bool
) -> None:
    async def program(task: Task, agents: Any) -> Any:
        await agents["a"].ask("?")
        return returned

    _, got, _, _, info = start(program).step("!")
    assert (got, info["rewards"], info["success"]) == (reward, rewards, success)
    assert info["metrics"] == (
        {"rounds": 3.0} if isinstance(returned, ProgramResult) and returned.metrics else {}
    )


def test_what_was_cut_off_is_the_program_s_to_read() -> None:
    seen = []

    async def program(task: Task, agents: Any) -> None:
        seen.append(await agents["a"].ask("?"))

    team = start(program)
    team.step(team.grammars["a"].parse("half a sen", "length"))
    assert seen == ["half a sen"]


def test_copies_go_their_own_ways() -> None:
    team = start()
    team.step({"a": "x", "b": "y"})
    twin = team.clone()
    assert twin.step("1")[1] == 1.0
    assert team.agents_selection == ("a",) and team.step("2")[1] == 0.0


def test_random_numbers_of_a_program_follow_the_seed_of_the_episode() -> None:
    async def program(task: Task, agents: Any) -> None:
        await agents["a"].ask(str(agents.random.random()))

    def asked(seed: int) -> str:
        team = ProgramTeam(ProgramEnv(program, TASKS), names=["a"])
        team.reset(seed=seed)
        assert team.clone().observe("a") == team.observe("a")
        return team.observe("a").history[0].text

    assert asked(1) == asked(1) != asked(2)


def test_a_program_may_wait_for_other_things_as_well() -> None:
    async def program(task: Task, agents: Any) -> float:
        await asyncio.sleep(0.01)
        fast, slow = asyncio.create_task(agents["a"].ask("1")), asyncio.sleep(0.01, "slept")
        return float(f"{await fast}" == "ok" and await slow == "slept")

    assert start(program).step("ok")[1] == 1.0


@pytest.mark.parametrize("names", [["a", "b"], ["b", "a", "c"]])
def test_it_keeps_the_contracts(names: list[str]) -> None:
    check_team(ProgramTeam(ProgramEnv(chain, TASKS), names=names))
    check_env(ProgramEnv(chain, TASKS))


async def unknown(task: Task, agents: Any) -> None:
    await agents["nobody"].ask("?")


async def silent(task: Task, agents: Any) -> float:
    return 1.0


async def forgetful(task: Task, agents: Any) -> float:
    agents["a"].ask("?")
    return 1.0


async def broken(task: Task, agents: Any) -> None:
    raise KeyError("mine")


async def leaving(task: Task, agents: Any) -> None:
    raise SystemExit(3)


async def wrong_role(task: Task, agents: Any) -> None:
    await agents["a"].chat([{"role": "boss", "content": "?"}])


async def abandoning(task: Task, agents: Any) -> None:
    asked = asyncio.create_task(agents["a"].ask("?"))
    while not agents._calls.waiting:
        await asyncio.sleep(0)
    asked.cancel()
    await asyncio.wait([asked])


async def leaving_a_call(task: Task, agents: Any) -> None:
    asked = asyncio.create_task(agents["a"].ask("?"))
    await asyncio.sleep(0)
    assert not asked.done()


def hanging_thread(task: Task, agents: Any) -> None:
    threading.Event().wait()


def leaving_thread(task: Task, agents: Any) -> None:
    raise SystemExit(3)


async def hanging(task: Task, agents: Any) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("program", "error", "message"),
    [
        (unknown, ContractError, r"asks for an agent 'nobody'; it has \['a', 'b'\]"),
        (silent, ContractError, "ended without having asked an agent; write answer = await"),
        (forgetful, ContractError, r"calls of \['a'\] were made and never awaited; write await before each"),
        (broken, KeyError, "mine"),
        (leaving, EnvironmentFault, "the program raised SystemExit"),
        (wrong_role, ContractError, "a message must have a role out of system, user, assistant"),
        (abandoning, ContractError, r"calls of \['a'\] were given up before they were answered"),
        (leaving_a_call, ContractError, r"ended while calls of \['a'\] waited for their answers"),
        (hanging_thread, EnvironmentFault, "neither asked an agent nor ended for 0.2 seconds"),
        (leaving_thread, EnvironmentFault, "the program raised SystemExit"),
        (hanging, EnvironmentFault, "neither asked an agent nor ended for 0.2 seconds"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_programs_that_fail_say_why(program: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        start(program, timeout=0.2)
    # others go on
    assert start().agents_selection == ("a", "b")


def test_names_that_nobody_has_may_mean_a_default() -> None:
    assert start(unknown, default_agent="b").agents_selection == ("b",)


def test_foreign_teammates_answer_and_are_no_turns() -> None:
    async def program(task: Task, agents: Any) -> float:
        said = await agents["a"].ask("?")
        return float(await agents["judge"].ask(said))

    team = start(program, foreign={"judge": ScriptedAgent(lambda chat: f"0.{chat[-1]['content']}")})
    assert [call.agent for call in team.calls()] == ["a"]
    assert team.step("5")[1] == 0.5


def test_several_calls_of_one_agent_are_one_move() -> None:
    async def program(task: Task, agents: Any) -> float:
        return float("".join(await asyncio.gather(*(agents["a"].ask(word) for word in "xyz"))))

    team = start(program)
    assert [call.observation.history[0].text for call in team.calls()] == ["x", "y", "z"]
    keys = [call.seed_key for call in team.calls()]
    assert len(set(keys)) == 3


def test_a_reward_that_is_no_number_is_named() -> None:
    async def program(task: Task, agents: Any) -> Any:
        await agents["a"].ask("?")
        return "much"

    with pytest.raises(ContractError, match="what the program returns must be a"):
        start(program).step("!")


def test_programs_that_nobody_waits_for_any_more_are_ended() -> None:
    ended = threading.Event()

    async def program(task: Task, agents: Any) -> None:
        try:
            await agents["a"].ask("?")
        finally:
            ended.set()

    team: Any = start(program)
    del team
    gc.collect()
    assert ended.wait(20)

    async def left() -> int:
        return len([task for task in asyncio.all_tasks() if not task.done()]) - 1

    for _ in range(5):
        start(chain)
    gc.collect()
    for _ in range(100):
        if asyncio.run_coroutine_threadsafe(left(), _loop()).result(20) == 0:
            break
    else:
        raise AssertionError("programs are left behind")


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: ProgramTeam(EvenEnv(make_tasks(1)), names=["a"]), ValueError, "needs the environment of a program"),
        (lambda: ProgramEnv(lambda task: 1), ValueError, "a program must be a function such as async def run"),
        (lambda: ProgramEnv(3), ValueError, "a program must be a function such as async def run"),
        (lambda: ProgramTeam(ProgramEnv(chain), names=["a"], default_agent="b"), ValueError, "default_agent must be one of"),
        (lambda: ProgramTeam(ProgramEnv(chain), names=[]), ValueError, "names must be different names"),
        (lambda: ProgramTeam(ProgramEnv(chain), names=["a", "a"]), ValueError, "names must be different names"),
        (lambda: ProgramTeam(ProgramEnv(chain), names=["a"], timeout=0.0), ValueError, "timeout must be positive"),
        (lambda: ProgramEnv("no_such_module:run"), ConfigError, "env.program=no_such_module:run cannot be imported"),
        (lambda: ProgramEnv("run"), ConfigError, "env.program must be a function or its name as package.module"),
    ],
)  # fmt: skip
def test_bad_settings_are_named(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()
