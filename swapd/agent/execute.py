"""Carries out the core's commands: one ``match``, each command to its room.

What a command says is narrated as one log line (see ``narrate``). Nothing is decided here.
"""

import logging
from collections.abc import Callable
from typing import Protocol, assert_never

import structlog

from swapd.agent.narrate import narrate
from swapd.agent.weights import WeightOrder
from swapd.core.commands import (
    Answer,
    CancelFetch,
    Check,
    Command,
    CoolingDown,
    Cut,
    DriverChanged,
    Evicted,
    EvictionBlocked,
    FetchEnded,
    FetchWeights,
    FootprintMeasured,
    GpuChanged,
    Grant,
    KeepWeights,
    Kill,
    LoadFinished,
    NodeLoadChanged,
    Note,
    Placed,
    PromotionAdvised,
    ReadMemory,
    RefetchWeights,
    Reject,
    ReleaseConfirmed,
    StaleFact,
    Start,
    Stop,
    StopWarming,
    ThrashPinChanged,
    Transitioned,
    VerdictChanged,
    VerifyWeights,
    WarmWeights,
)
from swapd.core.ids import InstanceId, ModelName
from swapd.engines.base import Binding, EnginePlan

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger("swapd")


class Gate(Protocol):
    """Where requests wait for their model."""

    def granted(self, command: Grant) -> None:
        """Forward the request."""

    def rejected(self, command: Reject) -> None:
        """Answer the request with an error."""

    def cut(self, command: Cut) -> None:
        """Break off the request visibly."""


class Runner(Protocol):
    """Where engines run."""

    def start(self, instance: InstanceId, model: ModelName, plan_for_port: Callable[[int], EnginePlan]) -> None:
        """Start an engine."""

    def check(self, instance: InstanceId) -> None:
        """Find out whether it answers."""

    def stop(self, instance: InstanceId) -> None:
        """Ask it to leave."""

    def kill(self, instance: InstanceId) -> None:
        """Kill its processes."""


class Planner(Protocol):
    """Knows how each model is run."""

    def plan(self, name: ModelName, *, port: int, devices: tuple[str, ...], binding: Binding) -> EnginePlan:
        """Return how to run one instance on a port, on devices and near them."""


class Cache(Protocol):
    """Where the weights of models that come from elsewhere are kept."""

    def carry_out(self, order: WeightOrder) -> None:
        """Hand an order to the cache."""


class Executor:
    """Hands each command to its room."""

    def __init__(
        self,
        *,
        gate: Gate,
        instances: Runner,
        planner: Planner,
        cache: Cache,
        answered: Callable[[Answer], None],
        noted: Callable[[Note], None],
        started: Callable[[InstanceId], None],
        read_memory: Callable[[], None],
    ) -> None:
        """Wire the rooms; ``started`` is told of each new instance id before its engine starts."""
        self._gate = gate
        self._instances = instances
        self._planner = planner
        self._cache = cache
        self._answered = answered
        self._noted = noted
        self._started = started
        self._read_memory = read_memory
        self._verbose = _log.is_enabled_for(logging.DEBUG)

    def __call__(self, command: Command) -> None:
        """Carry out one command."""
        # an ordinary grant comes with every request, and the log would most often drop it
        if self._verbose or type(command) is not Grant or command.cold_start:
            narrate(command)
        match command:
            case Grant():
                self._gate.granted(command)
            case Reject():
                self._gate.rejected(command)
            case Cut():
                self._gate.cut(command)
            case Start():
                self._start(command)
            case Check():
                self._instances.check(command.instance)
            case Stop():
                self._instances.stop(command.instance)
            case Kill():
                self._instances.kill(command.instance)
            case ReadMemory():
                self._read_memory()
            case (
                KeepWeights()
                | FetchWeights()
                | RefetchWeights()
                | CancelFetch()
                | WarmWeights()
                | StopWarming()
                | VerifyWeights()
            ):
                self._cache.carry_out(command)
            case Answer():
                self._answered(command)
            case (
                Transitioned()
                | LoadFinished()
                | FetchEnded()
                | Evicted()
                | EvictionBlocked()
                | VerdictChanged()
                | NodeLoadChanged()
                | ThrashPinChanged()
                | PromotionAdvised()
                | CoolingDown()
                | StaleFact()
                | Placed()
                | FootprintMeasured()
                | GpuChanged()
                | DriverChanged()
                | ReleaseConfirmed()
            ):
                self._noted(command)
            case _:
                assert_never(command)

    def _start(self, order: Start) -> None:
        self._started(order.instance)
        name, near = order.spec.name, Binding(cpus=order.cpus, numa=order.numa)
        self._instances.start(
            order.instance, name, lambda port: self._planner.plan(name, port=port, devices=order.devices, binding=near)
        )
