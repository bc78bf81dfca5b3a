"""Watches one core: after each step every law is checked, from outside by the oracle and from inside by ``check``."""

from swapd.core.commands import Command
from swapd.core.events import Event
from swapd.core.scheduler import Scheduler
from swapd.sim.audit import Audit
from swapd.sim.driver import VirtualDriver
from swapd.sim.replay import Origin, Recording
from tests.properties import device_laws, laws, weight_books
from tests.properties.books import Books, Phase
from tests.properties.broken import broken
from tests.properties.oracle import Oracle


class Watch:
    """An observer of the virtual node, and of the dialogue, that raises at the first broken law."""

    def __init__(self, origin: Origin, scheduler: Scheduler, driver: VirtualDriver | None = None) -> None:
        self.scheduler = scheduler
        #: ``None``: the devices are virtual
        self.audit = Audit(driver, origin.topology, origin.catalog) if driver is not None else None
        self.oracle = Oracle(origin.topology, origin.catalog)
        self.recording = Recording(origin)
        self._kept: laws.Kept = {}

    @property
    def books(self) -> Books:
        """The suite's own books."""
        return self.oracle.books

    def __call__(self, event: Event, commands: tuple[Command, ...]) -> None:
        """Judge one step."""
        self.recording(event, commands)
        before = self.books.snapshot()
        self.oracle(event, commands)
        if self.audit is not None:
            self.audit(event, commands)
        books = self.books
        laws.protection_is_bounded(books, before, commands)
        laws.no_needless_eviction(books, before, commands, self._plain)
        laws.infeasible_evicts_nobody(books, event, commands)
        laws.queue_bounded(books, event)
        laws.commands_bounded(books, before, commands)
        laws.nothing_waits_beside_a_free_slot(books)
        laws.nobody_waits_for_an_empty_node(books)
        laws.patience_ends(books)
        laws.deadlines_are_kept(books, event, self.scheduler.next_wakeup)
        device_laws.cordons_are_cleared(books)
        device_laws.promises_fit(books, commands)
        self._kept = laws.weights_are_kept(books, self._kept, commands)
        laws.standings_are_true(books, self.scheduler.standings())
        laws.missing_weights_are_fetched(books)
        weight_books.nobody_leaves_in_vain(books, commands)
        weight_books.pointless_fetches_end(books)
        weight_books.readings_end(books)
        weight_books.room_is_given_back(books, event, self.scheduler.next_wakeup)
        view = self.scheduler.view()
        device_laws.sizes_are_charged(books, view)
        if self.audit is not None:
            self.audit.quarantined(view)
        laws.nothing_dropped(books, view)
        laws.one_model_is_shown_as_among_all(self.scheduler, view)
        self.scheduler.check()

    def _plain(self, gpu: int) -> bool:
        """Whether nothing is on a GPU but engines of the size they declare."""
        return self.audit is None or self.audit.is_plain(gpu, self.books.now)

    def liveness(self) -> None:
        """Demand that nobody waits any more: every request and every order was answered."""
        waiting = [r for r in self.books.requests.values() if r.phase is not Phase.REJECTED]
        if waiting:
            broken("liveness", f"never ended: {waiting}")
        unanswered = {key: order for key, order in self.books.orders.items() if not order.answered}
        if unanswered:
            broken("liveness", f"operators without an answer: {unanswered}")

    def replay_is_exact(self) -> None:
        """Demand that the same events give the same commands once more."""
        difference = self.recording.difference()
        if difference is not None:
            broken("replay_is_exact", f"{difference}")
