"""Checkpoints: what an auditor keeps elsewhere, and holds a ledger against later.

The chain of hashes cannot tell that a lock's newest events are gone, or a lock with all its events: nothing is left that
would be chained to them. A checkpoint is one hash over every event up to a position, and the position of each.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import pairwise
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    model_validator,
)
from sqlalchemy import Connection

from lockledger.adapters.failures import translated
from lockledger.adapters.merkle import Tree, root_of_subtrees
from lockledger.adapters.scans import Scans
from lockledger.adapters.snapshots import snapshot
from lockledger.adapters.store import EventStore
from lockledger.domain.faults import Fault
from lockledger.domain.holds import Instant

SUBTREE: Final = 1024
"""Leaves below each root that a checkpoint keeps, so that a difference can be placed; a power of two."""


def _digest(value: object) -> object:
    return bytes.fromhex(value) if isinstance(value, str) else value


Root = Annotated[
    bytes,
    BeforeValidator(_digest),
    PlainSerializer(bytes.hex, return_type=str),
    Field(min_length=32, max_length=32),
]
Position = Annotated[int, Field(ge=0, lt=2**63)]


class Subtree(BaseModel):
    """The root over the 1,024 events (the last one: up to as many) that end with the one at `position`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    position: Position
    root: Root


class Checkpoint(BaseModel):
    """A ledger up to a position, as one hash.

    `root` is the Merkle tree hash of RFC 6962 over all events up to `position` in position order. An event's leaf is its
    position, as 8 bytes big-endian, and its hash. `made_at` is when, by the clock of the ledger.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["lockledger.checkpoint.v1"] = "lockledger.checkpoint.v1"
    ledger: str
    position: Position
    count: Annotated[int, Field(ge=0)]
    root: Root
    made_at: Instant
    subtrees: tuple[Subtree, ...]

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if root_of_subtrees(each.root for each in self.subtrees) != self.root:
            raise ValueError(
                "its root does not follow from its subtrees: the checkpoint was changed"
            )
        positions = [0, *(each.position for each in self.subtrees)]
        in_order = all(one < other for one, other in pairwise(positions))
        if not in_order or positions[-1] != self.position:
            raise ValueError("its positions do not follow each other: the checkpoint was changed")
        if -(-self.count // SUBTREE) != len(self.subtrees):
            raise ValueError("its count does not fit its subtrees: the checkpoint was changed")
        return self

    def to_json(self) -> str:
        """The checkpoint as a file holds it: one JSON object, ending with a newline."""
        return self.model_dump_json(indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """What `to_json` wrote. Raises `ValueError` for anything else, and for one that was changed."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as fault:
            first = fault.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise ValueError(
                f"this is no checkpoint{f' ({where})' if where else ''}: {first['msg']}"
            ) from fault


def make_checkpoint(connection: Connection, store: EventStore, made_at: datetime) -> Checkpoint:
    """A checkpoint of everything settled, on a connection in AUTOCOMMIT; see `LockLedger.checkpoint`."""
    with translated():
        # Before the snapshot, or an event could settle that the snapshot does not see.
        upto = store.newest_settled(connection)
        with snapshot(connection):
            leaves = Scans(store, connection).leaves(upto)
            subtrees, count = list[Subtree](), 0
            tree = Tree()
            position = 0
            for position, event_hash in leaves:
                tree.add(leaf(position, event_hash))
                count += 1
                if tree.leaves == SUBTREE:
                    subtrees.append(Subtree(position=position, root=tree.root()))
                    tree = Tree()
            if tree.leaves:
                subtrees.append(Subtree(position=position, root=tree.root()))
    return Checkpoint(
        ledger=store.ledger,
        position=position,
        count=count,
        root=root_of_subtrees(each.root for each in subtrees),
        made_at=made_at,
        subtrees=tuple(subtrees),
    )


def leaf(position: int, event_hash: Any) -> bytes:
    """An event as a leaf of the tree; what is no hash, which SQLite may keep too, is left out."""
    return position.to_bytes(8, "big", signed=True) + (
        event_hash if isinstance(event_hash, bytes) else b""
    )


def departures(scans: Scans, checkpoint: Checkpoint) -> Iterator[Fault]:
    """Where the ledger is no more what it was at the checkpoint: one fault for each unbroken run of positions.

    Events belong to the subtree whose positions they lie in, so that one that is gone does not move all the others.
    """
    leaves = _Pushback(scans.leaves(checkpoint.position))
    run: list[tuple[int, int, int, int]] = []
    after, left = 0, checkpoint.count
    for subtree in checkpoint.subtrees:
        tree = Tree()
        for position, event_hash in leaves.upto(subtree.position):
            tree.add(leaf(position, event_hash))
        expected = min(SUBTREE, left)
        left -= expected
        if tree.root() != subtree.root:
            run.append((after + 1, subtree.position, expected, tree.leaves))
        elif run:
            yield _departure(run)
            run = []
        after = subtree.position
    if run:
        yield _departure(run)


def _departure(run: list[tuple[int, int, int, int]]) -> Fault:
    first, last = run[0][0], run[-1][1]
    expected, found = sum(each[2] for each in run), sum(each[3] for each in run)
    other = "others" if found == expected else f"{found} events"
    return Fault(
        kind="checkpoint",
        position=first,
        expected=f"the {expected} events that were at positions {first} to {last}",
        found=other,
    )


class _Pushback:
    """Leaves, taken by ranges of positions."""

    def __init__(self, leaves: Iterable[tuple[int, Any]]) -> None:
        self._leaves = iter(leaves)
        self._next = next(self._leaves, None)

    def upto(self, position: int) -> Iterator[tuple[int, Any]]:
        """Those up to a position that were not taken yet."""
        while (leaf := self._next) is not None and leaf[0] <= position:
            self._next = next(self._leaves, None)
            yield leaf
