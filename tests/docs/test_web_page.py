"""The web service of the how-to, run by two processes with the names from the page, keeps every message."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import holdfast

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "embed-in-a-web-service.md"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
CHATS, MESSAGES = 2, 8
SERVE = """
async def serve(name: str) -> None:
    app = SimpleNamespace(state=SimpleNamespace())
    async with lifespan(app):
        store = app.state.store
        posts = [
            post_message(store, f"chat-{{chat}}", f"{{name}}-{{number}}", f"{{name}} says {{number}}", wait_s=60)
            for number in range({messages})
            for chat in range({chats})
        ]
        for status, said in await asyncio.gather(*posts):
            assert status == 200, said


import sys
asyncio.run(serve(sys.argv[1]))
"""


def in_pairs(nodes: Sequence[holdfast.Node]) -> Iterator[tuple[holdfast.Node, holdfast.Node]]:
    return zip(nodes[::2], nodes[1::2], strict=True)


def test_two_processes_keep_every_message(tmp_path: Path) -> None:
    *service, _try_it = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    program = tmp_path / "service.py"
    program.write_text("\n".join(service) + SERVE.format(messages=MESSAGES, chats=CHATS), encoding="utf-8")
    holdfast.open_blocking(str(tmp_path / "service.db")).close()
    running = [
        subprocess.Popen([sys.executable, str(program), name], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        for name in ("one", "other")
    ]
    try:
        assert [process.communicate(timeout=120)[1] for process in running] == ["", ""]
    finally:
        for process in running:
            process.kill()
            process.wait()
    with holdfast.open_blocking(str(tmp_path / "service.db")) as store:
        for chat in range(CHATS):
            view = store.sessions.handle(f"chat-{chat}").load()
            assert view is not None
            said = [node.payload["text"] for node in view.graph.nodes if node.payload["role"] == "user"]
            wanted = [f"{name} says {number}" for name in ("one", "other") for number in range(MESSAGES)]
            assert sorted(said) == sorted(wanted), "a message left the conversation"
            assert len(view.graph.nodes) == 2 * len(wanted)
            # The page's model reports how much it was shown: two concurrent turns would not see each other.
            for index, (question, reply) in enumerate(in_pairs(view.graph.nodes)):
                assert reply.payload["text"] == f"{2 * index} before; you said: {question.payload['text']}"
