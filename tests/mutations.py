"""Damaged versions of a file: flipped bits, cuts, runs of bytes that are zeroed, repeated or replaced."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

_WORDS = (b"null", b"-1", b"1e999", b'"', b"{", b"[", b"NaN", b"\x00" * 8, b"\xff" * 8, b"\x7f\xff\xff\xff")


def mutations(content: bytes, count: int, seed: int = 0) -> Iterator[bytes]:
    """Yield ``count`` damaged versions of a file's content; none is equal to it."""
    draw = random.Random(seed)
    while count:
        damaged = bytearray(content)
        for _ in range(draw.choice((1, 1, 1, 8))):
            place = draw.randrange(max(len(damaged), 1))
            length = draw.choice((1, 1, 4, 16, 200))
            match draw.randrange(6):
                case 0 | 1:
                    if damaged:
                        damaged[place] ^= 1 << draw.randrange(8)
                case 2:
                    del damaged[place:]
                case 3:
                    damaged[place : place + length] = bytes(len(damaged[place : place + length]))
                case 4:
                    damaged[place:place] = damaged[place : place + length]
                case _:
                    word = draw.choice(_WORDS)
                    damaged[place : place + len(word)] = word
            if not damaged:
                break
        if bytes(damaged) != content:
            count -= 1
            yield bytes(damaged)


@dataclass
class Calls:
    """What a pickle calls when it is read."""

    function: Callable[..., object]
    arguments: tuple[Any, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return (self.function, self.arguments)
