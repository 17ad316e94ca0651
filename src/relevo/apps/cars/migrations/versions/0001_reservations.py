"""Reservations, their history, the outbox and its dead letters, the calls of suppliers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    moment = sa.DateTime(timezone=True)
    op.create_table(
        "reservations",
        sa.Column("code", sa.String(20), primary_key=True),
        sa.Column("supplier_id", sa.Integer, nullable=False),
        sa.Column("status", sa.String(12), nullable=False, index=True),
        sa.Column("pickup_datetime", sa.DateTime, nullable=False),
        sa.Column("dropoff_datetime", sa.DateTime, nullable=False),
        sa.Column("pickup_location", sa.String(40), nullable=False),
        sa.Column("dropoff_location", sa.String(40), nullable=False),
        sa.Column("first_name", sa.String(100), nullable=False),
        sa.Column("last_name", sa.String(100), nullable=False),
        sa.Column("email", sa.String(254), nullable=False),
        sa.Column("phone", sa.String(32), nullable=False),
        sa.Column("birth_date", sa.Date, nullable=False),
        sa.Column("flight", sa.String(12), nullable=False),
        sa.Column("amount", sa.BigInteger, nullable=False),
        sa.Column("currency", sa.String(3), nullable=False),
        sa.Column("supplier_specific_data", sa.JSON, nullable=False),
        sa.Column("payment_intent", sa.String(100), unique=True),
        sa.Column("payment_attempt", sa.Integer, nullable=False),
        sa.Column("supplier_reservation_code", sa.String(64), index=True),
        sa.Column("created_at", moment, nullable=False, index=True),
        sa.Column("updated_at", moment, nullable=False),
        sa.Column("paid_at", moment),
        sa.Column("confirmed_at", moment),
    )
    op.create_table(
        "reservation_history",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("reservation_code", sa.String(20), nullable=False, index=True),
        sa.Column("at", moment, nullable=False),
        sa.Column("what", sa.String(40), nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
    )
    op.create_table(
        "outbox_events",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("event_type", sa.String(40), nullable=False),
        sa.Column("reservation_code", sa.String(20), nullable=False, index=True),
        sa.Column("payload", sa.JSON, nullable=False),
        sa.Column("status", sa.String(12), nullable=False, index=True),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("next_attempt_at", moment),
        sa.Column("locked_by", sa.String(200)),
        sa.Column("locked_at", moment),
        sa.Column("last_error", sa.Text),
        sa.Column("created_at", moment, nullable=False),
        sa.Column("updated_at", moment, nullable=False),
    )
    op.create_table(
        "outbox_dead_letters",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("event_type", sa.String(40), nullable=False),
        sa.Column("reservation_code", sa.String(20), nullable=False, index=True),
        sa.Column("payload", sa.JSON, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("created_at", moment, nullable=False),
        sa.Column("dead_at", moment, nullable=False),
    )
    op.create_table(
        "supplier_requests",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("reservation_code", sa.String(20), nullable=False, index=True),
        sa.Column("supplier_id", sa.Integer, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("verb", sa.String(8), nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
        sa.Column("milliseconds", sa.Integer, nullable=False),
        sa.Column("at", moment, nullable=False),
    )


def downgrade() -> None:
    for table in (
        "supplier_requests",
        "outbox_dead_letters",
        "outbox_events",
        "reservation_history",
        "reservations",
    ):
        op.drop_table(table)
