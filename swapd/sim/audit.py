"""Holds every booking, start and release against what is really in the GPUs; an observer of the virtual node.

Rules that hold here:

* The core is to blame for what it could know: the devices as it was told of them, the readings it has heard, and the
  size of a model as configured or as it said it had measured. What others took since the last reading is no fault, and
  where others gave memory back, or a GPU could not be used for a while, nobody can tell whose memory came back.
* Truth comes from the driver and from the facts and orders that pass by; the core's accounts are never read.
"""

from collections.abc import Iterator
from typing import NoReturn

from swapd.core.catalog import Catalog
from swapd.core.commands import Command, Evicted, FootprintMeasured, Start, Transitioned
from swapd.core.events import Event, GpuMemoryRead
from swapd.core.ids import Bytes, GpuSet, InstanceId, Instant, gpu_indices
from swapd.core.reasons import State
from swapd.core.topology import DriverState, NodeTopology
from swapd.core.view import NodeView
from swapd.sim.driver import MEMORY, VirtualDriver
from swapd.sim.known import Known, Life

#: what may be left of an engine when its memory counts as free: this, or an eighth of what it counts for
SLACK = 512 << 20

_SERVING = (State.READY, State.DRAINING)
_UNSETTLED = (State.LOADING, State.UNLOADING, State.LEAKED)


class AuditError(AssertionError):
    """The core has promised, started or freed what the truth does not bear out."""


class Audit:
    """One driver under watch."""

    def __init__(self, driver: VirtualDriver, topology: NodeTopology, catalog: Catalog) -> None:
        self.driver = driver
        self.known = Known(topology, catalog)

    def __call__(self, event: Event, commands: tuple[Command, ...]) -> None:
        """Judge one step."""
        self.known.hear(event)
        successors = {command.successor for command in commands if isinstance(command, Evicted)}
        for command in commands:
            match command:
                case Start():
                    self._start(command, event.at)
                case Transitioned():
                    self._transition(command, event.at, evicts=command.model in successors)
                case FootprintMeasured():
                    self._measure(command)
                case _:
                    pass
        self.known.forget_removed()
        if isinstance(event, GpuMemoryRead):
            self._after_reading(event.taken)

    def is_plain(self, gpu: int, now: Instant) -> bool:
        """Say whether nothing is and nothing lately was on a GPU but ready engines of the size they declare."""
        if gpu not in self.known.heard:
            return False
        taken = self.known.taken(gpu)
        foreign = self.driver.foreign(gpu, now) or self.driver.foreign_changed(gpu, taken)
        ghosts = self.driver.held_on(gpu, taken) - sum(self.driver.held_by(key, taken) for key in self.driver.on(gpu))
        return not (foreign or ghosts or self._blur(gpu))

    # bookings

    def _transition(self, note: Transitioned, now: Instant, *, evicts: bool) -> None:
        if note.before is None:
            self.known.book(note, now)
            self._booked(note, now, evicts=evicts)
        life = self.known.move(note, now, MEMORY)
        if note.after is State.GONE:
            self._released(note.instance, life)

    def _booked(self, note: Transitioned, now: Instant, *, evicts: bool) -> None:
        """Promise no memory that others hold or that has leaked, and let nobody leave for a model that will not fit."""
        spec = self.known.catalog.models.get(note.model)
        if spec is None:
            return
        need = min(self.driver.sizes.get(spec.name, spec.footprint.bytes_per_gpu), self.known.size(spec))
        for gpu in gpu_indices(note.gpus):
            if gpu not in self.known.heard:
                continue
            room = self.known.topology.gpus[gpu].memory_bytes - need + self._blur(gpu)
            foreign = self._foreign(gpu, now)
            if foreign > room and not self._is_late(gpu) and (evicts or self._is_alone(note.instance, gpu)):
                law = "foreign_evicts_nobody" if evicts else "foreign_is_reckoned"
                _wrong(law, f"{note}: others hold {foreign} on GPU {gpu}, it needs {need}")
            leaked = sum(self._leaked(key, life, gpu) for key, life in self.known.lives.items())
            if leaked > room:
                _wrong("leaks_are_not_promised", f"{note}: GPU {gpu} has {leaked} leaked bytes, it needs {need}")

    def _foreign(self, gpu: int, now: Instant) -> Bytes:
        """Return what others have held on a GPU at the last reading, and still hold."""
        return min(self.driver.foreign(gpu, self.known.taken(gpu)), self.driver.foreign(gpu, now))

    def _is_alone(self, instance: InstanceId, gpu: int) -> bool:
        """Say whether nobody else is on a GPU, so that all that is taken there is foreign."""
        return not any(life.gpus >> gpu & 1 for key, life in self.known.lives.items() if key != instance)

    def _leaked(self, instance: InstanceId, life: Life, gpu: int) -> int:
        """Return what a leaked instance holds on a GPU beyond doubt."""
        known = life.gpus & ~life.excused & 1 << gpu and not self.driver.foreign_changed(gpu, life.booked)
        return self.driver.held_by(instance, self.known.taken(gpu)) if life.state is State.LEAKED and known else 0

    def _is_late(self, gpu: int) -> bool:
        """Say whether what the last reading shows as taken may be memory of a released instance on its way back."""
        since = self.known.taken(gpu) - self.known.catalog.settings.release_timeout
        return any(life.gpus >> gpu & 1 and gone > since for gone, life in self.known.past.values())

    def _blur(self, gpu: int) -> int:
        """Return by how much engines on a GPU differ from what they may count for, or are not there yet."""
        blur = 0
        for key in self.driver.all_on(gpu):
            engine, life = self.driver.engines[key], self.known.lives.get(key)
            declared = engine.order.spec.footprint.bytes_per_gpu
            counted = life.need if life is not None else declared
            blur += max(abs(engine.size - declared), abs(engine.size - counted))
            blur += 0 if engine.ready else engine.size
        return blur

    # starts

    def _start(self, order: Start, now: Instant) -> None:
        topology = self.known.topology
        if topology.driver not in (DriverState.UP, DriverState.VIRTUAL):
            _wrong("placeable_only", f"{order} while the driver is {topology.driver}")
        if order.gpus & ~topology.placeable:
            _wrong("placeable_only", f"{order} on one of {topology.gpus}")
        life = self.known.lives[order.instance]
        for other in self.known.near(life):
            if other.state is State.LOADING:
                _wrong("one_load_per_gpu", f"{order} beside {other.order}")
        for gpu in gpu_indices(order.gpus):
            if topology.gpus[gpu].measured:
                self._has_room(order, life, gpu, now)
        life.order = order

    def _has_room(self, order: Start, life: Life, gpu: int, now: Instant) -> None:
        if gpu not in self.known.heard:
            _wrong("no_overcommit", f"{order}: GPU {gpu} was not in the last reading")
        foreign, held = self._foreign(gpu, now), self.driver.held_on(gpu, now)
        if held + foreign + min(self.driver.size(order), life.need) > self.known.topology.gpus[gpu].memory_bytes:
            _wrong("no_overcommit", f"{order}: GPU {gpu} has {held} held by engines, {foreign} by others")

    # sizes and leaks

    def _measure(self, note: FootprintMeasured) -> None:
        life = self.known.measure(note)
        size = self.driver.engines[note.instance].size
        if self._is_told(note.instance, life) and abs(note.measured - size) > SLACK:
            _wrong("measured_is_true", f"{note}: it takes {size}")

    def _is_told(self, instance: InstanceId, life: Life) -> bool:
        """Say whether the last reading tells beyond doubt what an instance takes."""
        heard, near = self.known.heard, self.known.near(life)
        for gpu in gpu_indices(life.gpus):
            listed = gpu in heard and instance in (heard[gpu][1].processes or ())
            if not listed or life.excused >> gpu & 1 or self.driver.foreign(gpu, heard[gpu][0]):
                return False
            if any(other.since > heard[gpu][0] for other in near):
                return False
        return not any(other.state in _UNSETTLED for other in near)

    def _after_reading(self, taken: Instant) -> None:
        """Demand what a reading makes possible: leaked memory that counts again, sizes that are measured."""
        for instance, life in self.known.lives.items():
            gpus = tuple(gpu_indices(life.gpus))
            over = life.state is State.LEAKED and life.engine_gone and life.gone is not None and life.gone <= taken
            if over and all(self._is_bare(gpu, taken) for gpu in gpus):
                _wrong("leaks_come_back", f"instance {instance} still counts as leaked at a reading taken at {taken}")
            ready = life.ready if life.state in _SERVING and not life.measured else None
            if ready is not None and all(ready <= self.known.taken(gpu) <= taken for gpu in gpus):
                if self._is_told(instance, life):
                    _wrong("measured_when_ready", f"instance {instance} is ready, and was read at {taken}")
                life.measured = not any(other.state in _UNSETTLED for other in self.known.near(life))

    def quarantined(self, view: NodeView) -> None:
        """Demand that leaked memory is kept from others, where a reading tells beyond doubt how much of it is left."""
        for gpu, shown in enumerate(view.gpus):
            here = [life for life in self.known.lives.values() if life.gpus >> gpu & 1]
            moving = any(life.state in (State.LOADING, State.UNLOADING) for life in here)
            if moving or gpu not in self.known.heard or self._is_late(gpu):
                continue
            leaked = sum(self._leaked(key, life, gpu) for key, life in self.known.lives.items())
            if shown.quarantined_bytes + self._blur(gpu) + SLACK < leaked:
                _wrong("leaks_are_kept", f"GPU {gpu} has {leaked} leaked bytes, kept are {shown.quarantined_bytes}")

    def _is_bare(self, gpu: int, taken: Instant) -> bool:
        """Say whether a reading shows a GPU with nothing on it."""
        engines = [self.driver.engines[key] for key in self.driver.all_on(gpu)]
        nobody = not any(engine.held(taken) or engine.ended is None for engine in engines)
        return self.known.taken(gpu) == taken and nobody and not self.driver.foreign(gpu, taken)

    # releases

    def _released(self, instance: InstanceId, life: Life) -> None:
        """Let an instance go only if no more is held than what the others on its GPUs count for.

        Of two who have ended, a reading does not tell which one's memory is back.
        """
        if life.order is None:
            return
        for gpu in self._countable(life):
            taken = self.known.taken(gpu)
            others = sum(self._spare(key, taken) for key in self.driver.all_on(gpu) if key != instance)
            left = self.driver.held_by(instance, taken) - others
            if left > max(SLACK, self._most(life.order, life) // 8) and not self._shrank(gpu, life.booked):
                _wrong("shown_free", f"instance {instance} is gone, but GPU {gpu} still had {left} bytes of it")

    def _countable(self, life: Life) -> Iterator[int]:
        """Yield the GPUs of an instance on which a reading is the only word that counts."""
        topology = self.known.topology
        for gpu in gpu_indices(GpuSet(life.gpus & ~life.excused & topology.placeable)):
            if topology.gpus[gpu].measured and gpu in self.known.heard:
                yield gpu

    def _shrank(self, gpu: int, since: Instant) -> bool:
        """Say whether others, or instances that were gone already, have given memory back since a moment."""
        gone = (self.driver.engines[key] for key in self.driver.all_on(gpu) if key not in self.known.lives)
        ghosts = any(e.back is not None and since < e.back <= self.known.taken(gpu) for e in gone)
        return ghosts or self.driver.foreign_shrank(gpu, since)

    def _spare(self, instance: InstanceId, taken: Instant) -> int:
        """Return by how much an instance may count for more than it holds; one that loads counts for nothing.

        One that is gone counts for the time of a release, in which its memory is expected back.
        """
        life = self.known.lives.get(instance)
        gone, past = self.known.past.get(instance, (None, None))
        late = gone is not None and gone + self.known.catalog.settings.release_timeout > taken
        counts = late if life is None else life.state is not State.LOADING
        engine = self.driver.engines[instance]
        return max(0, self._most(engine.order, life or past) - engine.held(taken)) if counts else 0

    def _most(self, order: Start, life: Life | None) -> Bytes:
        """Return the most that an engine may count for."""
        return max(self.driver.size(order), order.spec.footprint.bytes_per_gpu, life.need if life else Bytes(0))


def _wrong(law: str, detail: str) -> NoReturn:
    raise AuditError(f"{law}: {detail}")
