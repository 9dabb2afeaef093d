"""Command logs: what is counted, what stops one, and how to go on."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lockledger.cli.command_log import MAX_LINE_BYTES
from support.ledgers import Ledgers

COUNTS = (
    "LockTaken",
    "LockTakenOver",
    "LockReleased",
    "LockExpired",
    "LockExtended",
    "unchanged",
    "refused",
)
TAKE = {"at": "2024-05-14T08:00:00+00:00", "do": "take", "key": "k", "holder": "a"}


def counts(**some: int) -> dict[str, int]:
    return dict.fromkeys(COUNTS, 0) | some


def line(**fields: Any) -> dict[str, Any]:
    """A take by `a` at eight, unless fields say otherwise; a field that is `...` is left out."""
    return {name: value for name, value in (TAKE | fields).items() if value is not ...}


def at(minute: int, **fields: Any) -> dict[str, Any]:
    return line(at=f"2024-05-14T08:{minute:02}:00+00:00", **fields)


def written(path: Path, *lines: Any) -> str:
    """A log of these lines; bytes are written as they are."""
    encoded = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in lines]
    path.write_bytes(b"".join(each + b"\n" for each in encoded))
    return str(path)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log.jsonl"


EVERYTHING = (
    at(0),
    at(1),
    at(2, holder="b"),
    at(3, holder="b", reason=" urgent "),
    at(4, do="release", holder="b", reason="done"),
    at(5, do="release", holder="b"),
    at(6, ttl=60),
    at(6, do="extend", ttl=90),
    at(6, do="extend", ttl=1),
    at(6, do="extend", holder="b", ttl=60),
    at(10, holder="b", ttl=None, reason=None),
    at(11, do="force_release", holder="boss", reason="lunch"),
    at(12, do="force_release", holder="boss", reason="lunch"),
    at(13, do="release", key="other"),
    at(14, do="extend", ttl=5),
)
COUNTED = counts(
    LockTaken=3,
    LockTakenOver=1,
    LockReleased=2,
    LockExpired=1,
    LockExtended=1,
    unchanged=5,
    refused=3,
)


def test_every_kind_of_command_is_carried_out_at_its_own_time_and_counted(
    cli: Any, log: Path
) -> None:
    ran = cli("apply", written(log, *EVERYTHING), "--json")
    assert (ran.code, ran.json) == (0, COUNTED)
    assert tuple(ran.json) == COUNTS
    history = cli("history", "k", "--extensions", "--json").lines
    assert [(each["occurred_at"][14:16], each["action"], each["actor"]) for each in history] == [
        ("00", "LockTaken", "a"),
        ("03", "LockTakenOver", "b"),
        ("04", "LockReleased", "b"),
        ("06", "LockTaken", "a"),
        ("06", "LockExtended", "a"),
        ("07", "LockExpired", None),
        ("10", "LockTaken", "b"),
        ("11", "LockReleased", "boss"),
    ]
    assert history[1]["reason"] == "urgent"
    assert history[5]["occurred_at"] == "2024-05-14T08:07:30Z"
    assert history[5]["recorded_at"] == "2024-05-14T08:10:00Z"


def test_the_summary_for_people_is_a_table(cli: Any, log: Path) -> None:
    ran = cli("apply", written(log, *EVERYTHING))
    assert ran.out.split() == [
        word for name, count in COUNTED.items() for word in (name, str(count))
    ]
    assert ran.err.startswith("lockledger: 15 commands in ")
    assert "\r" not in ran.err


def test_the_reason_of_an_extension_is_kept_as_metadata(cli: Any, log: Path) -> None:
    cli.done(
        "apply", written(log, at(0, ttl=60), at(0, do="extend", ttl=600, reason="not done yet"))
    )
    assert cli("audit", "--action", "LockExtended", "--json").json["metadata"] == {
        "reason": "not done yet"
    }


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("standard_input", [False, True])
def test_a_log_may_be_packed_and_may_come_on_standard_input(
    cli: Any, log: Path, packed: bool, standard_input: bool
) -> None:
    written(log, *EVERYTHING)
    content = gzip.compress(log.read_bytes()) if packed else log.read_bytes()
    log.write_bytes(content)
    ran = (
        cli("apply", "-", "--json", stdin=content)
        if standard_input
        else cli("apply", str(log), "--json")
    )
    assert (ran.code, ran.json) == (0, COUNTED)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n  \r\n\t\n",
        gzip.compress(b""),
    ],
    ids=["empty", "blank lines", "packed"],
)
def test_a_log_without_commands_is_done(cli: Any, log: Path, content: bytes) -> None:
    log.write_bytes(content)
    ran = cli("apply", str(log), "--json")
    assert (ran.code, ran.json) == (0, counts())


def test_a_byte_order_mark_blank_lines_and_other_line_ends_do_no_harm(cli: Any, log: Path) -> None:
    first, second = json.dumps(at(0)), json.dumps(at(1, key="k2"))
    log.write_bytes(f"\ufeff{first}\r\n\r\n{second}".encode())
    assert cli("apply", str(log), "--json").json == counts(LockTaken=2)


BAD_LINES = [
    (b"{", "line 2 is no JSON: "),
    (b'{"at": "2024-05-14T08:00', "line 2 is no JSON: "),
    (b"null", "line 2 is no JSON object"),
    (b"[]", "line 2 is no JSON object"),
    (b"[" * 60_000, "line 2 is no JSON: it is nested too deeply"),
    (b"\xff\xfe", "line 2 is not UTF-8 at byte 1"),
    (b'{"key": "\xc3(', "line 2 is not UTF-8 at byte 10"),
    (b"\0" * 10, "line 2 is no JSON"),
    (b" " * (MAX_LINE_BYTES + 1), f"line 2 has more than {MAX_LINE_BYTES} bytes"),
    (
        json.dumps(line(reason="x" * MAX_LINE_BYTES)).encode(),
        f"line 2 has more than {MAX_LINE_BYTES} bytes",
    ),
    (b'{"do": "take", "do": "release"}', "line 2 is no JSON: it says 'do' twice"),
    (line(at=...), "line 2 has no 'at'"),
    (line(do=...), "line 2 has no 'do'"),
    (line(key=...), "line 2 has no 'key'"),
    (line(holder=...), "line 2 has no 'holder'"),
    (line(at=1347), "line 2 has 1347 as 'at'; it must be a text"),
    (line(at=None), "line 2 has None as 'at'"),
    (line(do=["take"]), "line 2 has ['take'] as 'do'"),
    (line(key=7), "line 2 has 7 as 'key'"),
    (line(holder={"id": 7}), "line 2 has {'id': 7} as 'holder'"),
    (
        line(do="steal"),
        "line 2 has 'steal' as 'do'; it is one of take, release, force_release, extend",
    ),
    (line(do="Take"), "line 2 has 'Take' as 'do'"),
    (line(colour="red"), "line 2 has the unknown field 'colour'"),
    (line(reason=7), "line 2 has 7 as 'reason'"),
    (line(ttl="60"), "line 2 has '60' as 'ttl'; it must be a number of seconds"),
    (line(ttl=True), "line 2 has True as 'ttl'"),
    (line(ttl=[1]), "line 2 has [1] as 'ttl'"),
    (line(ttl=0), "line 2 cannot be carried out: a ttl of 0 seconds"),
    (line(ttl=-1), "line 2 cannot be carried out: a ttl of -1 seconds"),
    (line(ttl=10**12), "at most 100 years"),
    (
        json.dumps(line(ttl=7)).replace("7}", "1e999}").encode(),
        "line 2 cannot be carried out: a ttl of inf",
    ),
    (json.dumps(line(ttl=7)).replace("7}", "NaN}").encode(), "line 2 is no JSON: NaN is no JSON"),
    (
        json.dumps(line(ttl=7)).replace("7}", "9" * 5000 + "}").encode(),
        "a number in it has too many digits; write it as a text",
    ),
    (line(do="release", ttl=7), "line 2 has a ttl, which a release cannot use"),
    (line(do="extend"), "line 2 cannot be carried out: an extension needs a ttl"),
    (line(do="force_release"), "line 2 cannot be carried out: a reason is mandatory"),
    (line(do="force_release", reason=" "), "line 2 cannot be carried out: a reason is mandatory"),
    (line(key=""), "line 2 cannot be carried out: the key '' is empty"),
    (line(key="k" * 256), "at most 255"),
    (line(key="e\u0301"), "normal form C"),
    (line(holder=" a"), "surrounded by white space"),
    (line(holder="\ud800"), "line 2 cannot be carried out: the holder"),
    (line(reason="x" * 2001), "at most 2000"),
    (line(reason="\x07"), "only newline and tab"),
    (
        line(at="2024-05-14T08:00:00"),
        "line 2 has the time '2024-05-14T08:00:00' without a time zone",
    ),
    (line(at="2024-05-14"), "line 2 has the time '2024-05-14' without a time zone"),
    (line(at="eight"), "line 2 has 'eight' as 'at'; write it as"),
    (line(at="2024-02-30T08:00:00Z"), "line 2 has '2024-02-30T08:00:00Z' as 'at'"),
    (line(at="0001-01-01T00:00:00+23:00"), "line 2 has '0001-01-01T00:00:00+23:00' as 'at'"),
    (
        line(at="2024-05-14T07:59:59.999999+00:00"),
        "line 2 is from 2024-05-14T07:59:59.999999+00:00, earlier than line 1",
    ),
    (line(at="2024-05-14T09:00:00+01:30"), "earlier than line 1 (2024-05-14T08:00:00+00:00)"),
    (line(at="9999-12-31T00:00:00Z"), "line 2 is from 9999-12-31T00:00:00+00:00, but it is "),
    (line(at=(datetime.now(UTC) + timedelta(days=2)).isoformat()), "on this machine"),
]


@pytest.mark.parametrize(
    ("bad", "said"), BAD_LINES, ids=[str(number) for number in range(len(BAD_LINES))]
)
def test_a_bad_line_stops_it_with_its_number_and_what_came_before_stays(
    cli: Any, log: Path, bad: Any, said: str
) -> None:
    ran = cli("apply", written(log, TAKE, bad, at(5, key="later")), "--json")
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert "--from-line 2" in ran.err
    assert ran.err.count("\n") == 1
    assert [each["key"] for each in cli("audit", "--json").lines] == ["k"]


def test_a_repaired_log_goes_on_exactly_where_it_stopped(cli: Any, log: Path) -> None:
    broken: list[Any] = list(EVERYTHING)
    broken[6] = b'{"at": "2024-05-14T08:06'
    stopped = cli("apply", written(log, *broken))
    assert stopped.code == 2
    assert "line 7 is no JSON" in stopped.err
    ran = cli("apply", written(log, *EVERYTHING), "--from-line", "7", "--json")
    assert ran.json == counts(
        LockTaken=2, LockReleased=1, LockExpired=1, LockExtended=1, unchanged=3, refused=2
    )
    assert len(cli("history", "k", "--extensions", "--json").lines) == 8


def test_lines_before_the_first_are_not_looked_at_but_for_the_time_of_the_last(
    cli: Any, log: Path
) -> None:
    written(log, b"rubbish", at(30), b"rubbish", at(20))
    assert cli("apply", str(log), "--from-line", "4", "--json").json == counts(LockTaken=1)
    written(log, b"rubbish", at(30), at(20))
    ran = cli("apply", str(log), "--from-line", "3")
    assert (
        ran.code,
        "line 3 is from 2024-05-14T08:20:00+00:00, earlier than line 2" in ran.err,
    ) == (2, True)


def test_going_on_after_the_end_has_nothing_to_do_and_beyond_it_is_bad_input(
    cli: Any, log: Path
) -> None:
    written(log, TAKE, at(1))
    assert cli("apply", str(log), "--from-line", "3", "--json").json == counts()
    ran = cli("apply", str(log), "--from-line", "4")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == f"lockledger: --from-line 4: {log} has 2 lines; nothing was done\n"
    assert cli("apply", str(log), "--from-line", "0").code == 2
    assert cli("audit").out == ""


def test_a_log_that_is_applied_twice_repeats_safely(cli: Any, ledgers: Ledgers, log: Path) -> None:
    written(log, at(0), at(1, key="k2", ttl=600))
    cli.done("apply", str(log))
    before = ledgers.rows()
    assert cli("apply", str(log), "--json").json == counts(unchanged=2)
    assert ledgers.rows() == before


def test_a_cut_gzip_file_is_a_bad_line_and_what_came_before_stays(cli: Any, log: Path) -> None:
    lines = b"".join(json.dumps(at(0, key=f"k{n}")).encode() + b"\n" for n in range(500))
    packed = gzip.compress(lines)
    log.write_bytes(packed[: len(packed) // 2])
    ran = cli("apply", str(log))
    assert ran.code == 2
    number = int(ran.err.split("line ")[1].split()[0])
    assert f"line {number} is cut off: the gzip file ends in the middle" in ran.err
    done = [each["key"] for each in cli("audit", "--json").lines]
    assert done == [f"k{n}" for n in range(number - 1)]
    log.write_bytes(packed)
    ran = cli("apply", str(log), "--from-line", str(number), "--json")
    assert ran.json == counts(LockTaken=500 - number + 1)


def test_a_damaged_gzip_file_is_a_bad_line(cli: Any, log: Path) -> None:
    packed = bytearray(
        gzip.compress(b"".join(json.dumps(at(0, key=f"k{n}")).encode() + b"\n" for n in range(500)))
    )
    packed[len(packed) // 2] ^= 0xFF
    log.write_bytes(packed)
    ran = cli("apply", str(log))
    assert ran.code == 2
    assert "--from-line" in ran.err


@pytest.mark.parametrize(
    ("name", "said"),
    [("missing.jsonl", "No such file"), (".", "Is a directory"), ("nul\0l", "cannot be opened")],
)
def test_a_log_that_cannot_be_opened_is_bad_input(cli: Any, name: str, said: str) -> None:
    ran = cli("apply", name)
    assert ran.code == 2
    assert said in ran.err


def test_a_database_without_tables_stops_it_before_the_first_line(
    lockledger: Any, empty_database: Any, log: Path
) -> None:
    lockledger.on(empty_database.url)
    ran = lockledger("apply", written(log, TAKE))
    assert ran.code == 4
    assert "run `lockledger migrate`" in ran.err


def test_a_ledger_that_was_tampered_with_stops_it(cli: Any, ledgers: Ledgers, log: Path) -> None:
    cli.done("apply", written(log, at(0), at(0, key="k2")))
    with ledgers.database.engine().begin() as connection:
        connection.exec_driver_sql(
            "UPDATE lockledger_current_holders SET holder = 'x' WHERE key = 'k2'"
        )
    ran = cli("apply", written(log, at(1), at(2, key="k2"), at(3)))
    assert ran.code == 3
    assert "'k2': its head row differs in holder" in ran.err
    assert "go on with --from-line 2" in ran.err
    with ledgers.database.engine().begin() as connection:
        connection.exec_driver_sql(
            "UPDATE lockledger_current_holders SET holder = 'a' WHERE key = 'k2'"
        )
