"""A small agent that may be killed at any moment.

Another worker continues, and nothing is stored twice. This is the example to
copy. Start `holdfast worker agent:worker` as often as you like, on any number
of machines.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import holdfast
from holdfast.processes import BySession, Completed, Run
from holdfast.triggers import SubscriptionDraft
from holdfast.worker import BlockingRun, Job, Retry

Message: TypeAlias = dict[str, Any]
Turn: TypeAlias = holdfast.blocking.Turn

worker = holdfast.Worker("agent.db")


# The conversation.


@worker.turn(retry=Retry(5, backoff_s=1))
def reply(turn: Turn) -> None:
    """Ask the model and run the tools that it calls, until it calls none."""
    message = incoming(turn)
    turn.add(message, kind=message["role"])
    while True:
        answer = model(turn.messages)
        turn.add(answer, kind="assistant")
        turn.usage(answer["model"], output_tokens=answer["tokens"])
        for call in answer["calls"]:
            result = TOOLS[call](turn)
            turn.add({"role": "tool", "text": call, **result}, kind="tool")
        if not answer["calls"]:
            return


def incoming(turn: Turn) -> Message:
    """Return the message to answer: a build's end, or one that was sent."""
    if turn.ended is None:
        sent: Message = turn.input
        return sent
    done = turn.ended.outcome
    text = done.value["text"] if isinstance(done, Completed) else done.message
    return {"role": "process", "text": text}


def model(messages: list[Message]) -> Message:
    """Answer the last message, and name tools to call. Your model goes here."""
    last = messages[-1]
    starts = {
        "user: Build": "start_build",
        "user: Every night": "build_each_night",
        "process: The": "attach_notes",
    }
    line = f"{last['role']}: {last['text']}"
    calls = [tool for start, tool in starts.items() if line.startswith(start)]
    answer = {"role": "assistant", "text": f"I see: {line}", "calls": calls}
    return {**answer, "model": "some-model", "tokens": 7}


# The tools. All that they do is committed with the turn, or not at all.


def start_build(turn: Turn) -> Message:
    """Start a build that asks before it publishes."""
    args = {"label": "build", "chat": turn.session_id, "asks": True}
    return {"process": turn.start("build", args)}


def attach_notes(turn: Turn) -> Message:
    """Attach the notes of the build that has ended."""
    assert turn.ended is not None
    assert isinstance(turn.ended.outcome, Completed)
    notes = turn.ended.outcome.value["notes"].encode()
    return {"attachment": turn.attach(notes, media_type="text/markdown").id}


def build_each_night(turn: Turn) -> Message:
    """Enqueue the job that subscribes the chat to a clock."""
    draft = holdfast.WorkDraft(
        kind="subscribe",
        session_id=f"{turn.session_id}:jobs",
        payloads=[{"chat": turn.session_id}],
    )
    turn.enqueue(draft)
    return {"source": f"{turn.session_id}:night"}


TOOLS = {
    "start_build": start_build,
    "attach_notes": attach_notes,
    "build_each_night": build_each_night,
}


# Work in the background.


@worker.process("build", retry=Retry(5, backoff_s=1))
def build(run: BlockingRun, label: str, chat: str, *, asks: bool) -> Message:
    """Build three parts. A part that is recorded is not built again."""
    names = ("head", "body", "end")
    parts = [run.step(name, build_part, label, name) for name in names]
    if asks:
        run.step("ask", ask, run, chat)
        run.signal("approve")
    return {"text": f"The {label} is done", "notes": "".join(parts)}


def build_part(label: str, name: str) -> str:
    """Build a part of the notes. Your hours of work go here."""
    return f"{name} of the {label}\n"


def ask(run: BlockingRun, chat: str) -> None:
    """Send a question to the chat. The key makes two of them one."""
    question = {"role": "process", "text": "May I publish the notes?"}
    run.store.sessions.handle(chat).enqueue(question, source_key=run.key("ask"))


@worker.job("subscribe", retry=Retry(5, backoff_s=1))
def subscribe(job: Job) -> None:
    """Start a build whenever the clock fires. The key makes two of them one."""
    chat = job.payload["chat"]
    args = {"label": "nightly build", "chat": chat, "asks": False}
    draft = SubscriptionDraft(
        source_type="clock",
        source_key=f"{chat}:night",
        key=f"{chat}:night",
        target=Run("build", args=args),
        registrant=BySession(holdfast.Scope(chat)),
        wake_target=holdfast.Scope(chat),
    )
    job.store.triggers.subscribe(draft)
