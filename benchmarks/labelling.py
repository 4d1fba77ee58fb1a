"""What asking costs: how near to the ideal rate, how much processor time a request, how quick the store is.

    python benchmarks/labelling.py [--json] [--quick]

A server of its own process answers every request after 500 ms. `AskSession` asks it 10,240 different questions, as many
as 5,000 pairs in both orders are (a prompt of 3 kB, a JSON schema), at most 64 at a time, every reply kept in a
store on disk.

* `throughput_fraction`: requests a second from the first send to the last reply, divided by the ideal, which is
  concurrency / latency = 64 / 0.5 s = 128 a second. Nothing is taken out: the first request, which is sent alone, the
  slow start (20 at first), the tail and every commit count. Only the import of the SDK comes before.
* `cpu_ms_per_request`: processor time (user and system) of the client process in that time, store included.
  `bare_sdk_cpu_ms_per_request` and `bare_sdk_throughput_fraction`: 1,280 of the questions with nothing but the SDK and
  a semaphore, all 64 at once from the start, for comparison: what the machine has to give while others work on it.
* `store_reads_per_s`: replies read from that store by key, in random order, from one thread; the best of 20 rounds of
  5,000 reads, each short enough to be done before the scheduler gives the core to somebody else.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from command_line import parser_of, show

CONCURRENCY = 64
LATENCY = 0.5
REQUESTS = 160 * CONCURRENCY
READS = 5000
SCHEMA = {
    "type": "object",
    "properties": {"thoughts": {"type": "string"}, "choice": {"type": "string", "enum": ["A", "B", "tie"]}},
    "required": ["thoughts", "choice"],
    "additionalProperties": False,
}
ANSWER = json.dumps(
    {
        "id": "chatcmpl-0",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {
                    "role": "assistant",
                    "content": json.dumps({"thoughts": "The first one comes nearer to a key. " * 4, "choice": "A"}),
                },
            }
        ],
        "usage": {"prompt_tokens": 800, "completion_tokens": 50, "total_tokens": 850},
    }
).encode()


class Server(asyncio.Protocol):
    """Answers each request of a connection after LATENCY seconds, as cheaply as Python can."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport, self.data = transport, b""

    def data_received(self, data: bytes) -> None:
        self.data += data
        while b"\r\n\r\n" in self.data:
            head, _, rest = self.data.partition(b"\r\n\r\n")
            length = next(int(h[15:]) for h in head.lower().split(b"\r\n") if h.startswith(b"content-length:"))
            if len(rest) < length:
                return
            self.data = rest[length:]
            asyncio.get_running_loop().call_later(LATENCY, self.answer)

    def answer(self) -> None:
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(ANSWER)}\r\n\r\n"
        if not self.transport.is_closing():
            self.transport.write(head.encode() + ANSWER)


async def serve() -> None:
    """Serve on a free port, whose number is printed, until the process is ended."""
    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def running_server() -> Iterator[None]:
    """A server in another process, and the environment pointing at it."""
    process = subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    os.environ["OPENAI_BASE_URL"] = f"http://127.0.0.1:{process.stdout.readline().strip()}/v1"
    os.environ["OPENAI_API_KEY"] = "none"
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def questions(count: int) -> list[tuple[dict[str, str], dict[str, str]]]:
    """`count` different conversations, each of a system turn that is always the same and a pair."""
    rng = random.Random(0)
    words = ("a red ball", "a locked door", "a grey key", "a wall", "two steps forward", "one step left", "a blue box")
    env = {
        "role": "system",
        "content": "# World\n" + "An agent walks through rooms with doors, keys and balls. " * 20,
    }

    def pair(number: int) -> dict[str, str]:
        segments = "\n".join(f"You see {rng.choice(words)} {rng.choice(words)}." for _ in range(36))
        return {"role": "user", "content": f"Pair {number}\n{segments}\nWhich segment is better?"}

    return [(env, pair(number)) for number in range(count)]


def label(folder: Path, count: int) -> tuple[float, float]:
    """Ask `count` questions through an `AskSession` and a store: seconds, processor seconds."""
    from bkrl.llm import open_backend
    from bkrl.llm.policy import AskPolicy
    from bkrl.llm.protocol import Message, Request
    from bkrl.llm.session import AskSession
    from bkrl.llm.store import Store

    def requests(count: int, sample: int) -> list[Request]:
        turns = [tuple(Message(turn["role"], turn["content"]) for turn in turns) for turns in questions(count)]
        return [Request(messages, SCHEMA, 0.5, 2048, sample=sample) for messages in turns]

    policy = AskPolicy(max_concurrency=CONCURRENCY)
    with Store(folder) as store, AskSession(open_backend("openai:m"), store, policy) as session:
        session.ask(requests(1, sample=1), "warm up")
        asked = requests(count, sample=0)
        started, cpu = time.perf_counter(), time.process_time()
        exchanges = session.ask(asked, "label")
        took, cpu = time.perf_counter() - started, time.process_time() - cpu
    assert all(exchange.status == "ok" and not exchange.cached for exchange in exchanges)
    return took, cpu


def bare_sdk(count: int) -> tuple[float, float]:
    """The same questions with the SDK and a semaphore alone: seconds, processor seconds."""
    import openai

    async def run() -> tuple[float, float]:
        schema = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
        places = asyncio.Semaphore(CONCURRENCY)
        async with openai.AsyncOpenAI(max_retries=0) as client:

            async def ask(messages: object) -> None:
                async with places:
                    await client.chat.completions.create(
                        model="m", messages=messages, temperature=0.5, max_tokens=2048, response_format=schema
                    )  # type: ignore[call-overload]

            asked = questions(count)
            await ask(asked[0])
            started, cpu = time.perf_counter(), time.process_time()
            await asyncio.gather(*(ask(messages) for messages in asked))
            return time.perf_counter() - started, time.process_time() - cpu

    return asyncio.run(run())


def reads_per_second(folder: Path, reads: int) -> float:
    """Replies read by key, in random order."""
    from bkrl.llm.store import Store

    with Store(folder) as store:
        keys = [key for (key,) in store.execute("select key from reply order by key")]
        wanted = random.Random(0).choices(keys, k=reads)
        started = time.perf_counter()
        for key in wanted:
            store.get(key)
        return reads / (time.perf_counter() - started)


def measure(count: int) -> dict[str, float]:
    """All figures."""
    ideal, few = CONCURRENCY / LATENCY, count // 8
    with tempfile.TemporaryDirectory() as name, running_server():
        folder = Path(name)
        took, cpu = label(folder, count)
        bare_took, bare_cpu = bare_sdk(few)
        reads = max(reads_per_second(folder, READS) for _ in range(20))
    return {
        "throughput_fraction": count / took / ideal,
        "cpu_ms_per_request": 1000 * cpu / count,
        "store_reads_per_s": reads,
        "requests": count,
        "seconds": took,
        "bare_sdk_throughput_fraction": few / bare_took / ideal,
        "bare_sdk_cpu_ms_per_request": 1000 * bare_cpu / few,
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--serve", action="store_true", help="be the server")
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve())
        return
    figures = measure(2 * CONCURRENCY if options.quick else REQUESTS)
    show(figures, options.json)


if __name__ == "__main__":
    main()
