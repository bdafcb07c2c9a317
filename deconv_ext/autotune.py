"""Plans chosen by time, for those who ask for it."""

from types import TracebackType

import torch


class autotune:
    """From here on, or inside a ``with`` block, the first call of each problem times plans and keeps the quickest.

    By default a plan is chosen by arithmetic, which knows the GPU by a few constants and errs by some percent in the
    mean. This is for this package what ``torch.backends.cudnn.benchmark`` is for cuDNN. A problem is everything that a
    plan depends on: direction (each gradient is one), sizes, strides, element type, whether TF32 is allowed, GPU. It is
    tuned once a process, on the call's own operands, on its stream, with the L2 cache overwritten before each run;
    :func:`explain` says what was timed. The switch is the process's: the backward runs in other threads.

    Args:
        candidates: how many plans are timed, those with the least estimates, the arithmetic's own among them; 0
            returns to arithmetic (plans found before come back when it is switched on again); default 16.

    Raises:
        ValueError: candidates is no integer from 0 to 100,000.

    The result of a call is as right and, within a process, as repeatable with any plan; but plans add in different
    orders, so two processes that chose differently differ by rounding. A call that tunes waits for the GPU, with 16
    candidates 50 to 130 times the operation's time, and takes twice the L2 cache's size in memory besides the plans'
    workspaces. While a CUDA graph is captured nothing is tuned: a plan that is not known yet comes by arithmetic.

    Example:
        >>> x, weight = torch.ones(1, 4, 5, 5), torch.ones(4, 3, 2, 2)
        >>> with deconv_ext.autotune():  # on a GPU; on the CPU there is nothing to choose
        ...     deconv_ext.conv_transpose2d(x, weight, stride=2).shape
        torch.Size([1, 3, 10, 10])
    """

    def __init__(self, candidates: int = 16) -> None:
        if isinstance(candidates, bool) or not isinstance(candidates, int) or not 0 <= candidates <= _MOST:
            raise ValueError(f"candidates must be an integer from 0 (off) to {_MOST:,}, but got {candidates!r}")
        self._before: int = torch.ops.deconv.autotune(candidates)

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        torch.ops.deconv.autotune(self._before)


_MOST = 100_000
