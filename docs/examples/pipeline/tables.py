"""The pipeline's own tables."""

from sqlalchemy import ForeignKey
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    """The pipeline's models."""


class Run(Base):
    """One attempt to evaluate a round: `waiting`, `running`, `finished` or `failed`."""

    __tablename__ = "run"

    id: Mapped[int] = mapped_column(primary_key=True)
    round: Mapped[int]
    status: Mapped[str] = mapped_column(default="waiting")
    failure: Mapped[str | None]


class Score(Base):
    """What a run found for one band of a round; the newest run's stands."""

    __tablename__ = "score"

    round: Mapped[int] = mapped_column(primary_key=True)
    band: Mapped[int] = mapped_column(primary_key=True)
    value: Mapped[float]
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id"))
