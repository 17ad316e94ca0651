"""People, their profiles and wallets, projects, and recordings with what was understood of them."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def _user(**options: Any) -> sa.Column[str]:
    user = sa.ForeignKey("razworks_users.id")
    return sa.Column("user_id", sa.String(32), user, nullable=False, **options)


def upgrade() -> None:
    moment = sa.DateTime(timezone=True)
    op.create_table(
        "razworks_users",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("email", sa.String(254), nullable=False, unique=True),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("password", sa.String(200), nullable=False),
        sa.Column("welcomed", sa.String(200)),
        sa.Column("created_at", moment, nullable=False),
    )
    op.create_table(
        "razworks_profiles",
        _user(primary_key=True),
        sa.Column("points", sa.Integer, nullable=False),
    )
    op.create_table(
        "razworks_wallets",
        _user(primary_key=True),
        sa.Column("coins", sa.Integer, nullable=False),
    )
    op.create_table(
        "razworks_rewards",
        sa.Column("project_id", sa.String(32), primary_key=True),
        _user(),
        sa.Column("points", sa.Integer, nullable=False),
    )
    op.create_table(
        "razworks_projects",
        sa.Column("id", sa.String(32), primary_key=True),
        _user(index=True),
        sa.Column("title", sa.String(200), nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("words", sa.JSON),
        sa.Column("published_at", moment, nullable=False),
    )
    op.create_table(
        "razworks_recordings",
        sa.Column("id", sa.String(32), primary_key=True),
        _user(index=True),
        sa.Column("storage_url", sa.String(2000), nullable=False),
        sa.Column("media_type", sa.String(100), nullable=False),
        sa.Column("flow_id", sa.String(32)),
        sa.Column("transcript", sa.Text),
        sa.Column("mentions", sa.JSON),
        sa.Column("intent", sa.String(40)),
        sa.Column("summary", sa.Text),
        sa.Column("created_at", moment, nullable=False),
        sa.Column("understood_at", moment),
    )


def downgrade() -> None:
    for table in ("recordings", "projects", "rewards", "wallets", "profiles", "users"):
        op.drop_table(f"razworks_{table}")
