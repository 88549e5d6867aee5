"""The policy state for people: fetches the endpoint's body and puts it into one or two sentences."""

from http import HTTPStatus
from typing import Any

import httpx
import msgspec

from messages.policy import PolicyReport
from policy.sentence import sentence

_TIMEOUT_S = 10.0


class StatusError(Exception):
    """The server did not answer with a policy body; the message says what happened instead."""


def fetch(url: str, api_key: str | None) -> dict[str, Any]:
    """GET /v1/internal/mtp-policy. Raises StatusError."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        reply = httpx.get(f"{url.rstrip('/')}/v1/internal/mtp-policy", headers=headers, timeout=_TIMEOUT_S)
    except httpx.HTTPError as error:
        raise StatusError(f"no server answers at {url} ({type(error).__name__})") from error
    if reply.status_code == HTTPStatus.UNAUTHORIZED:
        raise StatusError(f"the server at {url} wants an API key (--api-key)")
    if reply.status_code != HTTPStatus.OK:
        raise StatusError(f"the server at {url} answered {reply.status_code} to the policy request")
    return reply.json()


def as_json(body: dict[str, Any]) -> str:
    """The body as one indented JSON object."""
    return msgspec.json.format(msgspec.json.encode(body)).decode()


def describe(body: dict[str, Any]) -> str:
    """The state in words; a schema or label this version does not know is named, not guessed."""
    if body.get("schema_version") != 1:
        return f"policy schema {body.get('schema_version')!r} is unknown to this version"
    report = _report(body)
    if report is None:
        return f"state {body.get('state')!r} is unknown to this version"
    pairing = _pairing(report)
    return sentence(report) + (f" [{pairing}]" if pairing else "")


def _report(body: dict[str, Any]) -> PolicyReport | None:
    counted = {name: _counts(body.get(name, {})) for name in ("declines", "fallbacks")}
    try:
        return msgspec.convert(body | counted | {"classes": []}, PolicyReport)
    except msgspec.ValidationError:
        return None


def _counts(by_reason: dict[str, int]) -> list[dict[str, Any]]:
    return [{"reason": reason, "count": count} for reason, count in by_reason.items()]


def _pairing(report: PolicyReport) -> str:
    if report.target is None:
        return ""
    return f"{report.target} + {report.drafter} on {report.hardware}, block size {report.block_size}"
