"""The Triton kernels compile for the cards that they are for, and fit them; no GPU is needed to know."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# Most shared memory that a program of a card may have, in bytes.
SHARED = {"90": 227 << 10, "120": 99 << 10}


@pytest.fixture(scope="module", params=SHARED)
def card(request):
    """A card's compute capability, and what each kernel takes of it."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, Path(__file__).with_name("compile_kernels.py"), request.param]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    return request.param, json.loads(done.stdout)


def test_every_kernel_compiles(card):
    assert len(card[1]) == 10


def test_two_programs_of_each_kernel_fit_a_processor(card):
    capability, kernels = card
    reserved = 1024  # by the card, a program
    assert max(kernel["shared"] for kernel in kernels.values()) <= SHARED[capability] // 2 - reserved


def test_spills_stay_few(card):
    """Bytes of stack a thread: a tile's sums and rows take all registers of the decode kernel's four warps."""
    stacks = {name: kernel["stack"] for name, kernel in card[1].items()}
    assert max(stacks.pop("partial, 8 heads"), stacks.pop("partial, 128 heads")) <= 160
    assert not any(stacks.values())
