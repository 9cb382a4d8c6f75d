"""A graph of two nodes whose process is killed in the second one, and resumed with the argument `resume`."""

from __future__ import annotations

import os
import signal
import sys
from operator import add
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.graph import START, StateGraph

from holdfast.adapters.langgraph import HoldfastSaver


class State(TypedDict):
    done: Annotated[list[str], add]


def main(url: str, folder: Path, *, resume: bool) -> None:
    """Run the graph. Each node leaves a file for each time that it runs."""

    def ran(name: str) -> dict[str, Any]:
        (folder / f"ran-{name}-{len(list(folder.glob(f'ran-{name}-*'))) + 1}").touch()
        return {"done": [name]}

    def second(_: State) -> dict[str, Any]:
        done = ran("second")
        if not resume:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    builder = StateGraph(State)
    builder.add_node("first", lambda _: ran("first"))
    builder.add_node("second", second)
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    config: Any = {"configurable": {"thread_id": "t1"}}
    with HoldfastSaver(url) as saver:
        graph = builder.compile(checkpointer=saver)
        state = graph.invoke(None if resume else {"done": []}, config, durability="sync")
        assert state == {"done": ["first", "second"]}


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), resume="resume" in sys.argv)
