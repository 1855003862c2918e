"""Minutes of mixed requests to one server: seeded lengths, shared prefixes, aborts, many at once.

What the clients saw stands beside what the rank exported meanwhile, for tests to compare.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import random
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from glm5_mla.bench.served import prompts

if TYPE_CHECKING:
    from glm5_mla.bench.served import Server

PREFIXES = 6
LONGEST_OUTPUT = 64
ABORTED_SHARE = 0.15
SAMPLED_SHARE = 0.1


@dataclass
class Mixed:
    """What a run of mixed requests came to."""

    requests: int = 0
    aborted: int = 0
    cached_tokens: int = 0
    decode_tokens: int = 0
    """Output tokens of all requests, less each one's first."""
    exported_tokens: int = 0
    readings: int = 0
    """Of the rank's file, while the requests ran; one that is not whole raises and is counted below."""
    faults: list[str] = field(default_factory=list)
    """Requests that failed or gave another number of tokens, and readings that failed or went backwards."""
    samples: list[tuple[list[int], int]] = field(default_factory=list)
    """Some of the prompts and output lengths, to be asked again."""


def run(server: Server, seconds: float, clients: int, longest: int, vocabulary: int, seed: int = 0) -> Mixed:
    """Send requests of 1 to `longest` prompt tokens from `clients` threads for so long; waits for the last answer."""
    mixed = Mixed()
    lock = threading.Lock()
    over = threading.Event()
    before = server.figures().decode_tokens
    pool = concurrent.futures.ThreadPoolExecutor(clients)
    running = [
        pool.submit(_client, server, mixed, lock, over, longest, vocabulary, f"{seed}-{number}")
        for number in range(clients)
    ]
    deadline = time.monotonic() + seconds
    last = before
    while time.monotonic() < deadline or not all(client.done() for client in running):
        if time.monotonic() >= deadline:
            over.set()
        time.sleep(0.02)
        try:
            tokens = server.figures().decode_tokens
        except Exception as error:
            with lock:
                mixed.faults.append(f"reading the rank's file: {error!r}")
            continue
        mixed.readings += 1
        if tokens < last:
            with lock:
                mixed.faults.append(f"exported tokens went from {last} back to {tokens}")
        last = tokens
    for client in running:
        client.result()  # raises what it raised
    pool.shutdown()
    idle_by = time.monotonic() + 30
    while server.figures().running_requests and time.monotonic() < idle_by:
        time.sleep(0.1)  # the scheduler writes the last steps when it goes idle
    mixed.exported_tokens = server.figures().decode_tokens - before
    return mixed


def _client(
    server: Server, mixed: Mixed, lock: threading.Lock, over: threading.Event, longest: int, vocabulary: int, name: str
) -> None:
    """Ask one request after another until it is over; the sequence depends on `name` alone."""
    random_ = random.Random(name)
    prefixes = prompts(PREFIXES, longest // 2, vocabulary)
    number = 0
    while not over.is_set():
        number += 1
        prompt = random_.choice(prefixes)[: random_.choice((0, len(prefixes[0]) // 3, len(prefixes[0])))]
        prompt = prompt + random_.choices(range(2, vocabulary), k=random_.randint(1, longest - len(prompt)))
        wanted = random_.randint(1, LONGEST_OUTPUT)
        aborts = random_.random() < ABORTED_SHARE
        sampled = random_.random() < SAMPLED_SHARE
        request = f"{name}-{number}"
        body = {
            "rid": request,
            "input_ids": prompt,
            "sampling_params": {"max_new_tokens": wanted, "ignore_eos": True, "temperature": 0},
        }
        timer = threading.Timer(random_.uniform(0, 1), _abort, (server, request)) if aborts else None
        if timer:
            timer.start()
        try:
            meta = json.loads(server.post("/generate", body))["meta_info"]
        except Exception as error:
            with lock:
                mixed.faults.append(f"{request} ({len(prompt)} tokens, {'aborted' if aborts else 'whole'}): {error!r}")
            continue
        finally:
            if timer:
                timer.join()
        ended = meta["finish_reason"]["type"]
        with lock:
            mixed.requests += 1
            mixed.aborted += ended == "abort"
            mixed.cached_tokens += meta.get("cached_tokens", 0)  # absent when aborted while it waited
            mixed.decode_tokens += max(0, meta["completion_tokens"] - 1)
            if ended != ("abort" if aborts else "length") and not (aborts and ended == "length"):
                mixed.faults.append(f"{request} ended by {ended}")
            if ended == "length" and meta["completion_tokens"] != wanted:
                mixed.faults.append(f"{request} gave {meta['completion_tokens']} of {wanted} tokens")
            if sampled and ended == "length":
                mixed.samples.append((prompt, wanted))


def _abort(server: Server, request: str) -> None:
    with contextlib.suppress(Exception):  # it may be over
        server.post("/abort_request", {"rid": request})
