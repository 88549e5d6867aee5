"""A local HTTP server with scripted answers, for the client's side of a benchmark."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, list[Any] | dict[str, Any]]


def text_events(words: list[str], **last: Any) -> list[Any]:
    """Events of a streamed text completion, one word each, with usage at the end."""
    pieces = [{"choices": [{"text": word, "finish_reason": None}]} for word in words]
    return [*pieces, {"choices": [{"text": "", "finish_reason": "length"}], **last}, usage(len(words))]


def chat_events(words: list[str], **last: Any) -> list[Any]:
    """As `text_events`, in the shape of a chat."""
    opening = {"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
    pieces = [{"choices": [{"delta": {"content": word}, "finish_reason": None}]} for word in words]
    return [
        opening,
        *pieces,
        {"choices": [{"delta": {}, "finish_reason": "length"}], **last},
        usage(len(words)),
    ]


def usage(completion_tokens: int) -> dict[str, Any]:
    """The closing event with token counts."""
    return {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": completion_tokens}}


@contextlib.contextmanager
def serving(answer: Callable[[str, dict[str, Any]], Answer]) -> Iterator[str]:
    """The URL of a server that answers (path, body) as told: a list is streamed, a mapping sent whole."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(*answer(self.path, {}))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self._send(*answer(self.path, {**json.loads(body), "auth": self.headers["Authorization"]}))

        def log_message(self, *_: object) -> None:
            """Nothing: the tests' output is not its place."""

        def _send(self, status: int, content: list[Any] | dict[str, Any]) -> None:
            self.send_response(status)
            self.end_headers()
            if isinstance(content, dict):
                self.wfile.write(json.dumps(content).encode())
                return
            for event in content:
                self.wfile.write(f"data: {json.dumps(event)}\n\n: keep-alive\n\n".encode())
                self.wfile.flush()
            self.wfile.write(b"data: [DONE]\n\n")

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
