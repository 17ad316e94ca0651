"""Ledger: effects outside, in the slot of their job's queue, and what people did."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from msgspec import structs
from msgspec.json import Decoder

from relevo.store import Audit, By, Effect, EffectState, follows
from relevo.stores.redis.frame import timely
from relevo.stores.redis.line import Arg
from relevo.stores.redis.newest import Newest
from relevo.stores.redis.record import dump, from_text, load, to_text

_effect = Decoder(Effect)
NO_RESULT = "-"


class Ledger(Newest):
    """The verbs of the effect ledger and of the audit."""

    @timely
    async def intend(self, effects: Sequence[Effect]) -> list[Effect]:
        items = [(effect.queue, _pack_effect(effect)) for effect in effects]
        found = await self._effects_through("intend", items)
        return [_read_effect(row) for row in found]

    @timely
    async def conclude(self, effects: Sequence[Effect], by: By | None = None) -> list[bool]:
        who = (to_text(by.who), to_text(by.note)) if by else (b"", b"")
        if by is not None:
            effects = [structs.replace(effect, decided_by=by.who) for effect in effects]
        items = [
            (
                effect.queue,
                (*_pack_effect(effect), b"" if (run := follows(effect)) is None else dump(run)),
            )
            for effect in effects
        ]
        found = await self._effects_through("conclude", items, *who)
        return [answer == 1 for answer in found]

    @timely
    async def effects(
        self,
        *,
        job: str | None = None,
        states: frozenset[EffectState] = frozenset(),
        text: str | None = None,
        threads: frozenset[str] = frozenset(),
        cursor: str | None = None,
        limit: int = 50,
    ) -> tuple[list[Effect], str | None]:
        letters = "".join(sorted(state.name[0] for state in states))
        wanted = (b"1", to_text(text)) if text is not None else (b"0", b"")
        roots = [(queue, self._root(queue)) for queue in await self._queues()]

        def keep(row: Any) -> Effect | None:
            effect = _read_effect(row[1])
            return effect if not threads or effect.thread in threads else None

        return await self._newest(
            "effects",
            roots,
            (to_text(job or ""), letters, *wanted, b" ".join(map(dump, sorted(threads)))),
            keep,
            cursor=cursor,
            limit=limit,
        )

    @timely
    async def audit(self, rows: Sequence[Audit]) -> None:
        values: list[Arg] = []
        for row in rows:
            texts = (row.who, row.note, row.verb, row.target, row.before, row.after)
            values.extend(map(to_text, texts))
        if values:
            await self._run("audit", [self._book()], values)

    @timely
    async def audits(
        self, *, target: str | None = None, cursor: str | None = None, limit: int = 50
    ) -> tuple[list[Audit], str | None]:
        wanted = (b"1", to_text(target)) if target is not None else (b"0", b"")
        roots = [(queue, self._root(queue)) for queue in await self._queues()]
        return await self._newest(
            "audits",
            [*roots, ("", self._book())],
            wanted,
            lambda row: _read_audit(row[1]),
            cursor=cursor,
            limit=limit,
        )

    def _book(self) -> bytes:
        return self._key("audit", tag=True)

    async def _effects_through(
        self, name: str, items: Sequence[tuple[str, tuple[Arg, ...]]], *head: Arg
    ) -> list[Any]:
        if self._wire.is_cluster:
            await self._register({queue for queue, _ in items})
        answers: list[Any] = [None] * len(items)
        for places, found in await self._over(name, items, *head):
            for place, answer in zip(places, found, strict=True):
                answers[place] = answer
        return answers


def _pack_effect(effect: Effect) -> tuple[Arg, ...]:
    """Job, name, state, hash of the result, what is searched, and the rest."""
    result = effect.result
    print_ = NO_RESULT if result is None else blake2b(result, digest_size=16).hexdigest()
    text = to_text(effect.key) + b"\n" + (result or b"")
    rest = structs.replace(effect, result=None)
    name = to_text(effect.name)
    return to_text(effect.job), name, effect.state.name[0], print_, text, dump(rest)


def _read_effect(row: bytes) -> Effect:
    letter, created, updated, print_, length, rest = row.split(b"|", 5)
    text, packed = rest[: int(length)], rest[int(length) :]
    effect = load(_effect, packed)
    state = next(state for state in EffectState if state.name[0] == letter.decode())
    has_result = print_.decode() != NO_RESULT
    return structs.replace(
        effect,
        state=state,
        result=text[len(to_text(effect.key)) + 1 :] if has_result else None,
        created_at=int(float(created)),
        updated_at=int(updated),
    )


def _read_audit(fields: Sequence[bytes]) -> Audit:
    row = {fields[n].decode(): from_text(fields[n + 1]) for n in range(0, len(fields), 2)}
    return Audit(
        who=row["who"],
        verb=row["verb"],
        target=row["target"],
        note=row["note"],
        at=int(row["at"]),
        before=row["before"],
        after=row["after"],
    )
