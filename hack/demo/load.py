"""A short load of real generations, run in a pod: `python3 load.py URL REQUESTS TOKENS`.

Asks for TOKENS tokens REQUESTS times, one after another, and prints one JSON object: what the server returned (token
ids, so that runs can be compared exactly) and how long it took. Standard library only; REQUESTS and TOKENS bound it.
"""

import json
import sys
import time
import urllib.request

PROMPTS = (
    "Why is the sky blue?",
    "List three uses of a paperclip.",
    "Translate to French: the cluster is up.",
    "What is the capital of Iceland, and how many people live there?",
)


def generate(url: str, prompt: str, tokens: int) -> list[int]:
    """Token ids of one greedy generation of exactly `tokens` tokens."""
    body = {
        "text": prompt,
        "sampling_params": {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True},
    }
    request = urllib.request.Request(f"{url}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        return list(json.load(answer)["output_ids"])


def main(url: str, requests: int, tokens: int) -> None:
    """Run the load and print its outcome."""
    begin = time.time()
    outputs = [generate(url, PROMPTS[number % len(PROMPTS)], tokens) for number in range(requests)]
    outcome = {
        "requests": requests,
        "output_tokens": sum(len(output) for output in outputs),
        "seconds": time.time() - begin,
        "outputs": outputs,
    }
    print(json.dumps(outcome))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
