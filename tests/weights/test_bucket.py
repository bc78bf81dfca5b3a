"""How long downloads wait for their bandwidth."""

from swapd.weights.bucket import Bucket


def test_after_a_burst_of_a_quarter_of_a_second_bytes_have_to_be_waited_for() -> None:
    now = [100.0]
    bucket = Bucket(1000, now=lambda: now[0])
    assert bucket.take(250) == 0
    assert bucket.take(500) == 0.5
    now[0] += 0.5
    assert bucket.take(0) == 0
    now[0] += 3600
    assert bucket.take(1250) == 1.0, "silence saves up no more than a burst"


def test_several_that_take_share_the_bandwidth() -> None:
    bucket = Bucket(1000, now=lambda: 0.0)
    assert [bucket.take(500), bucket.take(500), bucket.take(250)] == [0.25, 0.75, 1.0]


def test_without_a_limit_nothing_waits() -> None:
    bucket = Bucket(None, now=lambda: 0.0)
    assert (bucket.take(10**12), bucket.chunk(2**20)) == (0, 2**20)


def test_pieces_are_small_enough_for_a_slow_line() -> None:
    assert Bucket(100_000, now=lambda: 0.0).chunk(2**20) == 25_000
    assert Bucket(1, now=lambda: 0.0).chunk(2**20) == 1024
