"""Locks over HTTP: a FastAPI router that asks the host who is asking, and what each may see and do. Extra `fastapi`."""

from lockledger.http.exchange import Authorize, Verb, Verdict
from lockledger.http.router import lock_router

__all__ = ["Authorize", "Verb", "Verdict", "lock_router"]
