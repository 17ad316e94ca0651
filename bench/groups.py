"""What a member of a group costs beside a plain job and a job with a key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from bench.measure import Pipe, Row, Speed, Stopwatch, apart, in_turns
from bench.work import Kept, Keyed, app, drain
from relevo import Relevo
from relevo.store import BATCH

if TYPE_CHECKING:
    from bench.places import Place

SECTION = "groups"


async def members(pipe: Pipe, url: str, jobs: int) -> Speed:
    """Members of one group, added in batches; then the group is closed."""
    async with Relevo(url, apps=[app()]) as relevo:
        group = await relevo.group("bench", then=Kept(0))
        watch = Stopwatch()
        for start in range(0, jobs, BATCH):
            await group.add_many(Kept(start + number) for number in range(BATCH))
        speed = watch.speed(jobs)
        await group.close()
        return speed


async def keyed(pipe: Pipe, url: str, jobs: int) -> Speed:
    """Jobs of which each has a key of its own."""
    return await _enqueued(url, Keyed, jobs)


async def plain(pipe: Pipe, url: str, jobs: int) -> Speed:
    """Jobs without key or group."""
    return await _enqueued(url, Kept, jobs)


async def _enqueued(url: str, kind: type[Kept] | type[Keyed], jobs: int) -> Speed:
    async with Relevo(url, apps=[app()]) as relevo:
        await relevo.enqueue(kind(-1))
        watch = Stopwatch()
        for start in range(0, jobs, BATCH):
            await relevo.enqueue_many(kind(start + number) for number in range(BATCH))
        return watch.speed(jobs)


def measure(place: Place, jobs: int, rounds: int, say: Callable[[str], None]) -> Iterator[Row]:
    """Rows of the table: how members go in and come out, and jobs with a key beside them."""

    def sample(function: Callable[..., object], *, is_drained: bool) -> Callable[[], Speed]:
        def run() -> Speed:
            say(f"{function.__name__}, {'out' if is_drained else 'in'}")
            with place.fresh() as url:
                speed = apart(function, url, jobs)
                return drain(url, jobs).speed if is_drained else speed

        return run

    for name, is_drained in (("add_many of 1000", False), ("drain", True)):
        several = [sample(each, is_drained=is_drained) for each in (plain, keyed, members)]
        other, with_key, ours = in_turns(rounds, *several)
        for what, found in (("members of a group", ours), ("jobs with a key", with_key)):
            yield Row(
                section=SECTION,
                name=f"{name}, {what}",
                unit="jobs/s",
                ours=[speed.rate for speed in found],
                other=[speed.rate for speed in other],
                cpu=[speed.cpu for speed in found],
                other_cpu=[speed.cpu for speed in other],
                against="plain jobs",
            )
