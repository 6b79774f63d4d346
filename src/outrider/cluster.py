"""Work in parts, spread over the machines of a Ray cluster: a worker per GPU, or one per machine without any.

A worker that dies is started again with its part (Ray's own retries); a part whose results have come is done for good,
so whoever keeps results as they come can go on after a break. Knows nothing of what the work is. Ray pickles what goes
between the machines of the cluster; nothing from outside is unpickled.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Generic, TypeVar

from .errors import BadOption

Held = TypeVar("Held")
Part = TypeVar("Part")
Result = TypeVar("Result")

_RETRIES = 2
_PATIENCE = 5.0  # seconds
_NOBODY = (
    "There is no Ray cluster at {address}: start one with 'ray start --head' and join it from the other machines with "
    "'ray start --address=HOST:PORT'."
)


class Cluster(Generic[Held]):
    """Workers on a cluster that runs already. Use it as a context.

    Args:
        address: of the cluster: "auto" for the one of this machine, HOST:PORT, or ray://HOST:PORT.
        make: makes what a worker holds, such as a loaded model; it is called on the worker's machine.

    Attributes:
        workers: how many there are.

    Raises:
        BadOption: Ray is not installed, there is no such cluster, or no machine in it can work.
    """

    def __init__(self, address: str, make: Callable[[], Held]) -> None:
        self._ray = _connected(address)
        self._actors = [actor for node in self._ray.nodes() if node["Alive"] for actor in self._on(node, make)]
        self.workers = len(self._actors)
        if not self._actors:
            self._ray.shutdown()
            raise BadOption(f"No machine of the Ray cluster at {address} has a free processor: add one to it.")

    def __enter__(self) -> Cluster[Held]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let the workers go; the cluster stays."""
        for actor in self._actors:
            self._ray.kill(actor)
        self._ray.shutdown()

    def each(self, call: Callable[[Held], Result]) -> list[Result]:
        """What every worker says to this.

        Raises:
            Exception: what a worker raises; `BadOption` where it could not start.
        """
        found: list[Result] = self._got([actor.call.remote(call) for actor in self._actors])
        return found

    def spread(self, parts: Sequence[Part], call: Callable[[Held, Part], Result]) -> Iterator[Result]:
        """The results of all parts, in the order in which they come.

        Raises:
            Exception: what a worker raises; the other parts under way are given up.
        """
        waiting, idle = list(parts), list(self._actors)
        running: dict[Any, Any] = {}  # reference to a result -> who works on it
        while waiting or running:
            while waiting and idle:
                actor = idle.pop()
                running[actor.call.remote(call, waiting.pop(0))] = actor
            (done, *_), _ = self._ray.wait(list(running))
            idle.append(running.pop(done))
            yield self._got(done)

    def _got(self, references: Any) -> Any:
        try:
            return self._ray.get(references)
        except self._ray.exceptions.RayActorError as error:
            reason = str(error).strip().splitlines()[-1] if str(error).strip() else "no reason is known"
            raise BadOption(f"A worker of the Ray cluster could not start or died ({reason}): look into it.") from error

    def _on(self, node: dict[str, Any], make: Callable[[], Held]) -> list[Any]:
        """The workers of a machine."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        gpus, cores = (int(node["Resources"].get(name, 0)) for name in ("GPU", "CPU"))
        if not cores:
            return []
        seat = self._ray.remote(_Seat).options(
            num_cpus=1,
            num_gpus=1 if gpus else 0,
            max_restarts=_RETRIES,
            max_task_retries=_RETRIES,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
        )
        return [seat.remote(make, max(1, cores // max(1, gpus))) for _ in range(max(1, gpus))]


class _Seat:
    """A worker: what it holds, and the threads that it computes with."""

    def __init__(self, make: Callable[[], Any], threads: int) -> None:
        self._held = make()
        import torch

        torch.set_num_threads(threads)  # Ray allows one; loading takes all that the machine has

    def call(self, function: Callable[..., Any], *given: Any) -> Any:
        """Apply a function to what is held."""
        return function(self._held, *given)


def _connected(address: str) -> Any:
    """Ray, with a connection to that cluster."""
    try:
        import ray
    except ImportError as error:
        raise BadOption("--ray takes a package that is not installed: pip install 'outrider[ray]'.") from error
    _check_reachable(address)
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # as Ray will do by itself one day, it says
    try:
        ray.init(address=address, logging_level="ERROR", log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError, AssertionError) as error:
        raise BadOption(_NOBODY.format(address=address)) from error
    return ray


def check_cluster(address: str) -> None:
    """That there is such a cluster, for those who have other work to do before they use it.

    Raises:
        BadOption: see `Cluster`.
    """
    _connected(address).shutdown()


def _check_reachable(address: str) -> None:
    """Ray itself tries for minutes.

    Raises:
        BadOption: nobody listens there.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), timeout=_PATIENCE).close()
    except OSError as error:
        raise BadOption(_NOBODY.format(address=address)) from error


def parts_of(items: Sequence[Part], workers: int, most: int) -> list[Sequence[Part]]:
    """Items in parts of equal size, enough of them for every worker and none with more than `most`."""
    size = max(1, min(most, -(-len(items) // max(1, workers))))
    return [items[first : first + size] for first in range(0, len(items), size)]
