"""Says what ``advise`` has found in sentences an operator can act on."""

from collections.abc import Iterator, Sequence

from swapd.core.ids import SECOND, ModelName
from swapd.sim.advise import PIN, Advice, Measured, Step

_NAMED = 5


def sentences(advice: Advice) -> Iterator[str]:
    """Yield the advice, what to do first."""
    limit = f"{advice.limit / SECOND:g} s"
    before, after = advice.before, advice.after
    yield (
        f"As it is, {_share(before.over_share)} of the requests wait longer than {limit} or are refused; "
        f"the mean wait is {before.wait_mean_s:.1f} s, with {before.loads_per_h:.1f} loads an hour."
    )
    for step in advice.steps:
        yield _step(step, limit)
    if advice.slow:
        yield (
            f"{_names(advice.slow)}: loading alone takes longer than {limit}; each cold start will, too. "
            "Accept it, pin, dedicate, or make the load faster."
        )
    yield _rest(advice, limit)
    if not advice.met:
        if advice.wide:
            yield (
                f"No further model can be pinned beside {_names(advice.wide)}, "
                f"which {'needs' if len(advice.wide) == 1 else 'need'} all GPUs that are not pinned."
            )
        yield (
            f"The goal of {_share(advice.goal)} is not met: {_share(after.over_share)} stay above {limit} whatever "
            f"single model is pinned or dedicated. What helps is a second node for the pool, or a limit of "
            f"{after.wait_p99_s:.0f} s, which 99 % of the requests keep."
        )


def _step(step: Step, limit: str) -> str:
    gpus = f"{step.gpus} GPU{'' if step.gpus == 1 else 's'}"
    what = f"Pin {step.model} ({gpus})" if step.action == PIN else f"Dedicate {gpus} to {step.model}, outside the pool"
    return f"{what}: {_change(step.before, step.after, limit)}."


def _change(before: Measured, after: Measured, limit: str) -> str:
    return (
        f"above {limit} {_share(before.over_share)} → {_share(after.over_share)}, "
        f"mean wait {before.wait_mean_s:.1f} → {after.wait_mean_s:.1f} s, "
        f"loads an hour {before.loads_per_h:.1f} → {after.loads_per_h:.1f}"
    )


def _rest(advice: Advice, limit: str) -> str:
    count = len(advice.swapped)
    if not count:
        return "No model is left to swap."
    who = "All models" if not advice.steps else f"The other {count} models" if count > 1 else "The other model"
    kept = f"{_share(advice.after.over_share)} of all requests wait longer than {limit} then"
    return f"{who} can be swapped: {kept}." if advice.met else f"{who} stay swapped: {kept}."


def _names(names: Sequence[ModelName]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _share(share: float) -> str:
    return f"{share:.1%}" if share >= 0.001 or not share else f"{share:.2%}"
