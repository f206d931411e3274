from __future__ import annotations

import hashlib
import random

import numpy as np
import torch

from labelgap.core.seeds import derive_seed, numpy_generator, seed_everything


def test_a_derived_seed_is_the_same_number_for_ever_and_another_for_every_purpose() -> None:
    digest = hashlib.sha256(b"0\x1forder\x1f3").digest()
    assert derive_seed(0, "order", 3) == int.from_bytes(digest[:8], "big") // 2 == 2243224229351528686
    assert derive_seed(1200) == 760191875035802739
    purposes = ("order", "drop", "a", "b", "ab")
    seeds = [derive_seed(seed, purpose, epoch) for seed in range(-2, 5) for purpose in purposes for epoch in range(12)]
    assert len(set(seeds)) == len(seeds) and all(0 <= seed < 2**63 for seed in seeds)
    assert derive_seed(0, "a", "b") != derive_seed(0, "ab")
    assert derive_seed(np.int64(7), "order") == derive_seed(7, "order")  # type: ignore[arg-type]


def test_a_generator_does_not_depend_on_what_was_drawn_before() -> None:
    first = numpy_generator(3, "drop").random(4)
    numpy_generator(3, "order").random(100)
    assert (numpy_generator(3, "drop").random(4) == first).all()
    assert not (numpy_generator(4, "drop").random(4) == first).any()


def test_seeding_everything_repeats_python_numpy_and_torch() -> None:
    def draws() -> tuple[float, float, float]:
        return random.random(), float(np.random.random()), float(torch.rand(1))

    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        seed_everything(5)
        first = draws()
        seed_everything(5)
        assert draws() == first
        seed_everything(derive_seed(5, "worker", 1))
        assert all(a != b for a, b in zip(draws(), first, strict=True))
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
