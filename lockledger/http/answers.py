"""What clients get: the ledger's values, with the host's names of people beside their ids (null when unknown)."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Self

from pydantic import BaseModel

from lockledger.domain.holds import AuditEntry, EndedBy, Hold, HoldFacts, Instant, Metadata

NamesNow = Mapping[str, str | None]


class HoldAnswer(HoldFacts):
    """A live hold."""

    holder_name: str | None
    previous_holder_name: str | None

    @classmethod
    def of(cls, hold: HoldFacts, names: NamesNow) -> Self:
        """The hold, as far as this answer tells it."""
        facts = {fact: getattr(hold, fact) for fact in cls.model_fields if hasattr(hold, fact)}
        return cls.model_validate(facts | cls.people(hold, names))

    @classmethod
    def people(cls, hold: HoldFacts, names: NamesNow) -> dict[str, str | None]:
        """The names that belong beside its ids."""
        return {
            "holder_name": names.get(hold.holder),
            "previous_holder_name": _name(hold.taken_over_from, names),
        }


class GrantAnswer(HoldAnswer):
    """A live hold for who asked for it; `created`: this request began it."""

    created: bool


class PastHoldAnswer(HoldAnswer):
    """A hold with its end; all null of it while it is live."""

    ended_at: Instant | None
    ended_by: EndedBy | None
    end_reason: str | None
    ended_by_actor: str | None
    actor_name: str | None

    @classmethod
    def people(cls, hold: HoldFacts, names: NamesNow) -> dict[str, str | None]:
        """The names that belong beside its ids."""
        actor = hold.ended_by_actor if isinstance(hold, Hold) else None
        return super().people(hold, names) | {"actor_name": _name(actor, names)}


class AuditEntryAnswer(BaseModel):
    """One entry of the audit trail; `before` and `after` are the live hold on either side of it."""

    position: int
    key: str
    version: int
    action: str
    actor: str | None
    actor_name: str | None
    holder: str
    holder_name: str | None
    previous_holder: str | None
    previous_holder_name: str | None
    token: int
    occurred_at: Instant
    recorded_at: Instant
    reason: str | None
    before: HoldAnswer | None
    after: HoldAnswer | None
    metadata: Metadata
    event_hash: str

    @classmethod
    def of(cls, entry: AuditEntry, names: NamesNow) -> Self:
        """The entry."""
        told = {fact: getattr(entry, fact) for fact in AuditEntry.model_fields}
        sides = {
            side: None if told[side] is None else HoldAnswer.of(told[side], names)
            for side in ("before", "after")
        }
        people = {
            f"{role}_name": _name(told[role], names)
            for role in ("actor", "holder", "previous_holder")
        }
        return cls.model_validate(told | sides | people)


class HoldersPage(BaseModel):
    """Live holds, by key. `next_after` is the `after` of the next page; null at the end."""

    items: list[HoldAnswer]
    next_after: str | None


class HoldsPage(BaseModel):
    """Holds by key, then token. `next_after` is the `after` of the next page; null at the end."""

    items: list[PastHoldAnswer]
    next_after: str | None


class AuditPage(BaseModel):
    """Entries in position order. `next_after` is the `after` of the next page; null at the end."""

    items: list[AuditEntryAnswer]
    next_after: int | None


def people_in(values: Iterable[HoldFacts | AuditEntry]) -> set[str]:
    """The distinct ids of holders and actors that these values hold."""
    return {person for value in values for person in _people(value) if person is not None}


def _people(value: HoldFacts | AuditEntry) -> Iterator[str | None]:
    if isinstance(value, AuditEntry):
        yield from (value.actor, value.holder, value.previous_holder)
        for side in (value.before, value.after):
            yield None if side is None else side.taken_over_from
    else:
        yield from (value.holder, value.taken_over_from)
        yield value.ended_by_actor if isinstance(value, Hold) else None


def _name(person: str | None, names: NamesNow) -> str | None:
    return None if person is None else names.get(person)
