"""What the router says of itself, and that it does as it says."""

# No `from __future__ import annotations` here: FastAPI reads the annotations of functions inside the tests.

from itertools import product
from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from pydantic import BaseModel
from schemathesis import GenerationMode
from schemathesis.core.result import Ok

from support.ledgers import Ledgers
from support.sites import Site, site_on

PROBLEM = "application/problem+json"
DOCUMENTED = {
    ("PUT", "/locks/hold"): {200, 201, 401, 403, 404, 409, 412, 413, 422, 503},
    ("DELETE", "/locks/hold"): {204, 401, 403, 404, 409, 422, 503},
    ("GET", "/locks/hold"): {200, 401, 403, 404, 422, 503},
    ("POST", "/locks/hold/extension"): {200, 401, 403, 404, 409, 413, 422, 503},
    ("POST", "/locks/hold/forced-release"): {200, 401, 403, 404, 412, 413, 422, 503},
    ("GET", "/locks/holders"): {200, 401, 403, 404, 422, 503},
    ("GET", "/locks/holds"): {200, 401, 403, 404, 422, 503},
    ("GET", "/locks/audit"): {200, 401, 403, 404, 422, 503},
}


def operations(app: FastAPI) -> dict[tuple[str, str], Any]:
    return {
        (method.upper(), path): operation
        for path, methods in app.openapi()["paths"].items()
        for method, operation in methods.items()
    }


def test_every_answer_is_documented(sqlite_site: Site) -> None:
    found = {
        route: {int(status) for status in operation["responses"]}
        for route, operation in operations(sqlite_site.app).items()
    }

    assert found == DOCUMENTED


def test_every_refusal_is_documented_as_a_problem(sqlite_site: Site) -> None:
    for operation in operations(sqlite_site.app).values():
        assert operation["description"]
        for status, answer in operation["responses"].items():
            assert answer["description"]
            if int(status) < 400:
                assert PROBLEM not in answer.get("content", {})
                continue
            schema = answer["content"][PROBLEM]["schema"]
            kinds = schema.get("anyOf", [schema])
            for kind in kinds:
                assert {"title", "status", "detail", "code"} <= set(kind["required"])
            assert ("application/json" in answer["content"]) == (status == "422")


def test_the_schemas_do_not_depend_on_the_hosts(sqlite_site: Site) -> None:
    """A host may well have a `Problem` of its own."""

    class Problem(BaseModel):
        unrelated: int

    @sqlite_site.app.get("/own")
    def own() -> Problem:
        return Problem(unrelated=1)

    schema = sqlite_site.app.openapi()
    assert schema["components"]["schemas"]["Problem"]["properties"].keys() == {"unrelated"}
    referred = set(_references(schema))
    assert referred <= {f"#/components/schemas/{name}" for name in schema["components"]["schemas"]}


def _references(schema: Any) -> list[str]:
    if isinstance(schema, list):
        return [found for each in schema for found in _references(each)]
    if not isinstance(schema, dict):
        return []
    own = [schema["$ref"]] if "$ref" in schema else []
    return own + [found for each in schema.values() for found in _references(each)]


def test_limits_are_documented(sqlite_site: Site) -> None:
    found = operations(sqlite_site.app)
    key = found["PUT", "/locks/hold"]["parameters"][0]
    assert (key["name"], key["required"]) == ("key", True)
    assert (key["schema"]["minLength"], key["schema"]["maxLength"]) == (1, 255)
    limit = next(
        each for each in found["GET", "/locks/audit"]["parameters"] if each["name"] == "limit"
    )
    assert (limit["schema"]["minimum"], limit["schema"]["maximum"]) == (1, 1000)
    bodies = sqlite_site.app.openapi()["components"]["schemas"]
    for name in ("Take", "Extension", "ForcedRelease"):
        assert bodies[name]["additionalProperties"] is False


def test_operations_have_names_of_their_own(bare_site: Site) -> None:
    bare_site.mount()
    bare_site.mount("/admin")
    names = [operation["operationId"] for operation in operations(bare_site.app).values()]

    assert len(names) == len(set(names)) == 2 * len(DOCUMENTED)


EXAMPLES = 40
# A good request may be refused for what the lock, the host or the text of a key is.
ACCEPTABLE = ["2xx", "403", "404", "409", "412", "422"]


@pytest.mark.parametrize("verdict", ["allow", "forbid", "hide"])
def test_schemathesis_finds_nothing(sqlite_ledgers: Ledgers, verdict: Any) -> None:
    """Requests good and bad: each is answered with a documented status, in the documented form."""
    answered: set[int] = set()
    with site_on(sqlite_ledgers, "sync") as site:
        site.judge = lambda *_: verdict
        site.mount(principal=lambda: "user:7")
        site.ledger.take("held", "user:8")
        schema = schemathesis.openapi.from_asgi("/openapi.json", site.app)
        schema.validate()
        schema.config.checks.positive_data_acceptance.expected_statuses = ACCEPTABLE
        for found, mode in product(schema.get_all_operations(), GenerationMode):
            assert isinstance(found, Ok)

            @settings(
                max_examples=EXAMPLES if verdict == "allow" else EXAMPLES // 5,
                deadline=None,
                derandomize=True,
                suppress_health_check=list(HealthCheck),
            )
            @given(found.ok().as_strategy(generation_mode=mode))
            def conforms(case: Any) -> None:
                answered.add(case.call_and_validate().status_code)

            conforms()
    assert answered >= {{"allow": 200, "forbid": 403, "hide": 404}[verdict], 422}
    assert answered <= {200, 201, 204, 403, 404, 405, 409, 412, 422}
