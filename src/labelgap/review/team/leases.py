"""Leases of candidates, so that two people at one review are not asked the same question at the same time.

A page that shows candidates holds a lease of them. While it is open its polls renew the lease; closed, asleep or
disconnected, it expires. Leases are in the memory of the server: after a restart, open pages ask for theirs again.

A lease decides which candidates a list of open ones shows, and nothing else. A decision without a lease is stored as
any other, since it may have waited in a browser; the store guards against contradictions.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

LEASE_SECONDS: Final = 60.0
"""From the last renewal; a visible page polls every 3 seconds, a hidden one every 15."""
UNCONFIRMED_SECONDS: Final = 20.0
"""From the request of a page to its first poll: a client that only loads pages holds nothing for long."""
_MAX_OF_BROWSER: Final = 4000
"""Candidates that one browser holds, two of the largest pages; beyond that its oldest page loses its lease."""
_MAX_LEASES: Final = 1000
"""Pages that hold a lease; beyond that the one whose renewal is longest ago loses it."""


class Holder(NamedTuple):
    """A page that is open in a browser.

    Attributes:
        browser: id of the browser; its pages belong to one person and never exclude each other.
        page: id of the page.
    """

    browser: str
    page: str


@dataclass(frozen=True, eq=False)
class _Lease:
    numbers: NDArray[np.int64]
    place: int | None
    expires: float
    confirmed: bool = False


class Leases:
    """Which candidates the open pages show. Threads may share it.

    Args:
        clock: seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._leases: dict[Holder, _Lease] = {}  # in the order of their last renewal
        self._reviewers: dict[str, str] = {}  # by browser, in the same order

    def take(
        self, holder: Holder, numbers: NDArray[np.int64], limit: int | None = None, *, place: int | None = None
    ) -> NDArray[np.int64]:
        """Lease the first ``limit`` of ``numbers`` that no other browser holds, and return them.

        They replace what the page held before. Choosing and leasing are one step: two people who ask at the same
        moment are given different candidates.

        Args:
            holder: the page.
            numbers: candidates in the order in which they are asked about.
            limit: None for all.
            place: number of the class that the page is about; see ``people``.
        """
        with self._lock:
            self._expire()
            self._leases.pop(holder, None)
            others = self._of_others(holder.browser)
            limit = len(numbers) if limit is None else limit
            first = numbers[: limit + len(others)]  # at most this many are needed to find as many as the limit
            granted = first[~np.isin(first, others)][:limit]
            self._leases[holder] = _Lease(granted, place, self._clock() + UNCONFIRMED_SECONDS)
            self._limit(holder)
            return granted

    def renew(self, holder: Holder, reviewer: str) -> bool:
        """Extend the lease of a page that is open; False when it has none, and has to take one again."""
        with self._lock:
            self._expire()
            self._set_reviewer(holder.browser, reviewer)
            lease = self._leases.pop(holder, None)
            if lease is None:
                return False
            self._leases[holder] = _Lease(lease.numbers, lease.place, self._clock() + LEASE_SECONDS, True)
            return True

    def release(self, holder: Holder) -> None:
        """End the lease of a page that was left."""
        with self._lock:
            self._leases.pop(holder, None)

    def held_by_others(self, browser: str) -> NDArray[np.int64]:
        """Return the candidates that other browsers hold."""
        with self._lock:
            self._expire()
            return self._of_others(browser)

    def people(self, browser: str, place: int) -> list[str]:
        """Return who else has a page about a class open, by name; a browser is named by its first poll."""
        with self._lock:
            self._expire()
            here = {
                holder.browser for holder, lease in self._leases.items() if lease.place == place and lease.confirmed
            }
            return sorted({self._reviewers[other] for other in here - {browser} if other in self._reviewers})

    def reviewer(self, browser: str) -> str | None:
        """Return the name that a browser was last used with; None before its first poll or decision."""
        with self._lock:
            return self._reviewers.get(browser)

    def set_reviewer(self, browser: str, reviewer: str) -> None:
        """Remember the name that a browser is used with."""
        with self._lock:
            self._set_reviewer(browser, reviewer)

    def _expire(self) -> None:
        now = self._clock()
        for holder in [holder for holder, lease in self._leases.items() if lease.expires <= now]:
            del self._leases[holder]

    def _set_reviewer(self, browser: str, reviewer: str) -> None:
        self._reviewers.pop(browser, None)
        self._reviewers[browser] = reviewer
        while len(self._reviewers) > _MAX_LEASES:
            del self._reviewers[next(iter(self._reviewers))]

    def _of_others(self, browser: str) -> NDArray[np.int64]:
        held = [lease.numbers for holder, lease in self._leases.items() if holder.browser != browser]
        return np.concatenate(held) if held else np.empty(0, dtype=np.int64)

    def _limit(self, newest: Holder) -> None:
        """Drop the oldest leases of a browser that holds too much, and the oldest of all when there are too many."""
        own = [holder for holder in self._leases if holder.browser == newest.browser]
        while sum(len(self._leases[holder].numbers) for holder in own) > _MAX_OF_BROWSER and len(own) > 1:
            del self._leases[own.pop(0)]
        while len(self._leases) > _MAX_LEASES:
            del self._leases[next(iter(self._leases))]
