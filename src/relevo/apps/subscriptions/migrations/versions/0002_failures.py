"""When a failure was ordered again, and when its integration succeeded after all."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
readable_from = "0001"


def upgrade() -> None:
    for name in ("retried_at", "closed_at"):
        op.add_column("stripe_job_failures", sa.Column(name, sa.DateTime(timezone=True)))


def downgrade() -> None:
    for name in ("retried_at", "closed_at"):
        op.drop_column("stripe_job_failures", name)
