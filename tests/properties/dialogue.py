"""Talks to a core like an adversarial world: every fact the contract allows, in any order, at any moment.

The moves take plain numbers, so that Hypothesis and a seeded walk can make them alike. Which facts are possible is read
from the suite's books: nothing false is said about a living instance, but true facts come early, late, or never.
"""

from swapd.core.catalog import Catalog, Priority
from swapd.core.commands import Reject
from swapd.core.events import (
    CatalogChanged,
    Event,
    FootprintsKnown,
    InstanceExited,
    LoadOrdered,
    NodeDrainOrdered,
    NodeUndrainOrdered,
    PinOrdered,
    PrefetchOrdered,
    RequestArrived,
    RequestEnded,
    Tick,
    UnloadOrdered,
    UpstreamFailed,
)
from swapd.core.ids import Bytes, Duration, Instant, RequestId, seconds
from swapd.core.reasons import Outcome, State
from swapd.sim.driver import VirtualDriver
from swapd.sim.replay import Origin
from tests.properties.books import Phase
from tests.properties.broken import broken
from tests.properties.device_talk import DeviceTalk
from tests.properties.facts import facts, old_facts, truth
from tests.properties.watch import Watch
from tests.properties.weight_talk import answers, healthy, wants_of_room, with_copy, without

#: wake-ups within one passing of time after which the core counts as spinning
MAX_TICKS = 400

_OUTCOMES = (Outcome.SERVED, Outcome.CANCELLED, Outcome.UPSTREAM_FAILED)


class Dialogue:
    """One core, its watch, and the world's side of the talk."""

    def __init__(self, origin: Origin, variants: tuple[Catalog, ...] = (), driver: VirtualDriver | None = None) -> None:
        self.scheduler = origin.scheduler()
        self.watch = Watch(origin, self.scheduler, driver)
        self.devices = DeviceTalk(driver, origin.topology) if driver is not None else None
        self.books = self.watch.books
        self.variants = (origin.catalog, *variants)
        self.now = origin.at
        self._next_request = 1

    def say(self, event: Event) -> None:
        """Tell one fact; refusals are confirmed at once, as the shell does."""
        if self.devices is not None:
            event = self.devices.happens(event)
        commands = self.scheduler.handle(event)
        self.watch(event, commands)
        for command in commands:
            if self.devices is not None:
                self.devices.carry_out(command, self.now)
            if isinstance(command, Reject):
                self.say(RequestEnded(self.now, command.request, Outcome.REJECTED))

    def arrive(self, model: int, priority: int = 0) -> None:
        """Let a request come in for one of the models, or for one nobody knows any more."""
        names = sorted({name for catalog in self.variants for name in catalog.models})
        self.say(RequestArrived(self.now, self._id(), names[model % len(names)], Priority(priority % 3)))

    def end(self, which: int, outcome: int) -> None:
        """End a request: served or broken if it is being served, by leaving in any case."""
        requests = sorted(self.books.requests)
        if not requests:
            return
        request = self.books.requests[requests[which % len(requests)]]
        how = _OUTCOMES[outcome % 3] if request.phase is Phase.GRANTED else Outcome.CANCELLED
        self.say(RequestEnded(self.now, request.id, Outcome.CUT if request.cut else how))

    def fail_upstream(self, which: int) -> None:
        """Let a request that is being served get no byte."""
        served = [key for key, r in sorted(self.books.requests.items()) if r.phase is Phase.GRANTED and not r.cut]
        if served:
            request = self.books.requests[served[which % len(served)]]
            assert request.instance is not None
            self.say(UpstreamFailed(self.now, request.id, request.instance))

    def report(self, which: int, fact: int) -> None:
        """One of the facts that may now be true of one of the instances."""
        instances = [i for _, i in sorted(self.books.instances.items()) if i.started is not None]
        if instances:
            possible = tuple(facts(instances[which % len(instances)], self.now))
            if possible:
                self.say(possible[fact % len(possible)])

    def obey(self, which: int) -> None:
        """Let one of the instances that owe an answer do what it was told, or the driver answer."""
        owed = [fact for _, i in sorted(self.books.instances.items()) if (fact := truth(i, self.now))]
        reads = self.devices is not None and bool(self.devices.asked or self.devices.begun)
        if owed or reads:
            place = which % (len(owed) + reads)
            if place < len(owed):
                self.say(owed[place])
            else:
                self.read(which)

    def read(self, which: int) -> None:
        """Tell a reading: one that was begun a while ago, or a fresh one."""
        if self.devices is not None:
            if not self.devices.begun:
                self._begin(self.devices)
            self.say(self.devices.end(which, self.now))

    def begin_reading(self) -> None:
        """Let a reading be made and told later."""
        if self.devices is not None:
            self._begin(self.devices)

    def _begin(self, devices: DeviceTalk) -> None:
        """Make a reading at a moment of its own, so that what is in it is never in doubt."""
        self.now = Instant(self.now + 1)
        devices.begin(self.now)
        self.now = Instant(self.now + 1)

    def hear_of_weights(self, which: int, how: int) -> None:
        """Let the weight cache answer one of its orders, somehow, or say how a fetch gets on."""
        told = answers(self.books, self.now, how)
        self._say_all(told[which % len(told)] if told else ())

    def fill_the_disk(self, model: int, how: int) -> None:
        """Let others come, and most be served, and then a model whose fetch lacks room that their copies have."""
        names = sorted(name for name, spec in self.books.catalog.models.items() if spec.fetched)
        if not names:
            return
        heir = names[model % len(names)]
        self.say(without(self.books, heir, self.now))
        for place, name in enumerate(names):
            if name not in self.books.weights.sharers(heir) and how >> place & 1:
                self.say(with_copy(self.books, name, self.now))
                self.say(RequestArrived(self.now, self._id(), name))
        self._obey_all()
        for key, request in sorted(self.books.requests.items()):
            if request.phase is Phase.GRANTED and (key + how) % 8:
                self.say(RequestEnded(self.now, key, Outcome.CUT if request.cut else Outcome.SERVED))
        heirs = self.books.weights.sharers(heir)
        wanted = [self._id() for _ in heirs]
        for one, request in zip(heirs, wanted, strict=True):
            self.say(RequestArrived(self.now, request, one))
        for told in wants_of_room(self.books, self.now, how):
            self._say_all(told)
        self.say(RequestArrived(self.now, self._id(), names[how % len(names)]))
        if how % 3 == 0 and wanted[0] in self.books.requests:
            self.end(sorted(self.books.requests).index(wanted[0]), 1)

    def bring_weights(self, which: int) -> None:
        """Let the weight cache answer one of its orders well."""
        told = healthy(self.books, self.now)
        self._say_all(told[which % len(told)] if told else ())

    def fail_load(self, which: int) -> None:
        """Let an engine end that loads, as it would if its weights were damaged."""
        instances = [i for _, i in sorted(self.books.instances.items())]
        loading = [
            i for i in instances if i.started is not None and i.ready is None and not i.broken and i.stop is None
        ]
        if loading:
            self.say(InstanceExited(self.now, loading[which % len(loading)].id, 1, "cannot read its weights"))

    def change_cache(self, model: int, *, put: bool) -> None:
        """Let somebody delete a copy by hand, or put one there."""
        names = sorted(name for name, spec in self.books.catalog.models.items() if spec.fetched)
        if names:
            change = with_copy if put else without
            self.say(change(self.books, names[model % len(names)], self.now))

    def prefetch(self, model: int) -> None:
        """Want a model's weights here."""
        names = sorted(self.books.catalog.models)
        self.say(PrefetchOrdered(self.now, self._id(), names[model % len(names)]))

    def _say_all(self, told: tuple[Event, ...]) -> None:
        for event in told:
            self.say(event)

    def release(self, which: int) -> None:
        """Let the driver give back the memory of an engine that has ended."""
        if self.devices is not None:
            self.devices.release(which, self.now)

    def befall(self, kind: int, gpu: int) -> None:
        """Let something happen to the devices, and be told half of the time."""
        if self.devices is not None:
            self.devices.befall(kind, gpu, self.now)
            if kind % 2:
                self.tell_news()

    def recall(self, model: int, eighths: int) -> None:
        """Tell what a model took in an earlier run."""
        specs = self.books.catalog.models
        if self.devices is not None and specs:
            name = sorted(specs)[model % len(specs)]
            size = specs[name].footprint.bytes_per_gpu * (4 + eighths % 8) // 8
            self.say(FootprintsKnown(self.now, {name: Bytes(size)}))

    def recover(self, gpu: int) -> None:
        """Let a GPU be sound again, or the driver answer again, and be told."""
        if self.devices is not None:
            self.devices.recover(gpu, self.now)
            self.tell_news()

    def tell_news(self) -> None:
        """Tell how the devices are."""
        news = self.devices.news(self.now) if self.devices is not None else None
        if news is not None:
            self.say(news)

    def pass_time(self, milliseconds: int) -> None:
        """Let time pass, and wake the core whenever it wants to be."""
        until = Instant(self.now + milliseconds * 1_000_000)
        for _ in range(MAX_TICKS):
            wakeup = self.scheduler.next_wakeup
            if wakeup is None or wakeup > until:
                break
            self.now = max(self.now, wakeup)
            self.say(Tick(self.now))
        else:
            broken("commands_bounded", f"{MAX_TICKS} wake-ups within {milliseconds} ms")
        self.now = until

    def oversleep(self, milliseconds: int) -> None:
        """Let time pass, and wake the core late."""
        self.now = Instant(self.now + milliseconds * 1_000_000)
        self.say(Tick(self.now))

    def order(self, kind: int, model: int) -> None:
        """Give an operator's order."""
        names = sorted(self.books.catalog.models)
        if not names:
            return
        name, request = names[model % len(names)], self._id()
        match kind % 7:
            case 0 | 1:
                self.say(LoadOrdered(self.now, request, name))
            case 2 | 3:
                self.say(UnloadOrdered(self.now, request, name, (None, seconds(5))[kind % 2]))
            case 4:
                self.say(PinOrdered(self.now, request, name, pinned=True))
            case _:
                self.say(PinOrdered(self.now, request, name, pinned=False))

    def drain_node(self, variant: int) -> None:
        """Take the node out of service."""
        timeout, linger, stop = variant % 2, variant // 2 % 2, variant // 4 % 2 == 0
        self.say(
            NodeDrainOrdered(
                self.now,
                self._id(),
                seconds(10) if timeout else None,
                linger=Duration(linger * seconds(4)),
                stop_engines=stop,
            )
        )

    def undrain_node(self) -> None:
        """Bring the node back, if it is out of service."""
        if self.books.draining:
            self.say(NodeUndrainOrdered(self.now, self._id()))

    def reconfigure(self, variant: int) -> None:
        """Change the configuration to one of the variants."""
        self.say(CatalogChanged(self.now, self.variants[variant % len(self.variants)]))

    def repeat_old_fact(self, which: int) -> None:
        """Tell a fact about an instance that is gone once more."""
        gone = sorted(self.books.seen - self.books.instances.keys())
        if gone:
            told = old_facts(gone[which % len(gone)], self.now)
            self.say(told[which % len(told)])

    def settle(self) -> None:
        """Heal everything and demand that the node comes to rest with every promise kept."""
        self.reconfigure(0)
        self.undrain_node()
        for _ in range(200):
            self._heal()
            if all(r.phase is Phase.REJECTED for r in self.books.requests.values()) and not self._at_work():
                break
            self.pass_time(2_000)
        self.watch.liveness()
        self.watch.replay_is_exact()

    def empty(self) -> None:
        """Unload everything and demand that no byte stays booked."""
        request = self._id()
        self.say(NodeDrainOrdered(self.now, request, None))
        for _ in range(20):
            self._heal()
            self.pass_time(2_000)
        if self.books.instances or any(gpu.reserved_bytes for gpu in self.scheduler.view().gpus):
            broken("nothing_dropped", f"still booked after everything was unloaded: {self.scheduler.view().gpus}")
        self.watch.liveness()

    def _heal(self) -> None:
        """Make every instance do what it was told, the weights come, and every answer end."""
        for told in healthy(self.books, self.now):
            self._say_all(told)
        self._obey_all()
        for key in sorted(self.books.requests):
            request = self.books.requests.get(key)
            if request is not None and request.phase is Phase.GRANTED:
                self.say(RequestEnded(self.now, key, Outcome.CUT if request.cut else Outcome.SERVED))
        if self.devices is not None:
            self.devices.heal(self.now)
            self.tell_news()
            self.read(0)
            while self.devices.begun or self.devices.asked:
                self.read(0)

    def _obey_all(self) -> None:
        for identity in sorted(self.books.instances):
            while (instance := self.books.instances.get(identity)) and (fact := truth(instance, self.now)):
                self.say(fact)

    def _at_work(self) -> bool:
        unanswered = any(not order.answered for order in self.books.orders.values())
        return unanswered or any(i.state is not State.READY for i in self.books.instances.values())

    def _id(self) -> RequestId:
        self._next_request += 1
        return RequestId(self._next_request)
