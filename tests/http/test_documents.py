"""The how-to's examples, run as they stand, and the reference, compared with what the router says of itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import close_all_sessions

from lockledger.http.answers import HoldAnswer, PastHoldAnswer
from lockledger.http.exchange import Verb
from support.databases import Database
from support.sites import Site

DOCS = Path(__file__).parents[2] / "docs"
URL = "postgresql+psycopg://localhost/host"


def test_the_how_to_runs_from_top_to_bottom(postgres_database: Database) -> None:
    page = DOCS / "how-to" / "http.md"
    examples = re.findall(
        r"^```python\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    assert URL in examples[0]
    names: dict[str, Any] = {"__name__": "how_to"}
    for example in examples:
        code = compile(
            example.replace(URL, postgres_database.url), page.name, "exec", dont_inherit=True
        )
        exec(code, names)
    close_all_sessions()
    names["engine"].dispose()


def test_the_how_to_names_every_verb_and_choice() -> None:
    page = (DOCS / "how-to" / "http.md").read_text("utf-8")
    for word in (*Verb.__args__, "reading", "commands", "expiry", "metadata", "challenge"):  # type: ignore[attr-defined]  # a Literal has its words
        assert f"`{word}" in page


def test_the_reference_lists_every_request_and_its_statuses(sqlite_site: Site) -> None:
    page = (DOCS / "reference" / "http.md").read_text("utf-8")
    everywhere = {401, 403, 404, 422, 503}
    for path, methods in sqlite_site.app.openapi()["paths"].items():
        for method, operation in methods.items():
            request = f"{method.upper()} {path.removeprefix('/locks')}"
            [row] = [
                line
                for line in page.splitlines()
                if line.startswith(f"| `{request}") and line[len(f"| `{request}")] in "?`"
            ]
            told = {int(status) for status in re.findall(r"\b[2-5]\d\d\b", row)}
            documented = {int(status) for status in operation["responses"]}
            assert told | everywhere == documented, request


@pytest.mark.parametrize("kind", [HoldAnswer, PastHoldAnswer])
def test_the_reference_names_every_fact_of_a_hold(kind: Any) -> None:
    page = (DOCS / "reference" / "http.md").read_text("utf-8")
    for fact in kind.model_fields:
        assert f"`{fact}`" in page
