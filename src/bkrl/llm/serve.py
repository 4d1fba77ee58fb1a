"""The rules annotator behind an endpoint of its own, to try everything that asks a language model without having one.

    python -m bkrl.llm.serve --port 8000
    OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none bkrl train-rs --alg ellm --suggester openai:rules ...

It speaks chat completions on the loopback interface alone, and knows what `--llm rules` knows.
"""

import argparse
import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from bkrl.llm.protocol import Fault
from bkrl.llm.rules import answer


def completion(document: Any) -> dict[str, Any]:
    """The reply to the body of a request; Fault where it cannot be answered."""
    try:
        turns = [str(message["content"]) for message in document["messages"]]
        text = answer(turns)
    except (TypeError, KeyError, IndexError):
        raise Fault("item", "bad request", "The body needs messages, each with a content.") from None
    sizes = sum(map(len, turns)) // 4, len(text) // 4
    return {
        "id": "chatcmpl-rules",
        "object": "chat.completion",
        "created": 0,
        "model": str(document.get("model", "rules")),
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}],
        "usage": {"prompt_tokens": sizes[0], "completion_tokens": sizes[1], "total_tokens": sum(sizes)},
    }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    latency = 0.0

    def do_POST(self) -> None:
        """One completion."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        time.sleep(self.latency)
        try:
            self._say(200, completion(json.loads(body)))
        except (Fault, ValueError) as problem:
            self._say(400, {"error": {"message": str(problem), "type": "invalid_request_error"}})

    def _say(self, status: int, document: dict[str, Any]) -> None:
        said = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: there are thousands."""


class Server(ThreadingHTTPServer):
    """Answers on 127.0.0.1, each request after `latency` seconds; `port` 0 takes a free one."""

    request_queue_size = 512
    daemon_threads = True

    def __init__(self, port: int = 0, latency: float = 0.0) -> None:
        super().__init__(("127.0.0.1", port), type("Handler", (_Handler,), {"latency": latency}))

    @property
    def url(self) -> str:
        """What OPENAI_BASE_URL is set to."""
        return f"http://127.0.0.1:{self.server_port}/v1"


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(prog="python -m bkrl.llm.serve", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", type=int, default=8000, help="0: a free one  (default: 8000)")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before each answer  (default: 0)")
    chosen = parser.parse_args()
    try:
        server = Server(chosen.port, chosen.latency)
    except (OSError, OverflowError) as error:
        sys.exit(f"Port {chosen.port} cannot be opened ({error}); choose another with --port.")
    sys.stdout.write(f"{server.url}\n")
    sys.stdout.flush()
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()


if __name__ == "__main__":
    main()
