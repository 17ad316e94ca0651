"""People, categories, expenses, the messages that had their effect, and our replies."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "expense_users",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("user_id", sa.String(160), unique=True),
        sa.Column("wa_id", sa.String(20), unique=True),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("country", sa.String(2), nullable=False),
        sa.Column("language", sa.String(2), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
    )
    op.create_table(
        "expense_categories",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("slug", sa.String(40), nullable=False, unique=True),
    )
    op.create_table(
        "expenses",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("user", sa.String(32), sa.ForeignKey("expense_users.id"), nullable=False),
        sa.Column("category", sa.Integer, sa.ForeignKey("expense_categories.id"), nullable=False),
        sa.Column("message_id", sa.String(255), nullable=False, unique=True),
        sa.Column("cents", sa.BigInteger, nullable=False),
        sa.Column("currency", sa.String(3), nullable=False),
        sa.Column("description", sa.String(200), nullable=False),
        sa.Column("spent_on", sa.Date, nullable=False),
        sa.Column("read_by", sa.String(10), nullable=False),
        sa.Column("sent_at", MOMENT, nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("deleted_at", MOMENT),
    )
    op.create_index("expenses_by_day", "expenses", ["user", "spent_on"])
    op.create_table(
        "processed_messages",
        sa.Column("message_id", sa.String(255), primary_key=True),
        sa.Column("kind", sa.String(40), nullable=False),
        sa.Column("outcome", sa.String(20), nullable=False),
        sa.Column("processed_at", MOMENT, nullable=False),
    )
    op.create_table(
        "expense_replies",
        sa.Column("id", sa.String(255), primary_key=True),
        sa.Column("phone_number_id", sa.String(20), nullable=False),
        sa.Column("recipient", sa.String(160), nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("tried_at", MOMENT),
        sa.Column("wamid", sa.String(255)),
        sa.Column("status", sa.String(20)),
        sa.Column("error", sa.String(20)),
    )


def downgrade() -> None:
    for table in (
        "expense_replies",
        "processed_messages",
        "expenses",
        "expense_categories",
        "expense_users",
    ):
        op.drop_table(table)
