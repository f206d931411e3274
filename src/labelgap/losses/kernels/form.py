"""What a loss tells about itself, so that a kernel can compute it. Nothing here needs Triton."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class KernelForm:
    """What a kernel needs to know about a loss. Tensors are those of the loss itself.

    Attributes:
        family: the name of a function of ``costs``.
        options: of the family; other options are another compiled kernel.
        weights: of a mixture, u + v, u and w of unknown, absent, present and large entries.
        epoch: the number of the epoch, int64; None where the cost does not depend on it.
        share: of the unknown entries that are large times epochs before this one, as ``exact_percents`` gives it.
        wanted: how many unknown entries are large, where no share says so.
    """

    family: str
    options: tuple[float | Tensor, ...] = ()
    weights: tuple[float | Tensor, ...] = ()
    epoch: Tensor | None = None
    share: Tensor | None = None
    wanted: int | None = None

    @property
    def is_plain(self) -> bool:
        """Whether no option has one value per head."""
        return not any(isinstance(value, Tensor) for value in (*self.options, *self.weights)) and (
            self.share is None or self.share.ndim == 1
        )

    @property
    def selects(self) -> bool:
        """Whether some of the losses count as large."""
        return self.share is not None or self.wanted is not None
