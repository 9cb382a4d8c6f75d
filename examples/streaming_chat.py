"""A chat in the browser that shows each answer while it is made. Needs nothing but Holdfast.

Usage: python examples/streaming_chat.py [URL] [PORT]     then open http://localhost:8000/

Reload the page, cut the connection, or kill this program and start it again in the middle of an answer: no word is lost
and none is shown twice.
"""

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import holdfast

URL = sys.argv[1] if len(sys.argv) > 1 else "chat.db"
PORT = int(sys.argv[2]) if len(sys.argv) > 2 else 8000
PAGE = """<!doctype html>
<meta charset="utf-8">
<title>Chat</title>
<ol id="messages"></ol>
<p id="partial"></p>
<form><input id="text" autofocus> <button>Send</button> <button type="button" id="stop">Stop</button></form>
<script>
const at = (id) => document.getElementById(id);
const post = (path, body) => fetch(path, { method: "POST", body });
const show = (message) => {
  const line = document.createElement("li");
  line.textContent = message.text;
  at("messages").append(line);
};

fetch("/messages").then((answer) => answer.json()).then((loaded) => {
  loaded.messages.forEach(show);
  // After a cut, the browser reconnects by itself and sends the id of the last event that it saw.
  const source = new EventSource("/events?after=" + loaded.revision);
  source.addEventListener("delta", (event) => { at("partial").textContent += JSON.parse(event.data).value; });
  source.addEventListener("void", () => { at("partial").textContent = ""; });
  source.addEventListener("commit", (event) => {
    at("partial").textContent = "";
    JSON.parse(event.data).messages.forEach(show);
  });
});
document.forms[0].onsubmit = (event) => {
  event.preventDefault();
  post("/messages", at("text").value);
  at("text").value = "";
};
at("stop").onclick = () => post("/stop");
</script>
"""

worker = holdfast.Worker(URL)


@worker.turn
async def answer(turn: holdfast.Turn) -> None:
    """Answer a message word by word, and keep the part so far if the user stops it."""
    said = {"role": "assistant", "text": ""}
    turn.add({"role": "user", "text": turn.input}, said)
    turn.keep()
    async for word in model(turn.input):
        said["text"] += word
        turn.emit(word)


async def model(text: str) -> AsyncIterator[str]:
    """Yield words. Your model here."""
    for word in ["You", "said:", *text.split(), *(f"word{number}" for number in range(40))]:
        await asyncio.sleep(0.05)
        yield f"{word} "


def event(item: holdfast.sessions.StreamItem) -> bytes:
    """Return an item of a stream as the browser reads it. Its id is the place to continue after a cut."""
    match item:
        case holdfast.sessions.StreamDelta(value=value):
            name, data = "delta", {"value": value}
        case holdfast.sessions.StreamVoid(reason=reason):
            name, data = "void", {"reason": reason}
        case holdfast.sessions.StreamCommit(messages=messages):
            name, data = "commit", {"messages": messages}
    return f"id: {item.cursor}\nevent: {name}\ndata: {json.dumps(data)}\n\n".encode()


class Chat(BaseHTTPRequestHandler):
    """Serves the page, the messages of one session, and its stream."""

    store: holdfast.BlockingStore

    def do_GET(self) -> None:
        """Serve the page, the messages so far, or the events after the last one that the browser saw."""
        url = urlsplit(self.path)
        session = self.store.sessions.handle("chat")
        if url.path == "/events":
            after = self.headers.get("Last-Event-ID") or int(parse_qs(url.query).get("after", ["0"])[0])
            self._begin("text/event-stream")
            # Ends when nothing happens for a while. The browser connects again, and this thread is free.
            for item in session.follow(after, timeout_ms=15_000):
                self.wfile.write(event(item))
        elif url.path == "/messages":
            view = session.load()
            messages = [] if view is None else [node.payload for node in view.graph.nodes]
            self._begin("application/json")
            revision = 0 if view is None else view.revision
            self.wfile.write(json.dumps({"revision": revision, "messages": messages}).encode())
        else:
            self._begin("text/html; charset=utf-8")
            self.wfile.write(PAGE.encode())

    def do_POST(self) -> None:
        """Take a message, or stop the turn in progress."""
        session = self.store.sessions.handle("chat")
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        if self.path == "/stop":
            session.interrupt(reason="stopped in the browser")
        else:
            session.enqueue(text)
        self._begin("text/plain")

    def _begin(self, media_type: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", media_type)
        self.send_header("Cache-Control", "no-store")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


def serve() -> None:
    """Serve the browser in threads beside the worker."""
    with holdfast.open_blocking(URL) as store:
        Chat.store = store
        server = ThreadingHTTPServer(("127.0.0.1", PORT), Chat)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(f"http://localhost:{PORT}/", flush=True)
        worker.run()


if __name__ == "__main__":
    serve()
