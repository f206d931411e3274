from __future__ import annotations

import hashlib

import numpy as np

from labelgap.core.seeds import derive_seed, numpy_generator


def test_a_derived_seed_is_the_same_number_for_ever_and_another_for_every_purpose() -> None:
    digest = hashlib.sha256(b"0\x1forder\x1f3").digest()
    assert derive_seed(0, "order", 3) == int.from_bytes(digest[:8], "big") // 2 == 2243224229351528686
    assert derive_seed(1200) == 760191875035802739
    purposes = ("order", "drop", "a", "b", "ab")
    seeds = [derive_seed(seed, purpose, epoch) for seed in range(-2, 5) for purpose in purposes for epoch in range(12)]
    assert len(set(seeds)) == len(seeds) and all(0 <= seed < 2**63 for seed in seeds)
    assert derive_seed(0, "a", "b") != derive_seed(0, "ab")
    assert (numpy_generator(3, "drop").random(4) == numpy_generator(3, "drop").random(4)).all()
    assert derive_seed(np.int64(7), "order") == derive_seed(7, "order")  # type: ignore[arg-type]
