"""The work queue (C15): each key once, one worker a key, again after failures, ever slower."""

import asyncio

import pytest

from quantfleet_operator.work_queue import WorkQueue


async def taken(queue: WorkQueue[str]) -> str:
    """The next key; a queue that hangs fails the test."""
    return await asyncio.wait_for(queue.get(), 5)


async def nothing_ready(queue: WorkQueue[str]) -> bool:
    for _ in range(5):
        await asyncio.sleep(0)
    return len(queue) == 0


def test_a_key_that_is_added_twice_is_looked_at_once() -> None:
    async def story() -> None:
        queue: WorkQueue[str] = WorkQueue()
        queue.add("a")
        queue.add("a")
        queue.add("b")
        assert [await taken(queue), await taken(queue)] == ["a", "b"]
        assert await nothing_ready(queue)

    asyncio.run(story())


def test_a_key_that_comes_while_it_is_looked_at_comes_again_afterwards() -> None:
    async def story() -> None:
        queue: WorkQueue[str] = WorkQueue()
        queue.add("a")
        await taken(queue)
        queue.add("a")
        assert await nothing_ready(queue), "two workers would have one key"
        queue.done("a")
        assert await taken(queue) == "a"
        queue.done("a")
        assert await nothing_ready(queue)

    asyncio.run(story())


def test_waits_double_and_start_anew_after_a_success() -> None:
    async def story() -> None:
        queue: WorkQueue[str] = WorkQueue()
        waits = []
        for _ in range(12):
            queue.add("a")
            await taken(queue)
            waits.append(queue.failed("a", longest=8))
        for count, wait in enumerate(waits):
            whole = min(0.2 * 2**count, 8)
            assert whole / 2 <= wait <= whole
        queue.add("a")
        await taken(queue)
        queue.done("a")
        queue.add("a")
        await taken(queue)
        assert queue.failed("a") <= 0.2

    asyncio.run(story())


def test_the_servers_wish_to_wait_is_granted() -> None:
    async def story() -> None:
        queue: WorkQueue[str] = WorkQueue()
        queue.add("a")
        await taken(queue)
        assert queue.failed("a", retry_after=7) == 7

    asyncio.run(story())


def test_a_failed_key_comes_back_by_itself() -> None:
    async def story() -> None:
        queue: WorkQueue[str] = WorkQueue()
        queue.add("a")
        await taken(queue)
        queue.failed("a")
        assert await taken(queue) == "a"

    asyncio.run(story())


def test_events_do_not_hurry_a_key_that_backs_off() -> None:
    async def story() -> None:
        queue: WorkQueue[str] = WorkQueue()
        queue.add("a")
        await taken(queue)
        queue.failed("a", retry_after=60)
        queue.soon("a", 0)
        assert await nothing_ready(queue)
        queue.soon("b", 0)
        assert await taken(queue) == "b"

    asyncio.run(story())


def test_the_last_wish_when_to_look_counts() -> None:
    async def story() -> None:
        queue: WorkQueue[str] = WorkQueue()
        queue.schedule("a", 0.01)
        queue.schedule("a", 3600)
        queue.schedule("b", 0.02)
        assert await taken(queue) == "b"
        assert await nothing_ready(queue)
        queue.unschedule("a")

    asyncio.run(story())


@pytest.mark.parametrize("workers", [1, 4])
def test_no_key_is_ever_looked_at_twice_at_once(workers: int) -> None:
    async def story() -> None:
        queue: WorkQueue[str] = WorkQueue()
        active: set[str] = set()
        looks = 0

        async def work() -> None:
            nonlocal looks
            while True:
                key = await queue.get()
                assert key not in active
                active.add(key)
                await asyncio.sleep(0)
                active.discard(key)
                looks += 1
                queue.done(key)

        tasks = [asyncio.create_task(work()) for _ in range(workers)]
        for _ in range(50):
            for key in ("a", "b", "c"):
                queue.add(key)
            await asyncio.sleep(0)
        while len(queue) or active:
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in done)
        assert looks >= 3

    asyncio.run(story())


def test_the_age_of_waiting_and_working_keys_is_told() -> None:
    async def story() -> None:
        queue: WorkQueue[str] = WorkQueue()
        assert (queue.oldest_wait(), queue.longest_look()) == (0.0, 0.0)
        queue.add("a")
        await asyncio.sleep(0.02)
        assert queue.oldest_wait() >= 0.01
        await taken(queue)
        await asyncio.sleep(0.02)
        assert queue.longest_look() >= 0.01
        assert queue.oldest_wait() == 0.0

    asyncio.run(story())
