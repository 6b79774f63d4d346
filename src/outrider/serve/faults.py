"""What the server answers when it cannot answer: OpenAI's shape of errors. Knows nothing of requests but their fields.

Messages are for the caller: what is wrong with the request and what to do. They never hold a path, a traceback, or what
an exception of ours says, for that may quote somebody's text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import UsageError


class Fault(Exception):
    """A request that gets an error instead of an answer.

    Args:
        status: of HTTP.
        message: one sentence with the remedy.
        param: the field of the request that it is about.
        code: a word that programs can compare.
        headers: of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    def body(self, request_id: str) -> dict[str, Any]:
        """The document that the client gets."""
        return {
            "error": {
                "message": self.message,
                "type": _type(self.status),
                "param": self.param,
                "code": self.code,
                "request_id": request_id,
            }
        }


def _type(status: int) -> str:
    """OpenAI's word for a status."""
    known = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
    if status in known:
        return known[status]
    return "server_error" if status >= 500 else "invalid_request_error"


def refused(error: UsageError, param: str | None) -> Fault:
    """What the caller can put right."""
    return Fault(400, str(error), param=param, code="invalid_value")


def broken() -> Fault:
    """What is our fault; the reason is in the server's log under the request's id."""
    return Fault(500, "The server failed on this request: its log says why, under the request's id.", code="internal")


def loading() -> Fault:
    """The model is not there yet."""
    return Fault(503, "The model is being loaded: try again soon.", code="loading", headers={"retry-after": "5"})


def leaving() -> Fault:
    """The server is about to end."""
    return Fault(
        503, "The server is shutting down: try again later.", code="shutting_down", headers={"retry-after": "30"}
    )


# Fields of OpenAI's API that mean something there and would change nothing here.
KNOWN = frozenset(
    {
        "audio",
        "best_of",
        "echo",
        "function_call",
        "functions",
        "metadata",
        "modalities",
        "moderation",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "reasoning_effort",
        "safety_identifier",
        "service_tier",
        "store",
        "suffix",
        "tool_choice",
        "tools",
        "user",
        "verbosity",
        "web_search_options",
    }
)
_NAME = re.compile(r"[a-z_]+|\d+")
_KINDS = frozenset({"str", "int", "float", "bool", "list", "dict"})


def invalid(errors: Sequence[Mapping[str, Any]]) -> Fault:
    """A body that does not fit the schema, as a sentence about one of pydantic's errors: an unknown field, or else what
    goes deepest. Of the branches of a union those count that the value's type went with."""

    def weight(error: Mapping[str, Any]) -> tuple[bool, int, bool]:
        return error["type"] == "extra_forbidden", len(_place(error)), not error["type"].endswith("_type")

    error = max(errors, key=weight)
    field = error.get("ctx", {}).get("param") or ".".join(_place(error)) or None
    if error["type"] == "json_invalid":
        return Fault(400, "The body is no valid JSON.", code="invalid_json")
    if error["type"] == "extra_forbidden":
        word = "supported by this server" if field in KNOWN else "known"
        return Fault(400, f"The field '{field}' is not {word}: leave it out.", param=field, code="unknown_field")
    if error["type"] == "missing":
        return Fault(400, f"The field '{field or 'body'}' is missing.", param=field, code="missing_field")
    reason = str(error["msg"]).removeprefix("Value error, ").removesuffix(".")
    return Fault(400, f"The field '{field or 'body'}' cannot be used: {reason}.", param=field, code="invalid_value")


def _place(error: Mapping[str, Any]) -> list[str]:
    """Where in the body, as in messages, 0, role; without the branches of unions, which are pydantic's own names."""
    *parts, last = [str(part) for part in error["loc"] if part != "body"] or [""]
    given = error["type"] == "extra_forbidden"  # then it is a name of the caller's, whatever it looks like
    names = [part for part in ([*parts] if given else [*parts, last]) if _NAME.fullmatch(part) and part not in _KINDS]
    return [*names, last[:100]] if given else names
