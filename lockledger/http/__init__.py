"""Locks over HTTP: a FastAPI router that asks the host who is asking, and what each may see and do. Extra `fastapi`."""

try:
    from lockledger.http.exchange import Authorize, Verb, Verdict
    from lockledger.http.router import lock_router
except ModuleNotFoundError as missing:
    if (missing.name or "").partition(".")[0] not in ("anyio", "fastapi", "starlette"):
        raise
    raise ModuleNotFoundError(
        f"lockledger.http needs {missing.name}: pip install 'lockledger[fastapi]'",
        name=missing.name,
    ) from missing

__all__ = ["Authorize", "Verb", "Verdict", "lock_router"]
