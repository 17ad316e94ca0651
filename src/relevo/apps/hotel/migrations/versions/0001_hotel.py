"""Reservations, events, messages, conversations, guests; and the board for those without Redis."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def _text(name: str, length: int = 300) -> sa.Column[str]:
    return sa.Column(name, sa.String(length), nullable=False, server_default="")


def _moment(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False, server_default="0")


def upgrade() -> None:
    op.create_table(
        "hotel_reservations",
        sa.Column("id", sa.String(300), primary_key=True),
        _text("hotel_id", 64),
        _text("booking_id"),
        _text("status", 20),
        _moment("modified_at"),
        _text("via", 20),
        _text("arrival", 10),
        _text("departure", 10),
        _text("channel", 64),
        _text("guest_name"),
        sa.Column("details", sa.JSON, nullable=False),
        _moment("created_at"),
        _moment("updated_at"),
    )
    op.create_index("hotel_reservations_newest", "hotel_reservations", ["hotel_id", "updated_at"])
    op.create_table(
        "cm_events",
        sa.Column("id", sa.String(400), primary_key=True),
        _text("hotel_id", 64),
        _text("event_id"),
        _text("event_type", 100),
        _text("booking_id"),
        _text("status", 20),
        _text("via", 20),
        _moment("received_at"),
    )
    op.create_index("cm_events_newest", "cm_events", ["hotel_id", "received_at"])
    op.create_table(
        "messages",
        sa.Column("id", sa.String(400), primary_key=True),
        _text("hotel_id", 64),
        _text("channel", 64),
        _text("message_id"),
        _text("conversation_id"),
        _text("guest_id"),
        _text("direction", 10),
        sa.Column("content", sa.Text, nullable=False),
        _moment("sent_at"),
        _moment("received_at"),
        _text("via", 20),
        _text("booking_id"),
        _text("author", 100),
        _text("job", 32),
    )
    op.create_index(
        "messages_of_conversation", "messages", ["hotel_id", "conversation_id", "sent_at"]
    )
    op.create_table(
        "conversations",
        sa.Column("id", sa.String(300), primary_key=True),
        _text("hotel_id", 64),
        _text("conversation_id"),
        _text("channel", 64),
        _text("guest_id"),
        _text("guest_name"),
        _text("booking_id"),
        _text("via", 20),
        _text("mode", 20),
        _text("last_text", 200),
        _text("last_direction", 10),
        _moment("last_at"),
        _moment("created_at"),
    )
    op.create_index("conversations_newest", "conversations", ["hotel_id", "last_at"])
    op.create_table(
        "guests",
        sa.Column("id", sa.String(300), primary_key=True),
        _text("hotel_id", 64),
        _text("guest_id"),
        _text("name"),
        _moment("last_seen_at"),
    )
    op.create_table(
        "cm_lists",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        sa.Column("list", sa.String(120), nullable=False),
        sa.Column("entry", sa.LargeBinary, nullable=False),
        _text("reason", 500),
        _moment("at"),
    )
    op.create_index("cm_lists_order", "cm_lists", ["list", "id"])
    op.create_table(
        "cm_keys",
        sa.Column("name", sa.String(400), primary_key=True),
        sa.Column("value", sa.String(400), nullable=False),
        sa.Column("expires_at", sa.BigInteger, nullable=True),
    )


def downgrade() -> None:
    for table in (
        "cm_keys",
        "cm_lists",
        "guests",
        "conversations",
        "messages",
        "cm_events",
        "hotel_reservations",
    ):
        op.drop_table(table)
