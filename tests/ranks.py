"""The ranks of a process group as processes of this machine, which run a test's functions."""

import datetime
import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

_SECONDS = 300  # for one function, with the start of the processes


def _serve(jobs: Connection, backend: str, rank: int, count: int, store: str) -> None:
    """Runs the functions that come through `jobs`, and answers (True, result) or (False, traceback)."""
    device = "cpu" if backend == "gloo" else f"cuda:{rank}"
    if backend == "nccl":
        torch.cuda.set_device(rank)
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    torch.set_num_threads(1)
    dist.init_process_group(
        backend,
        init_method=f"file://{store}",
        rank=rank,
        world_size=count,
        timeout=datetime.timedelta(seconds=_SECONDS),
    )
    while (job := jobs.recv()) is not None:
        function, args = job
        torch.manual_seed(0)
        try:
            jobs.send((True, function(device, *args)))
        except BaseException:
            jobs.send((False, traceback.format_exc()))
    dist.destroy_process_group()


class Ranks:
    """`count` processes with a process group of `backend`; on nccl, rank i has GPU i."""

    def __init__(self, backend: str, count: int) -> None:
        self.backend, self.count = backend, count
        self._jobs: list[Connection] = []
        self._processes: list[Any] = []

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory()
        for rank in range(self.count):
            ours, theirs = context.Pipe()
            args = (theirs, self.backend, rank, self.count, os.path.join(self._folder.name, "store"))
            self._processes.append(context.Process(target=_serve, args=args, daemon=True))
            self._processes[-1].start()
            theirs.close()
            self._jobs.append(ours)

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """`function(device, *args)` on every rank; the results by rank.

        Raises:
            AssertionError: a rank raised, died or gave no answer in time; the text holds its traceback.
        """
        if not self._processes:
            self._start()
        deadline = time.monotonic() + _SECONDS
        for jobs in self._jobs:
            jobs.send((function, args))
        results = []
        for rank, jobs in enumerate(self._jobs):
            succeeded, result = False, f"no answer in {_SECONDS} s"
            if jobs.poll(max(deadline - time.monotonic(), 0)):
                try:
                    succeeded, result = jobs.recv()
                except EOFError:
                    result = "the process died"
            if not succeeded:  # the other ranks may wait in a collective
                self.stop(kill=True)
                raise AssertionError(f"rank {rank}: {result}")
            results.append(result)
        return results

    def stop(self, kill: bool = False) -> None:
        """Ends the processes; the next `run` starts new ones."""
        for process, jobs in zip(self._processes, self._jobs, strict=True):
            if kill:
                process.kill()
            else:
                jobs.send(None)
        for process in self._processes:
            process.join()
        self._jobs, self._processes = [], []
