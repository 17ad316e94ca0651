"""A message may hold several expenses, each at its place; people may be asked for the whole."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

NAMES = {"uq": "%(table_name)s_%(column_0_name)s_key"}  # as PostgreSQL calls them by itself
ONE = "expenses_message_id_key"
PLACE = "expenses_message_id_position_key"


def upgrade() -> None:
    op.add_column("expense_users", sa.Column("asked_at", sa.DateTime(timezone=True)))
    with op.batch_alter_table("expenses", naming_convention=NAMES) as table:
        table.add_column(sa.Column("position", sa.Integer, nullable=False, server_default="0"))
        table.drop_constraint(ONE, type_="unique")
        table.create_unique_constraint(PLACE, ["message_id", "position"])


def downgrade() -> None:
    op.execute("delete from expenses where position > 0")
    with op.batch_alter_table("expenses", naming_convention=NAMES) as table:
        table.drop_constraint(PLACE, type_="unique")
        table.drop_column("position")
        table.create_unique_constraint(ONE, ["message_id"])
    op.drop_column("expense_users", "asked_at")
