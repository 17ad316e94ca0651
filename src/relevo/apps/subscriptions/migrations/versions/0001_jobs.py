"""Jobs with their three flags, and what failed for good."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "stripe_jobs",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("event_id", sa.String(255), nullable=False, unique=True),
        sa.Column("subscription_id", sa.String(255), nullable=False),
        sa.Column("email", sa.String(254), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("plan", sa.String(200), nullable=False),
        sa.Column("amount", sa.BigInteger, nullable=False),
        sa.Column("currency", sa.String(3), nullable=False),
        *(
            sa.Column(flag, sa.Boolean, nullable=False, server_default=sa.false())
            for flag in ("email_sent", "list_added", "list_skipped", "spreadsheet_saved")
        ),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_table(
        "stripe_job_failures",
        sa.Column("stream", sa.String(100), primary_key=True),
        sa.Column("entry_id", sa.String(64), primary_key=True),
        sa.Column("job_id", sa.String(255), nullable=False, index=True),
        sa.Column("error", sa.Text, nullable=False),
        sa.Column("deliveries", sa.Integer, nullable=False),
        sa.Column("failed_at", sa.DateTime(timezone=True), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("stripe_job_failures")
    op.drop_table("stripe_jobs")
