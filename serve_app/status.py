"""The policy state for people: fetches the endpoint's body and puts it into one or two sentences."""

from http import HTTPStatus
from typing import Any

import httpx
import msgspec

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


def sentence(body: dict[str, Any]) -> str:
    """The state in words; labels this version does not know are shown as they are."""
    if body.get("schema_version") != 1:
        return (
            f"The server speaks policy schema {body.get('schema_version')!r}, which this version cannot read."
        )
    pairing = _pairing(body)
    match body["state"]:
        case "settled":
            return f"{_verdict(body)}{pairing}.{_evidence(body)}"
        case "profiling":
            done, needed = body["samples"], body["samples_required"]
            starved = body.get("starved_by")
            wait = f" Held up by: {starved}." if starved else ""
            return (
                f"MTP is being measured: {done} of {needed} single-request generations done{pairing}.{wait}"
            )
        case "forced":
            word = "on" if body["mtp_enabled"] else "off"
            return f"MTP is pinned {word} by MLXCEL_ENABLE_MTP_B1; nothing is being measured{pairing}."
        case "exactness_declined":
            detail = body["decline_detail"] or "no reason was recorded"
            return f"MTP is configured but vetoed; running plain decode{pairing}. {detail}"
        case "unavailable":
            return _unavailable(body["reason"], body["mtp_enabled"])
        case other:
            return f"The policy is in a state this version does not know: {other}."


def _pairing(body: dict[str, Any]) -> str:
    if body["target"] is None:
        return ""
    return (
        f" for {body['target']} with {body['drafter']} on {body['hardware']}, block size {body['block_size']}"
    )


def _verdict(body: dict[str, Any]) -> str:
    return {
        "enable": "MTP was measured to pay and is on",
        "decline": "MTP was measured not to pay and is off",
    }.get(body["verdict"], f"MTP has the verdict {body['verdict']}")


def _evidence(body: dict[str, Any]) -> str:
    parts: list[str] = []
    if body.get("speedup") is not None:
        parts.append(f"speed-up {body['speedup']:.2f}")
    if body["acceptance_rate"] is not None:
        parts.append(f"acceptance {body['acceptance_rate']:.2f}")
    parts.append(f"{body['samples']} samples")
    return f" ({', '.join(parts)})"


def _unavailable(reason: str, enabled: bool | None) -> str:
    match reason:
        case "no_mtp_dispatch":
            return "The server has no MTP drafter; every request decodes plainly."
        case "adaptive_disabled":
            word = "on" if enabled else "off"
            return f"Measuring is switched off (MLXCEL_MTP_ADAPTIVE); MTP is {word} by default or by pin."
        case "worker_not_ready":
            return "The model is not ready yet."
        case other:
            return f"No policy is running: {other}."
