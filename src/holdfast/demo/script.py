"""The demo's script: the messages, the model's answers, and the counts that the store must have at the end."""

from __future__ import annotations

import random
from typing import Any

MODEL = "scripted-1"
MESSAGES = {
    "message-1": "Please build the release notes, and tell me when they are ready.",
    "message-2": "Please do that every night.",
}
OPENINGS = ("Gladly.", "Sure.", "Of course.")
"""The model chooses one at random, as a real model varies its words. The choice is stored once."""

# Start of the last message -> the model's text, the tools that it calls, and its tokens.
LINES: dict[str, tuple[str, tuple[str, ...], int]] = {
    "user: Please build": ("I start a build.", ("start_build",), 6),
    "tool: start_build": ("The build is running. I will tell you.", (), 14),
    "process: May I publish": ("The build asks for your approval.", (), 9),
    "process: The build is done": ("I put the notes here.", ("attach_notes",), 7),
    "tool: attach_notes": ("The release notes are ready.", (), 12),
    "user: Please do that every night": ("I subscribe to the night.", ("build_each_night",), 6),
    "tool: build_each_night": ("From now on, every night.", (), 10),
    "process: The nightly build is done": ("Tonight's notes are ready, too.", (), 11),
}

TRANSCRIPT = (
    *("user", "assistant", "tool", "assistant"),  # message 1: start_build
    *("process", "assistant"),  # the build's question, which the user answers with a signal
    *("process", "assistant", "tool", "assistant"),  # its end: attach_notes
    *("user", "assistant", "tool", "assistant"),  # message 2: build_each_night
    *("process", "assistant"),  # the night's end
)
"""The roles in order. They form one path, so a turn that was stored twice, or lost, shows in it."""

ONCE = {
    "conversation in order": 1,
    "turns committed": 5,
    "nodes": 16,
    "batches of work settled": 6,
    "tokens": 75,
    "runs completed": 2,
    "steps recorded": 7,
    "signals": 1,
    "attachments": 1,
    "occurrences that started a run": 1,
    "left to do": 0,
    "damage found": 0,
}
"""The counts if each step above happened exactly once."""

MEANING = {
    "claimed": "it had just taken the work",
    "thought": "the model had answered, and nothing was stored",
    "acted": "model and tools had done their work, and nothing was committed",
    "committed": "the turn was stored, and its receipt never seen",
    "running": "it had just taken the run",
    "built": "a step was done, and not recorded",
    "recorded": "in the middle of a run",
    "ended": "the run was done, and its end not stored",
    "working": "it had just taken the job",
    "triggered": "the trigger had started a run, and no worker had it",
}
RACE = "while it sent the commit, which may have arrived or not"


def model(conversation: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the script's answer to the last message, with tool calls and tokens."""
    last = conversation[-1]
    line = f"{last['role']}: {last['text']}"
    text, tools, tokens = next(answer for start, answer in LINES.items() if line.startswith(start))
    opening = random.choice(OPENINGS)  # noqa: S311 - not a secret
    return {"role": "assistant", "text": f"{opening} {text}", "calls": list(tools), "model": MODEL, "tokens": tokens}
