"""Answers as people and as programs read them, with the host's display names beside the ids."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from lockledger.cli.given import Given
from lockledger.cli.output import moment, print_json, print_table, safe
from lockledger.domain.errors import LockLedgerError
from lockledger.domain.holds import AuditEntry, Grant, Hold, HoldFacts, Page
from lockledger.ledger import LockLedger

T = TypeVar("T", Hold, AuditEntry)
C = TypeVar("C")
Names = Mapping[str, str | None]
Facts = dict[str, Any]

_NAMED = ("holder", "previous_holder", "actor")
_END = {"ended_at", "ended_by", "end_reason", "ended_by_actor"}
_LARGEST_PAGE = 1000


def named(given: Given, facts: Facts, names: Names) -> Facts:
    """The facts with `holder_name` and so on right behind the ids, where the host gives names; null for unknown ones."""
    if given.names_text is None:
        return facts
    beside: Facts = {}
    for fact, value in facts.items():
        beside[fact] = value
        if fact in _NAMED:
            beside[f"{fact}_name"] = None if value is None else names.get(value)
    return beside


def hold_facts(hold: HoldFacts) -> Facts:
    """A hold as JSON; its end only once it has one."""
    ended = isinstance(hold, Hold) and hold.ended_at is not None
    return hold.model_dump(mode="json", exclude=None if ended else _END)


def entry_facts(entry: AuditEntry) -> Facts:
    """An entry of the audit trail as JSON; the holds before and after it are live ones, without an end."""
    return entry.model_dump(mode="json", exclude={"before": _END, "after": _END})


def error_facts(given: Given, error: BaseException, text: str) -> Facts:
    """An error as JSON."""
    if not isinstance(error, LockLedgerError):
        return {"error": type(error).__name__, "message": text}
    facts: Facts = {"error": error.code, "message": text, "key": error.key}
    if error.current is not None:
        names = {error.current.holder: getattr(error, "holder_name", None)}
        facts["current"] = named(given, hold_facts(error.current), names)
    return facts


def print_hold(given: Given, ledger: LockLedger, hold: Hold | Grant, what: str) -> None:
    """One hold: as JSON, or as a sentence that begins with what happened to it."""
    names = ledger.display_names(_ids(hold_facts(hold)))
    if given.json:
        print_json(named(given, hold_facts(hold), names))
        return
    name = names.get(hold.holder)
    who = hold.holder if name is None else f"{hold.holder} ({name})"
    until = "without expiry" if hold.expires_at is None else f"until {moment(hold.expires_at)}"
    print(
        safe(
            f"{what}: {hold.key} held by {who} since {moment(hold.taken_at)} {until}, token {hold.token}"
        )
    )


def print_all(
    given: Given,
    ledger: LockLedger,
    pages: Iterable[Page[T, Any]],
    facts: Callable[[T], Facts],
    columns: Sequence[tuple[str, Callable[[Facts], str]]],
) -> None:
    """Every item of an answer, as JSON one a line, or as a table; a page at a time, however many there are."""
    rows = _named_rows(given, ledger, pages, facts)
    if given.json:
        for row in rows:
            print_json(row)
        return
    shown = [
        column for column in columns if given.names_text is not None or "NAME" not in column[0]
    ]
    print_table([title for title, _ in shown], ([cell(row) for _, cell in shown] for row in rows))


def pages(
    read: Callable[[C | None, int], Page[T, C]], after: C | None, limit: int | None
) -> Iterator[Page[T, C]]:
    """The pages of an answer, read as they are asked for, at most `limit` items in all."""
    left = limit
    while left is None or left > 0:
        page = read(after, _LARGEST_PAGE if left is None else min(left, _LARGEST_PAGE))
        yield page
        after = page.next_after
        if after is None:
            return
        left = None if left is None else left - len(page)


def text_of(fact: str) -> Callable[[Facts], str]:
    """A column with a fact as it is."""
    return lambda row: "-" if row[fact] is None else str(row[fact])


def moment_of(fact: str, otherwise: str = "-") -> Callable[[Facts], str]:
    """A column with an instant."""
    return lambda row: otherwise if row[fact] is None else moment(datetime.fromisoformat(row[fact]))


def _named_rows(
    given: Given, ledger: LockLedger, pages: Iterable[Page[T, Any]], facts: Callable[[T], Facts]
) -> Iterator[Facts]:
    for page in pages:
        rows = [facts(item) for item in page]
        names = (
            ledger.display_names({each for row in rows for each in _ids(row)})
            if given.names_text
            else {}
        )
        for row in rows:
            yield named(given, row, names)


def _ids(facts: Facts) -> list[str]:
    return [facts[fact] for fact in _NAMED if facts.get(fact) is not None]
