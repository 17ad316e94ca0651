"""razworks' tables, and the few questions asked of them."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

from sqlalchemy import JSON, DateTime, ForeignKey, Integer, String, Text, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from relevo import NotFoundError, Relevo, State
from relevo.apps.tables import add_row
from relevo.ids import new_id


class Base(DeclarativeBase):
    """The tables of razworks."""


class User(Base):
    __tablename__ = "razworks_users"
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    email: Mapped[str] = mapped_column(String(254), unique=True)
    name: Mapped[str] = mapped_column(String(200))
    password: Mapped[str] = mapped_column(String(200))  # scrypt, with its salt
    welcomed: Mapped[str | None] = mapped_column(String(200))  # the letter's id
    created_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))


class Profile(Base):
    __tablename__ = "razworks_profiles"
    user_id: Mapped[str] = mapped_column(ForeignKey("razworks_users.id"), primary_key=True)
    points: Mapped[int] = mapped_column(Integer)


class Reward(Base):
    __tablename__ = "razworks_rewards"
    project_id: Mapped[str] = mapped_column(String(32), primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("razworks_users.id"))
    points: Mapped[int] = mapped_column(Integer)


class Wallet(Base):
    __tablename__ = "razworks_wallets"
    user_id: Mapped[str] = mapped_column(ForeignKey("razworks_users.id"), primary_key=True)
    coins: Mapped[int] = mapped_column(Integer)


class Project(Base):
    __tablename__ = "razworks_projects"
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("razworks_users.id"), index=True)
    title: Mapped[str] = mapped_column(String(200))
    text: Mapped[str] = mapped_column(Text)
    words: Mapped[list[str] | None] = mapped_column(JSON)
    published_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))


class Recording(Base):
    __tablename__ = "razworks_recordings"
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("razworks_users.id"), index=True)
    storage_url: Mapped[str] = mapped_column(String(2000))
    media_type: Mapped[str] = mapped_column(String(100))
    flow_id: Mapped[str | None] = mapped_column(String(32))
    transcript: Mapped[str | None] = mapped_column(Text)
    mentions: Mapped[list[str] | None] = mapped_column(JSON)
    intent: Mapped[str | None] = mapped_column(String(40))
    summary: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    understood_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))


Status: TypeAlias = Literal["pending", "understood", "failed"]


class Records:
    """The questions that workers, the API and the panel ask."""

    def __init__(self, relevo: Relevo) -> None:
        self._relevo = relevo

    async def person(self, id: str) -> User | None:
        return await self._one(User, id)

    async def recording(self, id: str) -> Recording | None:
        return await self._one(Recording, id)

    async def status(self, recording: Recording) -> Status:
        """Whether it is understood, or will never be unless a person helps."""
        if recording.understood_at is not None:
            return "understood"
        try:
            flow = await self._relevo.desk.flow(recording.flow_id or "")
        except NotFoundError:  # on its way to the store
            return "pending"
        return "failed" if flow.state in (State.DEAD, State.CANCELLED) else "pending"

    async def standing(self, id: str) -> dict[str, Any] | None:
        """A person with what came of registering."""
        async with self._relevo.transaction() as tx:
            user = await tx.get(User, id)
            if user is None:
                return None
            profile, wallet = await tx.get(Profile, id), await tx.get(Wallet, id)
            return {
                "id": user.id,
                "name": user.name,
                "points": None if profile is None else profile.points,
                "coins": None if wallet is None else wallet.coins,
                "welcomed": user.welcomed is not None,
            }

    async def people(self, limit: int = 50) -> list[dict[str, Any]]:
        async with self._relevo.transaction() as tx:
            rows = await tx.execute(
                select(User, Profile.points, Wallet.coins)
                .outerjoin(Profile, Profile.user_id == User.id)
                .outerjoin(Wallet, Wallet.user_id == User.id)
                .order_by(User.id.desc())
                .limit(limit)
            )
            return [
                {
                    "id": user.id,
                    "name": user.name,
                    "points": points,
                    "coins": coins,
                    "welcomed": user.welcomed is not None,
                    "created_at": user.created_at,
                }
                for user, points, coins in rows
            ]

    async def recordings(self, limit: int = 50) -> list[Recording]:
        async with self._relevo.transaction() as tx:
            found = await tx.scalars(select(Recording).order_by(Recording.id.desc()).limit(limit))
            return list(found)

    async def _one(self, table: Any, id: str) -> Any:
        async with self._relevo.transaction() as tx:
            return await tx.get(table, id)


@asynccontextmanager
async def open_records(relevo: Relevo) -> AsyncGenerator[Records]:
    yield Records(relevo)


# What is written, always in somebody's transaction


async def add_user(tx: AsyncSession, email: str, name: str, password: str) -> str | None:
    """A new person's id; None when the address is taken."""
    id = new_id()
    user = {
        "id": id,
        "email": email.lower(),
        "name": name,
        "password": scrypt(password),
        "created_at": datetime.now(UTC),
    }
    return id if await add_row(tx, User, user) else None


async def add_profile(tx: AsyncSession, user_id: str, points: int) -> None:
    await add_row(tx, Profile, {"user_id": user_id, "points": points})


async def add_wallet(tx: AsyncSession, user_id: str, coins: int) -> None:
    await add_row(tx, Wallet, {"user_id": user_id, "coins": coins})


async def add_points(tx: AsyncSession, user_id: str, points: int, project_id: str) -> None:
    """Once for each project, whoever asks how often."""
    reward = {"project_id": project_id, "user_id": user_id, "points": points}
    if await add_row(tx, Reward, reward):
        await add_row(tx, Profile, {"user_id": user_id, "points": 0})
        await tx.execute(
            update(Profile).where(Profile.user_id == user_id).values(points=Profile.points + points)
        )


async def add_project(tx: AsyncSession, user_id: str, title: str, text: str) -> str:
    id = new_id()
    moment = datetime.now(UTC)
    tx.add(Project(id=id, user_id=user_id, title=title, text=text, published_at=moment))
    return id


async def index_project(tx: AsyncSession, project_id: str) -> None:
    project = await tx.get(Project, project_id)
    if project is not None:
        words = {word.lower() for word in f"{project.title} {project.text}".split()}
        project.words = sorted(word for word in words if word.isalpha())[:500]


async def add_recording(tx: AsyncSession, user_id: str, storage_url: str, media_type: str) -> str:
    id = new_id()
    tx.add(
        Recording(
            id=id,
            user_id=user_id,
            storage_url=storage_url,
            media_type=media_type,
            created_at=datetime.now(UTC),
        )
    )
    await tx.flush()
    return id


async def follow(tx: AsyncSession, recording_id: str, flow_id: str) -> None:
    await tx.execute(update(Recording).where(Recording.id == recording_id).values(flow_id=flow_id))


async def understood(
    tx: AsyncSession,
    recording_id: str,
    *,
    transcript: str,
    mentions: list[str],
    intent: str | None,
    summary: str,
) -> None:
    await tx.execute(
        update(Recording)
        .where(Recording.id == recording_id)
        .values(
            transcript=transcript,
            mentions=mentions,
            intent=intent,
            summary=summary,
            understood_at=datetime.now(UTC),
        )
    )


async def welcomed(tx: AsyncSession, user_id: str, message: str) -> None:
    await tx.execute(update(User).where(User.id == user_id).values(welcomed=message))


def scrypt(password: str) -> str:
    salt = secrets.token_bytes(16)
    made = hashlib.scrypt(password.encode(), salt=salt, n=2**14, r=8, p=1)
    return f"{salt.hex()}${made.hex()}"
