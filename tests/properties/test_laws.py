"""The laws hold whatever the world says, in whatever order: Hypothesis leads the talk and shrinks what breaks one."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from typing_extensions import override

from tests.properties.dialogue import Dialogue
from tests.properties.nodes import PLACES, variants

small = st.integers(0, 15)
span = st.sampled_from((1, 100, 1_000, 3_000, 9_000, 30_000))


def has_driver(machine: "Talk") -> bool:
    return machine.talk is not None and machine.talk.devices is not None


def has_sources(machine: "Talk") -> bool:
    return machine.talk is not None and any(spec.fetched for spec in machine.talk.variants[0].models.values())


class Talk(RuleBasedStateMachine):
    """Every rule is one move; the watch judges each step, the teardown demands rest and an exact replay."""

    def __init__(self) -> None:
        super().__init__()
        self.talk: Dialogue | None = None

    @initialize(node=st.sampled_from(range(len(PLACES))))
    def begin(self, node: int) -> None:
        place = PLACES[node]
        self.talk = Dialogue(place.origin, variants(place.origin.catalog), place.driver())

    @property
    def core(self) -> Dialogue:
        assert self.talk is not None
        return self.talk

    @rule(model=small, priority=st.integers(0, 2))
    def request_arrives(self, model: int, priority: int) -> None:
        self.core.arrive(model, priority)

    @rule(model=small, gap=span)
    def request_arrives_later(self, model: int, gap: int) -> None:
        self.core.pass_time(gap)
        self.core.arrive(model)

    @rule(which=small, outcome=st.integers(0, 2))
    def request_ends(self, which: int, outcome: int) -> None:
        self.core.end(which, outcome)

    @rule(which=small, fact=small)
    def shell_reports(self, which: int, fact: int) -> None:
        self.core.report(which, fact)

    @rule(which=small, fact=small)
    def shell_reports_more(self, which: int, fact: int) -> None:
        self.core.report(which, fact)

    @rule(gap=span)
    def time_passes(self, gap: int) -> None:
        self.core.pass_time(gap)

    @rule(gap=span)
    def wakeup_comes_late(self, gap: int) -> None:
        self.core.oversleep(gap)

    @rule(which=small)
    def upstream_fails(self, which: int) -> None:
        self.core.fail_upstream(which)

    @rule(kind=st.integers(0, 6), model=small)
    def operator_orders(self, kind: int, model: int) -> None:
        self.core.order(kind, model)

    @rule(which=small)
    def instance_obeys(self, which: int) -> None:
        self.core.obey(which)

    @rule(which=small)
    def instance_obeys_at_last(self, which: int) -> None:
        self.core.pass_time(1_000)
        self.core.obey(which)

    @rule(variant=st.integers(0, 15))
    def node_drains_or_returns(self, variant: int) -> None:
        if variant < 8:
            self.core.drain_node(variant)
        else:
            self.core.undrain_node()

    @rule(variant=small)
    def configuration_changes(self, variant: int) -> None:
        self.core.reconfigure(variant)

    @rule(which=st.integers(0, 99))
    def old_fact_comes_again(self, which: int) -> None:
        self.core.repeat_old_fact(which)

    @precondition(has_driver)
    @rule(which=small)
    def memory_is_read(self, which: int) -> None:
        self.core.read(which)

    @precondition(has_driver)
    @rule(which=small)
    def memory_comes_back_and_is_read(self, which: int) -> None:
        self.core.release(which)
        self.core.read(which)

    @precondition(has_driver)
    @rule(which=small, gap=span)
    def memory_is_read_late(self, which: int, gap: int) -> None:
        self.core.begin_reading()
        self.core.pass_time(gap)
        self.core.obey(which)

    @precondition(has_driver)
    @rule(kind=st.integers(0, 39), gpu=small)
    def devices_change(self, kind: int, gpu: int) -> None:
        self.core.befall(kind, gpu)

    @precondition(has_driver)
    @rule(gpu=small)
    def devices_recover(self, gpu: int) -> None:
        self.core.recover(gpu)

    @precondition(has_sources)
    @rule(which=small)
    def weights_come(self, which: int) -> None:
        self.core.bring_weights(which)

    @precondition(has_sources)
    @rule(which=small, how=st.integers(0, 63))
    def cache_reports(self, which: int, how: int) -> None:
        self.core.hear_of_weights(which, how)

    @precondition(has_sources)
    @rule(model=small, put=st.booleans())
    def somebody_changes_the_cache(self, model: int, *, put: bool) -> None:
        self.core.change_cache(model, put=put)

    @precondition(has_sources)
    @rule(which=small)
    def load_fails(self, which: int) -> None:
        self.core.fail_load(which)

    @precondition(has_sources)
    @rule(model=small)
    def weights_are_wanted(self, model: int) -> None:
        self.core.prefetch(model)

    @override
    def teardown(self) -> None:
        if self.talk is not None:
            self.talk.settle()
            self.talk.empty()


TestTalk = Talk.TestCase
