"""An event keeps every change that was told under its id."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
readable_from = "0001"  # older code leaves the new column to its default


def upgrade() -> None:
    op.add_column(
        "cm_events", sa.Column("changes", sa.JSON, nullable=False, server_default=sa.text("'{}'"))
    )


def downgrade() -> None:
    op.drop_column("cm_events", "changes")
