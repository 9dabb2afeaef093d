"""The service's own tables."""

from datetime import datetime

from sqlalchemy import DateTime, ForeignKey
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    """The service's models."""


class User(Base):
    """Who works here. Names change; the id does not."""

    __tablename__ = "user_account"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    group: Mapped[str]
    is_admin: Mapped[bool] = mapped_column(default=False)


class Version(Base):
    """A consolidation version: `open`, `submitted` or `cancelled`. Its group sees it, and administrators do."""

    __tablename__ = "version"

    id: Mapped[int] = mapped_column(primary_key=True)
    group: Mapped[str]
    status: Mapped[str] = mapped_column(default="open")
    figures: Mapped[str] = mapped_column(default="")


class Note(Base):
    """What somebody wrote beside a version."""

    __tablename__ = "note"

    id: Mapped[int] = mapped_column(primary_key=True)
    version_id: Mapped[int] = mapped_column(ForeignKey("version.id"))
    author: Mapped[str]
    text: Mapped[str]


class AuditRow(Base):
    """The service's own audit: who did what, from what to what, and why. Ids, no names."""

    __tablename__ = "audit_row"

    id: Mapped[int] = mapped_column(primary_key=True)
    version_id: Mapped[int] = mapped_column(ForeignKey("version.id"))
    at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    actor: Mapped[str | None]
    action: Mapped[str]
    before: Mapped[str | None]
    after: Mapped[str | None]
    comment: Mapped[str | None]
