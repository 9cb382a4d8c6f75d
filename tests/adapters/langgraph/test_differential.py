"""The saver answers as InMemorySaver does, call by call, over random programs."""

from __future__ import annotations

import random
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.memory import InMemorySaver

from holdfast.adapters.langgraph import HoldfastSaver

CHANNELS = ("messages", "plan", "count")
NAMESPACES = ("", "sub:1")
STEPS = 60


class Program:
    """Makes the same calls on both savers."""

    def __init__(self, seed: int, ours: HoldfastSaver) -> None:
        self.random = random.Random(seed)
        self.savers = (InMemorySaver(), ours)
        self.heads: dict[tuple[str, str], list[tuple[str, Any, Any]]] = {}

    def config(self, place: tuple[str, str], id: str | None = None) -> Any:
        return {"configurable": {"thread_id": place[0], "checkpoint_ns": place[1], "checkpoint_id": id}}

    def place(self) -> tuple[str, str]:
        return self.random.choice(("a", "b")), self.random.choice(NAMESPACES)

    def put(self) -> None:
        place = self.place()
        made = self.heads.setdefault(place, [])
        parent = made[-1] if made else (None, {}, {})
        if made and self.random.random() < 0.2:
            parent = self.random.choice(made)
        values, versions = dict(parent[1]), dict(parent[2])
        changed = self.random.sample(CHANNELS, self.random.randint(0, 3))
        for channel in changed:
            values[channel] = self.value()
            versions[channel] = f"{len(made):08}.{channel}"
        for channel in [one for one in values if one not in changed and self.random.random() < 0.1]:
            del values[channel]
            versions[channel] = f"{len(made):08}.gone"
            changed.append(channel)
        id = str(uuid6(clock_seq=len(made)))
        checkpoint: Any = {**empty_checkpoint(), "id": id, "channel_values": values, "channel_versions": versions}
        metadata: Any = {"source": "loop", "step": len(made), "run_id": self.random.choice("xy"), "odd": (1, 2)}
        config = self.config(place, parent[0])
        for saver in self.savers:
            # A branch is one that the caller names, as a run does that was given a checkpoint id.
            known = None if parent[0] is None else saver.get_tuple(config)
            start = config if known is None else known.config
            saver.put(start, checkpoint, metadata, {channel: versions[channel] for channel in changed})
        made.append((id, values, versions))

    def value(self) -> Any:
        size = self.random.choice((1, 3, 200))
        return [{"text": f"{self.random.random()}", "parts": [b"x", None, 1.5]} for _ in range(size)]

    def put_writes(self) -> None:
        place = self.place()
        made = self.heads.get(place)
        if not made:
            return
        id = self.random.choice(made)[0]
        names = self.random.sample((*CHANNELS, "__interrupt__", "__resume__", "__error__"), 3)
        writes = [(name, self.value()) for name in names]
        task, path = self.random.choice(("t1", "t2", "t3")), self.random.choice(("", "~1", "~2"))
        for saver in self.savers:
            saver.put_writes(self.config(place, id), writes, task, path)

    def delete(self) -> None:
        thread = self.random.choice(("a", "b"))
        for place in [place for place in self.heads if place[0] == thread]:
            del self.heads[place]
        for saver in self.savers:
            saver.delete_thread(thread)

    def check(self) -> None:
        place = self.place()
        made = self.heads.get(place, [])
        id = self.random.choice([None, "absent", *(one[0] for one in made)])
        first, second = (saver.get_tuple(self.config(place, id)) for saver in self.savers)
        assert comparable(first) == comparable(second)
        before = self.config(place, self.random.choice(made)[0]) if made and self.random.random() < 0.5 else None
        wanted = self.random.choice((None, {"run_id": "x"}, {"step": 1}, {"odd": [1, 2]}))
        limit = self.random.choice((None, 0, 1, 3))
        found = [
            [comparable(one) for one in saver.list(self.config(place), filter=wanted, before=before, limit=limit)]
            for saver in self.savers
        ]
        assert found[0] == found[1]
        if made:
            at = self.config(place, self.random.choice(made)[0])
            histories = [saver.get_delta_channel_history(config=at, channels=CHANNELS) for saver in self.savers]
            assert histories[0] == histories[1]


def comparable(found: Any) -> Any:
    if found is None:
        return None
    parent = None if found.parent_config is None else found.parent_config["configurable"]["checkpoint_id"]
    id = found.config["configurable"]["checkpoint_id"]
    return id, found.checkpoint, found.metadata, parent, found.pending_writes


@pytest.mark.parametrize("seed", range(3))
def test_every_answer_is_that_of_the_saver_in_memory(url: str, seed: int) -> None:
    with HoldfastSaver(url) as ours:
        program = Program(seed, ours)
        for _ in range(STEPS):
            step = program.random.choices((program.put, program.put_writes, program.delete), (10, 6, 1))[0]
            step()
            program.check()
