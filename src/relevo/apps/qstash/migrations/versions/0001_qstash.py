"""Messages and their events, queues, groups, schedules, deduplication, keys, flow control."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

NAME = sa.String(256)
ID = sa.String(40)


def upgrade() -> None:
    op.create_table(
        "qstash_messages",
        sa.Column("id", ID, primary_key=True),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("wish", sa.LargeBinary, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("retried", sa.Integer, nullable=False),
        sa.Column("not_before", sa.BigInteger, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("finished_at", sa.BigInteger),
        sa.Column("topic", NAME),
        sa.Column("endpoint", NAME),
        sa.Column("queue", NAME),
        sa.Column("schedule_id", NAME),
        sa.Column("label", sa.String(512)),
        sa.Column("flow_key", NAME),
        sa.Column("caller_ip", sa.String(64)),
        sa.Column("dlq_id", ID, unique=True),
        sa.Column("response_status", sa.Integer),
        sa.Column("response_headers", sa.LargeBinary),
        sa.Column("response_body", sa.LargeBinary),
    )
    op.create_index("qstash_messages_by_queue", "qstash_messages", ["queue", "state", "id"])
    op.create_index("qstash_messages_by_end", "qstash_messages", ["finished_at"])
    op.create_table(
        "qstash_events",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer, "sqlite"),
            primary_key=True,
            autoincrement=True,
        ),
        sa.Column("message_id", ID, nullable=False),
        sa.Column("time", sa.BigInteger, nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("error", sa.Text),
        sa.Column("next_delivery", sa.BigInteger),
        sa.Column("response_status", sa.Integer),
        sa.Column("response_body", sa.LargeBinary),
    )
    op.create_index("qstash_events_by_message", "qstash_events", ["message_id"])
    op.create_table(
        "qstash_queues",
        sa.Column("name", NAME, primary_key=True),
        sa.Column("parallelism", sa.Integer, nullable=False),
        sa.Column("paused", sa.Boolean, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("updated_at", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "qstash_groups",
        sa.Column("name", NAME, primary_key=True),
        sa.Column("endpoints", sa.LargeBinary, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("updated_at", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "qstash_schedules",
        sa.Column("id", NAME, primary_key=True),
        sa.Column("destination", sa.Text, nullable=False),
        sa.Column("cron", sa.String(200), nullable=False),
        sa.Column("wish", sa.LargeBinary, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("is_paused", sa.Boolean, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("last_at", sa.BigInteger),
        sa.Column("next_at", sa.BigInteger),
        sa.Column("last_messages", sa.LargeBinary),
        sa.Column("caller_ip", sa.String(64)),
    )
    op.create_table(
        "qstash_seen",
        sa.Column("hash", sa.String(64), primary_key=True),
        sa.Column("message_id", ID, nullable=False),
        sa.Column("until", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "qstash_keys",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("current", sa.String(200), nullable=False),
        sa.Column("next", sa.String(200), nullable=False),
    )
    op.create_table(
        "qstash_flows",
        sa.Column("key", NAME, primary_key=True),
        sa.Column("parallelism", sa.Integer, nullable=False),
        sa.Column("rate", sa.Integer, nullable=False),
        sa.Column("period", sa.Integer, nullable=False),
        sa.Column("is_paused", sa.Boolean, nullable=False),
        sa.Column("is_parallelism_pinned", sa.Boolean, nullable=False),
        sa.Column("is_rate_pinned", sa.Boolean, nullable=False),
        sa.Column("window_at", sa.BigInteger, nullable=False),
        sa.Column("window_count", sa.Integer, nullable=False),
    )
    op.create_table(
        "qstash_slots",
        sa.Column("message_id", ID, primary_key=True),
        sa.Column("key", NAME, nullable=False, index=True),
        sa.Column("until", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    for table in (
        "slots",
        "flows",
        "keys",
        "seen",
        "schedules",
        "groups",
        "queues",
        "events",
        "messages",
    ):
        op.drop_table(f"qstash_{table}")
