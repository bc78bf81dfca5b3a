"""The table of transitions is the only way from one state to another, and the docs are drawn from it."""

import pytest

from swapd.core.ids import InstanceId, Instant
from swapd.core.lifecycle import TABLE, Cause, InvalidTransitionError, Row, after, as_markdown, as_mermaid
from swapd.core.reasons import State

ONE = InstanceId(1)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.before}-{row.cause.name}")
def test_every_row_leads_where_it_says(row: Row) -> None:
    assert after(row.before, row.cause, instance=ONE) is row.after


def test_no_two_rows_speak_of_the_same_step() -> None:
    assert len({(row.before, row.cause) for row in TABLE}) == len(TABLE)


def test_whatever_stands_in_no_row_raises_with_the_story() -> None:
    with pytest.raises(InvalidTransitionError, match=r"(?s)instance 7: no step from GONE for EVICTED.*1\.500 s  ready"):
        after(State.GONE, Cause.EVICTED, instance=InstanceId(7), story=[(Instant(1_500_000_000), "ready")])


@pytest.mark.parametrize("cause", Cause)
def test_nothing_leads_out_of_gone(cause: Cause) -> None:
    with pytest.raises(InvalidTransitionError):
        after(State.GONE, cause, instance=ONE)


def test_process_exit_never_leads_to_gone_only_released_memory_does() -> None:
    causes = {row.cause for row in TABLE if row.after is State.GONE and row.before is not State.RESERVED}
    assert causes == {Cause.MEMORY_RELEASED}


def test_every_state_is_reached_and_every_cause_is_used() -> None:
    assert {row.after for row in TABLE} == set(State)
    assert {row.cause for row in TABLE} == set(Cause)


def test_the_diagram_and_the_table_for_the_docs_have_a_line_for_each_row() -> None:
    assert as_mermaid().startswith("stateDiagram-v2\n    [*] --> reserved: room found or planned\n")
    assert as_mermaid().count("-->") == len(TABLE) + 1
    assert as_markdown().splitlines()[2] == "| – | room found or planned | RESERVED | stop or sleep each victim |"
    assert len(as_markdown().splitlines()) == len(TABLE) + 2
