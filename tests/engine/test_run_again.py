"""A job that has ended is run again on purpose: as a new job, with effects of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from relevo import App, Command, Context, MisuseError, Relevo, State
from relevo.desk import Person, Role
from relevo.errors import NotAllowed
from relevo.testing import drain

Start = Callable[..., Relevo]
ANA = Person("ana", Role.OPERATOR)


class Report(Command, queue="shop:reports:send", key="report:{day}", unique="forever", keep="400d"):
    day: str


async def test_a_job_is_run_again_as_a_new_one_with_its_own_effects(start: Start) -> None:
    sent: list[str] = []

    async def send(order: Report, ctx: Context) -> None:
        await ctx.once("mail", lambda key: sent.append(key))

    async with start(App("shop", workers=[send])) as relevo:
        first = (await relevo.enqueue(Report("monday"))).id
        with pytest.raises(MisuseError, match="it has not ended"):
            await relevo.desk.run_again(first, ANA)
        await drain(relevo)
        with pytest.raises(NotAllowed):
            await relevo.desk.run_again(first, Person("eve"))
        assert [each.name for each in await relevo.desk.repeated_effects(first)] == ["mail"]
        with pytest.raises(MisuseError, match="has made 'mail', which a new job would make a"):
            await relevo.desk.run_again(first, ANA)
        assert len(sent) == 1

        again = await relevo.desk.run_again(
            first, ANA, "sent to the wrong list", repeats_effects=True
        )
        await drain(relevo)

        new = await relevo.desk.job(again)
        assert (new.state, new.key, new.cause) == (State.DONE, None, first)
        assert new.keep == 400 * 86_400_000
        assert new.payload == (await relevo.desk.job(first)).payload
        assert len(set(sent)) == 2
        lines, _ = await relevo.desk.audits()
        assert [(line.who, line.verb, line.target, line.after) for line in lines] == [
            ("ana", "run again", first, again)
        ]
        # It holds no key: the key's own job still answers for it.
        assert (await relevo.enqueue(Report("monday"))).id == first
