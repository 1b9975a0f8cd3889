"""Events of a job: resumed by number, bounded, never behind the last state."""

import asyncio

import pytest

from quantfleet_server.channel import KEPT, Channel


def test_events_after_a_number_come_in_order() -> None:
    channel = Channel(epoch="e")
    for number in range(5):
        channel.publish("progress", str(number))

    events = channel.after(2)

    assert events is not None
    assert [(event.number, event.data) for event in events] == [(3, "2"), (4, "3"), (5, "4")]
    assert channel.after(5) == ()


def test_who_was_away_too_long_cannot_be_resumed() -> None:
    channel = Channel(epoch="e")
    for number in range(KEPT + 10):
        channel.publish("progress", str(number))
    assert channel.after(9) is None
    found = channel.after(10)
    assert found is not None
    assert len(found) == KEPT


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("e-3", 3),
        ("e-0", 0),
        ("e-4", None),
        ("f-3", None),
        ("e-", None),
        ("3", None),
        ("", None),
        ("e--1", None),
        ("e-1_0", None),
        ("e-" + "9" * 5000, None),
    ],
)
def test_identifiers_of_another_start_mean_nothing(text: str, number: int | None) -> None:
    channel = Channel(epoch="e")
    for _ in range(3):
        channel.publish("progress", "{}")
    assert channel.number_of(text) == number
    assert channel.number_of(channel.identifier(2)) == 2


def test_watchers_wake_for_news_and_for_the_end() -> None:
    async def story() -> list[int]:
        channel, seen = Channel(epoch="e"), []

        async def watch() -> None:
            number = 0
            while not (channel.ended and number == channel.last):
                await channel.news(number)
                number = channel.last
                seen.append(number)

        watchers = [asyncio.create_task(watch()) for _ in range(3)]
        await asyncio.sleep(0)
        channel.publish("progress", "{}")
        await asyncio.sleep(0)
        channel.publish("progress", "{}")
        channel.end()
        await asyncio.gather(*watchers)
        return seen

    seen = asyncio.run(asyncio.wait_for(story(), 10))
    assert seen.count(2) == 3
