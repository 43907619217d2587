r"""Read what one agent wrote: a single grammar for all roles.

Place in the data flow: the engine returns sampled ids, their text comes here, the team acts on the resulting ``Parsed``. Only sampled
text may be passed in; tags quoted in a prompt then cannot count.

A response is reduced to its *tag sequence*, one letter per tag, and judged by a regular expression over those letters:

    T  a closed think part          t  a think part still open at the end
    i  <information>                j  </information>        (self-written, never an observation)
    a  the role's own opening tag   b  its closing tag
    x  anything else that looks like a protocol tag: another role's action, wrong case, attributes, a dangling </think>

A whole sentence is ``valid``, a proper prefix of one that was cut from outside is ``truncated``, everything else is ``malformed``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, Protocol, cast

from drmas_pl.parsing.boxed import last_box

Status = Literal["valid", "malformed", "truncated", "no_verdict"]
FinishReason = Literal["stop", "length", "abort"]

SELF_WRITTEN_INFORMATION: Final = "self_written_information"
ACTION_TAGS: Final = ("answer", "search", "verify")

_FILLER = r"(?:T|ij)*"
_SENTENCE = re.compile(rf"{_FILLER}ab{_FILLER}")
_PREFIX = re.compile(rf"{_FILLER}(?:[tia]|ab{_FILLER}[ti]?)?")
_THINK = re.compile(r"</?think>")
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af]")


@dataclass(frozen=True, slots=True)
class Parsed:
    """Hold what a response means.

    Attributes:
        status: ``valid``, or why the response cannot be used.
        action: Text to execute; of a response that is not valid at most what teammates may read of it.
        verdict: The chosen option of a verdict role, otherwise None.
        reason: One phrase saying what is wrong; empty when valid.
        flags: Noteworthy but permitted facts, such as ``self_written_information``.
        tagged: What a response that is not valid would do if its form were forgiven: the first complete action or verdict in it, empty
            if there is none. A team executes it under ``on_invalid='execute'`` alone.
    """

    status: Status
    action: str = ""
    verdict: str | None = None
    reason: str = ""
    flags: frozenset[str] = field(default_factory=frozenset)
    tagged: str = ""

    @property
    def valid(self) -> bool:
        """Tell whether the response may be acted upon."""
        return self.status == "valid"


class Grammar(Protocol):
    """Turn a sampled response into a ``Parsed``; every role holds one."""

    def parse(self, text: str, finish_reason: FinishReason = "stop") -> Parsed:
        """Judge ``text``, whose sampling ended for ``finish_reason``."""
        ...


@dataclass(frozen=True, slots=True)
class ActionGrammar:
    """Accept exactly one ``<tag>…</tag>`` with non-blank content outside think parts.

    Args:
        tag: Name of the action tag, lower case, e.g. ``search``.
        think_opened: The chat template already opened ``<think>`` inside the prompt.

    Raises:
        ValueError: ``tag`` is not a lower-case name, or is reserved.

    Example:
        >>> ActionGrammar("search").parse("<think>hm</think><search>capital of Peru</search>").action
        'capital of Peru'
        >>> ActionGrammar("search").parse("<search>capital of", "length").status
        'truncated'
    """

    tag: str
    think_opened: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        _check_tag(self.tag)

    def parse(self, text: str, finish_reason: FinishReason = "stop") -> Parsed:
        """Judge a response; ``action`` is the stripped text between the tags."""
        parsed = _judge(_scan(text, self.tag, self.think_opened), finish_reason)
        return (
            parsed
            if parsed.valid
            else replace(parsed, tagged=_first_tagged(text, self.tag, self.think_opened))
        )


@dataclass(frozen=True, slots=True)
class VerdictGrammar:
    """Accept exactly one ``<tag>option</tag>``; saying nothing is ``no_verdict``, which is not approval.

    Args:
        tag: Name of the verdict tag, e.g. ``verify``.
        options: Every permitted verdict, compared exactly after stripping.
        keep: What ``action`` holds for teammates to read: ``nothing``, the ``visible`` text around the verdict, also where there is none,
            or ``all`` of a valid response, its thoughts included.
        think_opened: See ``ActionGrammar``.

    Raises:
        ValueError: ``tag`` is not a usable name, or ``options`` has fewer than two different non-blank entries.

    Example:
        >>> grammar = VerdictGrammar("verify", ("approve", "reject"))
        >>> grammar.parse("Step 2 is wrong. <verify>reject</verify>").verdict
        'reject'
        >>> grammar.parse("Looks fine to me.").status
        'no_verdict'
    """

    tag: str
    options: tuple[str, ...]
    keep: Literal["nothing", "visible", "all"] = field(default="nothing", kw_only=True)
    think_opened: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        _check_tag(self.tag)
        if (
            len({option for option in self.options if option and option == option.strip()})
            != len(self.options)
            or len(self.options) < 2
        ):
            raise ValueError(f"options must be at least two different stripped texts, got {self.options!r}")

    def parse(self, text: str, finish_reason: FinishReason = "stop") -> Parsed:
        """Judge a response; ``verdict`` is one of ``options`` when valid."""
        scan = _scan(text, self.tag, self.think_opened)
        parsed = _judge(scan, finish_reason)
        shown = visible(text, think_opened=self.think_opened) if self.keep == "visible" else ""
        if parsed.status == "malformed" and not set(scan.sequence) & set("abxt"):
            return Parsed("no_verdict", shown, reason=f"no <{self.tag}> verdict", flags=parsed.flags)
        if not parsed.valid:
            tagged = _first_tagged(text, self.tag, self.think_opened)
            return replace(parsed, tagged=tagged if tagged in self.options else "")
        if parsed.action not in self.options:
            return Parsed(
                "malformed", reason=f"verdict is none of {', '.join(self.options)}", flags=parsed.flags
            )
        words = text.strip() if self.keep == "all" else shown
        return Parsed("valid", words, verdict=parsed.action, flags=parsed.flags)


@dataclass(frozen=True, slots=True)
class BoxedGrammar:
    r"""Accept a free solution whose last ``\boxed{…}`` is complete and not blank; the action is the visible solution.

    Args:
        think_opened: The chat template already opened ``<think>`` inside the prompt.

    Example:
        >>> BoxedGrammar().parse(r"<think>2+2</think>So \boxed{4}.").action
        'So \\boxed{4}.'
        >>> BoxedGrammar().parse(r"So \boxed{4").status
        'truncated'
    """

    think_opened: bool = field(default=False, kw_only=True)

    def parse(self, text: str, finish_reason: FinishReason = "stop") -> Parsed:
        """Judge a solution; its answer is left to the grader."""
        sequence = _scan(text, None, self.think_opened).sequence
        cut = finish_reason != "stop"
        solution = visible(text, think_opened=self.think_opened)
        box = last_box(solution)
        tagged = solution if box is not None and (box.content or "").strip() else ""
        if "x" in sequence:
            return Parsed("malformed", reason="dangling or misspelt think tag", tagged=tagged)
        if "t" in sequence:
            status: Status = "truncated" if cut else "malformed"
            return Parsed(status, reason="unclosed <think>", tagged=tagged)
        if box is None:
            return Parsed("truncated" if cut else "malformed", reason=r"no \boxed{}")
        if box.content is None:
            return Parsed("truncated", reason=r"last \boxed{} is unfinished")
        if not box.content.strip():
            return Parsed("malformed", reason=r"last \boxed{} is empty")
        return Parsed("valid", action=solution)


def parse_opened(grammar: Grammar, text: str, finish_reason: FinishReason = "stop") -> Parsed:
    r"""Parse a response whose ``<think>`` stands at the end of the prompt already.

    Args:
        grammar: Has a setting ``think_opened``; to one that has none the response is given with its opening tag.
        text: A sampled response.
        finish_reason: Why its sampling ended.

    >>> parse_opened(BoxedGrammar(), r"so 4</think>\boxed{4}").action
    '\\boxed{4}'
    """
    if is_dataclass(grammar) and any(item.name == "think_opened" for item in fields(grammar)):
        opened: Grammar = replace(cast(Any, grammar), think_opened=True)
        return opened.parse(text, finish_reason)
    return grammar.parse(f"<think>{text}", finish_reason)


def without_cjk(parsed: Parsed, text: str) -> Parsed:
    """Return what a response means where Chinese, Japanese and Korean characters are not allowed, in its thoughts neither.

    >>> without_cjk(Parsed("valid", "Lima"), "<think>好</think><answer>Lima</answer>").reason
    'forbidden CJK characters'
    """
    if not parsed.valid or not _CJK.search(text):
        return parsed
    return replace(
        parsed,
        status="malformed",
        verdict=None,
        reason="forbidden CJK characters",
        tagged=parsed.verdict or parsed.action,
    )


def visible(text: str, *, think_opened: bool = False) -> str:
    """Return what teammates may see: ``text`` without its think parts, stripped.

    A part that never closes is hidden up to the end. A ``</think>`` that was never opened hides everything before it, since its opening
    tag then stood in the prompt. Parts are joined by a line break so that no new tag can form across a removed part.

    Args:
        text: A sampled response.
        think_opened: The chat template already opened ``<think>`` inside the prompt.

    Example:
        >>> visible("<think>a</think>Lima <think>b")
        'Lima'
        >>> visible("a </think>Lima")
        'Lima'
    """
    parts: list[str] = []
    start = 0
    thinking = think_opened
    for match in _THINK.finditer(text):
        opens = match[0] == "<think>"
        if thinking and opens:
            continue
        if opens:
            parts.append(text[start : match.start()])
        elif not thinking:
            parts.clear()
        start = match.end()
        thinking = opens
    if not thinking:
        parts.append(text[start:])
    return "\n".join(part for part in parts if part.strip()).strip()


class _Scan(NamedTuple):
    sequence: str
    content: str
    stray: str


def _scan(text: str, tag: str | None, think_opened: bool) -> _Scan:
    """Reduce a response to its tag sequence, the text after the own opening tag, and the first stray tag."""
    alphabet = {"<information>": "i", "</information>": "j", f"<{tag}>": "a", f"</{tag}>": "b"}
    letters = []
    stray = ""
    thinking = think_opened
    begin = 0
    end = 0
    for match in _tag_pattern(tag).finditer(text):
        token = match[0]
        if thinking:
            thinking = token != "</think>"
            letters += [] if thinking else ["T"]
            continue
        thinking = token == "<think>"
        letter = "" if thinking else alphabet.get(token, "x")
        letters.append(letter)
        if letter == "a":
            begin = match.end()
        elif letter == "b":
            end = match.start()
        elif letter == "x":
            stray = stray or token
    sequence = "".join(letters) + "t" * thinking
    return _Scan(sequence, text[begin:end].strip(), stray)


@lru_cache(maxsize=64)
def _tag_pattern(tag: str | None) -> re.Pattern[str]:
    """Match anything that could pass for a protocol tag, however badly written; without a role's own tag only think tags matter."""
    names = ("think",) if tag is None else ("think", "information", tag, *ACTION_TAGS)
    return re.compile(rf"</?(?:{'|'.join(names)})(?:\s[^<>]*)?/?>", re.IGNORECASE)


def _judge(scan: _Scan, finish_reason: FinishReason) -> Parsed:
    """Apply the rules that action and verdict roles share."""
    flags = frozenset({SELF_WRITTEN_INFORMATION} if "i" in scan.sequence else ())
    if not _SENTENCE.fullmatch(scan.sequence):
        cut = finish_reason != "stop" and _PREFIX.fullmatch(scan.sequence) is not None
        return Parsed("truncated" if cut else "malformed", reason=_explain(scan), flags=flags)
    if not scan.content:
        return Parsed("malformed", reason="empty action", flags=flags)
    return Parsed("valid", action=scan.content, flags=flags)


def _first_tagged(text: str, tag: str, think_opened: bool) -> str:
    """Return the content of the first complete ``<tag>…</tag>`` outside of think parts."""
    shown = visible(text, think_opened=think_opened)
    found = re.search(rf"<{tag}>(.*?)</{tag}>", shown, re.DOTALL)
    return "" if found is None else found[1].strip()


def _explain(scan: _Scan) -> str:
    """Name the first rule that a tag sequence breaks."""
    sequence = scan.sequence
    if scan.stray:
        return f"unexpected tag {scan.stray[:40]}"
    if "t" in sequence:
        return "unclosed <think>"
    if "a" not in sequence:
        return "dangling closing tag" if "b" in sequence else "no action"
    if sequence.count("a") > 1:
        return "more than one action"
    if "b" not in sequence:
        return "unclosed action tag"
    if sequence.count("b") > 1 or sequence.index("b") < sequence.index("a"):
        return "dangling closing tag"
    return "think or information part overlaps the action"


def _check_tag(tag: str) -> None:
    """Reject names that cannot serve as an action tag."""
    if not re.fullmatch(r"[a-z][a-z0-9_-]*", tag) or tag in ("think", "information"):
        raise ValueError(f"tag must be a lower-case name other than 'think' and 'information', got {tag!r}")
