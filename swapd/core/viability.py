"""Decides whether swapping a model is sensible: how much demand there is for loading it, how much time that takes.

* load ratio ρ = expected load time × rate of episodes: the share of time it would load if every episode were cold.
* load fraction f = measured seconds of loading (whole swaps) over time.
* An episode is a request that comes at least ten seconds after the model went idle: a burst is one.
* Rates decay with τ = 30 min (``decay``), so silence lowers them; the divisor corrects for a short history.
* Verdicts are taken on a timer. Only the early rule speaks at once: a model that is back three times within a quarter
  of an hour, each time soon after its own eviction, is thrashing, and who evicted it most is named.
* A node that spends 15 % of its time loading is marginal, with 30 % its pool of models is thrashing; that is taken back
  only a third below the limit, so that the word does not flap. Nothing is said in the first quarter of an hour.
* Each reload is charged to the model whose load had evicted it.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from swapd.core.accounts import HOUR_S, Account, Costs
from swapd.core.decay import Decayed
from swapd.core.ids import SECOND, Duration, Instant, ModelName
from swapd.core.reasons import Verdict

EPISODE_GAP: Final = Duration(10 * SECOND)
LOADS_WINDOW: Final = Duration(3600 * SECOND)
LEARNING: Final = Duration(900 * SECOND)
EVALUATE_EVERY: Final = Duration(60 * SECOND)
LOADS_NEEDED: Final = 3
#: load ratio and load fraction from which swapping is no longer well, or does not pay; and to which it then has to fall
MARGINAL_RATIO: Final = 0.2
MARGINAL_FRACTION: Final = 0.1
THRASHING_RATIO: Final = 0.5
THRASHING_FRACTION: Final = 0.2
RELIEF_RATIO: Final = 0.33
RELIEF_FRACTION: Final = 0.1
EARLY_RELOADS: Final = 3
EARLY_WINDOW: Final = Duration(900 * SECOND)
EARLY_LOAD_TIMES: Final = 5
EARLY_LEAST: Final = Duration(5 * SECOND)
#: share of the node's time spent loading, worst first; and the part of a limit below which it is left again
NODE_LIMITS: Final = {Verdict.THRASHING: 0.30, Verdict.MARGINAL: 0.15}
NODE_RELIEF: Final = 2 / 3
_LONG_AGO: Final = Instant(-(1 << 62))


@dataclass(slots=True)
class Demand:
    """What one model is asked for and what its loads cost."""

    began: Instant = Instant(0)
    #: requests since the daemon's start, and those that an earlier run had counted
    arrivals: int = 0
    recalled: int = 0
    #: of its last request; ``None``: none yet
    last_arrival: Instant | None = None
    requests: Decayed = field(default_factory=Decayed)
    episodes: Decayed = field(default_factory=Decayed)
    load_seconds: Decayed = field(default_factory=Decayed)
    #: when its last loads ended
    loads: deque[Instant] = field(default_factory=lambda: deque(maxlen=128))
    #: when it last had nothing in flight and nobody waiting
    idle_since: Instant = _LONG_AGO
    evicted_at: Instant = _LONG_AGO
    #: whose load evicted it last; ``None``: charged already, or it left for another reason
    evicted_by: ModelName | None = None
    #: reloads soon after its own eviction: when, and who had evicted it
    relapses: deque[tuple[Instant, ModelName]] = field(default_factory=lambda: deque(maxlen=8))
    account: Account = field(default_factory=Account)
    verdict: Verdict = Verdict.UNKNOWN
    partner: ModelName | None = None

    def arrived(self, at: Instant, *, idle: bool) -> None:
        """Count a request; ``idle``: nothing was in flight or waiting before it."""
        self.arrivals += 1
        self.last_arrival = at
        self.requests.add(at, 1.0)
        if idle and at - self.idle_since >= EPISODE_GAP:
            self.episodes.add(at, 1.0)

    def returned(self, at: Instant, lhat: Duration, booked_at: Instant) -> ModelName | None:
        """Note that it is resident again; return who evicted it, once, and remember a relapse."""
        by = self.evicted_by
        if by is not None and self.relapse(lhat, booked_at):
            self.relapses.append((at, by))
        self.evicted_by = None
        return by

    def relapse(self, lhat: Duration, booked_at: Instant) -> bool:
        """Say whether a load booked then, the first since its eviction, came soon after that."""
        soon = max(EARLY_LOAD_TIMES * lhat, EARLY_LEAST)
        return self.evicted_by is not None and booked_at - self.evicted_at <= soon

    def load_ratio(self, at: Instant, lhat: Duration) -> float:
        """Return ρ."""
        return lhat / SECOND * self.episodes.rate(at, self.began)

    def load_fraction(self, at: Instant) -> float:
        """Return f."""
        return self.load_seconds.rate(at, self.began)

    def inter_arrival(self, at: Instant) -> Duration | None:
        """Return the mean time between requests; ``None`` before two of them."""
        rate = self.requests.rate(at, self.began)
        return Duration(round(SECOND / rate)) if self.arrivals + self.recalled > 1 and rate else None

    def recent_loads(self, at: Instant) -> int:
        """Return how many loads ended within the last hour."""
        return sum(1 for ended in self.loads if at - ended <= LOADS_WINDOW)

    def totals(self) -> Costs:
        """Return what it has cost since the daemon's start."""
        account = self.account
        own, charged, waited = account.own.total, account.charged.total, account.waited.total
        return Costs(self.arrivals, account.loads, own, charged, waited)

    def hourly(self, at: Instant) -> Costs:
        """Return what it costs an hour at present; loads are those of the last hour."""
        account, since = self.account, self.began
        return Costs(
            HOUR_S * self.requests.rate(at, since),
            self.recent_loads(at),
            account.own.per_hour(at, since),
            account.charged.per_hour(at, since),
            account.waited.per_hour(at, since),
        )

    def relapsing(self, at: Instant) -> bool:
        """Say whether the early rule holds now."""
        return sum(1 for when, _ in self.relapses if at - when <= EARLY_WINDOW) >= EARLY_RELOADS

    def judge(self, at: Instant, lhat: Duration) -> Verdict:
        """Return the verdict as of now, taking the last one into account."""
        if self.relapsing(at):
            return Verdict.THRASHING
        ratio, fraction = self.load_ratio(at, lhat), self.load_fraction(at)
        if self.verdict is Verdict.THRASHING and ratio >= RELIEF_RATIO and fraction >= RELIEF_FRACTION:
            return Verdict.THRASHING
        if at - self.began < LEARNING:
            return Verdict.UNKNOWN
        if ratio >= MARGINAL_RATIO and fraction >= MARGINAL_FRACTION and self.recent_loads(at) >= LOADS_NEEDED:
            if ratio >= THRASHING_RATIO and fraction >= THRASHING_FRACTION:
                return Verdict.THRASHING
            return Verdict.MARGINAL
        return Verdict.OK

    def shown(self, at: Instant) -> Verdict:
        """Return the verdict for the view: the last one taken, but nobody is unknown for ever."""
        if self.verdict is Verdict.UNKNOWN and at - self.began >= LEARNING:
            return Verdict.OK
        return self.verdict

    def alternates_with(self, at: Instant) -> ModelName | None:
        """Return the model behind most of the recent relapses, if one stands out."""
        return standing_out(by for when, by in self.relapses if at - when <= EARLY_WINDOW)


@dataclass(slots=True)
class NodeLoad:
    """What loading costs the node as a whole."""

    began: Instant
    gpus: int
    gpu_seconds: Decayed = field(default_factory=Decayed)
    #: models whose verdict may be worse than ok; evaluated by the timer
    watched: dict[ModelName, None] = field(default_factory=dict)
    #: models that had better be elsewhere, by the last advice or by their week
    advised: dict[ModelName, None] = field(default_factory=dict)
    next_evaluation: Instant | None = None
    #: of the node as a whole, the last one taken
    verdict: Verdict = Verdict.OK

    def watch(self, model: ModelName, at: Instant) -> None:
        """Have a model judged by the timer from now on."""
        self.watched[model] = None
        self.run_timer(at)

    def run_timer(self, at: Instant) -> None:
        """Have the timer run, if it does not."""
        if self.next_evaluation is None:
            self.next_evaluation = Instant(at + EVALUATE_EVERY)

    def fraction(self, at: Instant) -> float:
        """Return the GPU-weighted share of time spent loading."""
        return self.gpu_seconds.rate(at, self.began) / self.gpus

    def judge(self, at: Instant) -> Verdict:
        """Return the verdict on the node as of now, taking the last one into account."""
        if at - self.began < LEARNING:
            return self.verdict
        fraction = self.fraction(at)
        for verdict, limit in NODE_LIMITS.items():
            stays = self.verdict is verdict or self.verdict is Verdict.THRASHING
            if fraction >= (NODE_RELIEF * limit if stays else limit):
                return verdict
        return Verdict.OK

    def shown(self, at: Instant) -> Verdict:
        """Return the verdict for the view: the last one taken, or that it is too early for one."""
        early = self.verdict is Verdict.OK and at - self.began < LEARNING
        return Verdict.UNKNOWN if early else self.verdict


def standing_out(names: Iterable[ModelName]) -> ModelName | None:
    """Return the name that makes up more than half, at least two; ``None`` if there is none."""
    counts: dict[ModelName, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    for name, count in counts.items():
        if count > 1 and 2 * count > sum(counts.values()):
            return name
    return None
