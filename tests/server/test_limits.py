"""Token buckets, and answers that are remembered."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantfleet_server.limits import Buckets
from quantfleet_server.remembered import Remembered


def test_a_burst_then_the_rate() -> None:
    buckets = Buckets(rate=2, burst=3)
    assert [buckets.take("a", 0.0) for _ in range(4)] == [0, 0, 0, 0.5]
    assert buckets.take("a", 0.5) == 0
    assert buckets.take("a", 0.5) == 0.5
    assert buckets.take("b", 0.5) == 0


@given(st.lists(st.floats(0, 2), min_size=1, max_size=200))
def test_never_more_than_burst_and_rate(pauses: list[float]) -> None:
    buckets, now, taken = Buckets(rate=2, burst=3), 0.0, 0
    for pause in pauses:
        now += pause
        taken += buckets.take("a", now) == 0
    assert taken <= 3 + 2 * now + 1e-6


def test_keys_are_bounded() -> None:
    buckets = Buckets(rate=1, burst=1, most_keys=10)
    for number in range(1000):
        buckets.take(str(number), 0.0)
    assert len(buckets._levels) == 10


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_an_answer_counts_for_its_time() -> None:
    clock, asked = Clock(), []

    async def ask() -> bool:
        asked.append(clock.now)
        return True

    async def story() -> None:
        remembered = Remembered[bool](clock=clock, seconds_of=lambda yes: 10 if yes else 1)
        for now in (0.0, 9.9, 10.0, 19.9, 20.1):
            clock.now = now
            assert await remembered.get("key", ask)

    asyncio.run(story())
    assert asked == [0.0, 10.0, 20.1]


def test_those_who_wait_for_the_same_ask_once() -> None:
    asked = 0

    async def story() -> list[str]:
        gate = asyncio.Event()
        remembered = Remembered[str](clock=Clock(), seconds_of=lambda _: 10)

        async def ask() -> str:
            nonlocal asked
            asked += 1
            await gate.wait()
            return "yes"

        waiting = [asyncio.create_task(remembered.get("key", ask)) for _ in range(50)]
        await asyncio.sleep(0)
        waiting[0].cancel()  # one goes away: the others still get their answer
        gate.set()
        return [answer for answer in await asyncio.gather(*waiting[1:])]

    assert asyncio.run(story()) == ["yes"] * 49
    assert asked == 1


def test_an_error_is_not_remembered() -> None:
    async def story() -> None:
        remembered = Remembered[str](clock=Clock(), seconds_of=lambda _: 10)

        async def fails() -> str:
            raise OSError("away")

        async def works() -> str:
            return "yes"

        with pytest.raises(OSError, match="away"):
            await remembered.get("key", fails)
        assert await remembered.get("key", works) == "yes"

    asyncio.run(story())


def test_the_last_answer_is_known_when_it_no_longer_counts() -> None:
    clock = Clock()

    async def ask() -> str:
        return "yes"

    async def story() -> None:
        remembered = Remembered[str](clock=clock, seconds_of=lambda _: 10)
        assert remembered.last("key") is None
        await remembered.get("key", ask)
        clock.now = 11.0
        assert remembered.find("key") is None
        assert remembered.last("key") == "yes"

    asyncio.run(story())


def test_answers_are_bounded() -> None:
    async def story() -> int:
        remembered = Remembered[int](clock=Clock(), seconds_of=lambda _: 10, most=5)

        async def ask() -> int:
            return 1

        for number in range(100):
            await remembered.get(str(number), ask)
        return len(remembered._kept)

    assert asyncio.run(story()) == 5
