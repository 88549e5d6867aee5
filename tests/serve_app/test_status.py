"""The status command's words for the bodies that the policy writes."""

import json
from typing import Any

from messages.policy import Declined, FellBack, PolicyReport, PolicySnapshot, VerifyCost
from policy.wire import body
from serve_app.status import describe


def written(**fields: Any) -> dict[str, Any]:
    """The JSON body of a report, as a client reads it."""
    report = PolicyReport(**fields)
    return json.loads(json.dumps(body(PolicySnapshot(version=1, pairings=(report,), top=report))))


def test_a_full_body_is_put_into_words() -> None:
    """Counters by reason, cost curve and the rest do not keep a body from being understood."""
    said = describe(
        written(
            state="settled",
            verdict="enable",
            mtp_enabled=True,
            target="T",
            drafter="D",
            hardware="H",
            block_size=4,
            speedup=1.3,
            verify_cost=(VerifyCost(1, 9.0),),
            declines=(Declined("too_short", 2),),
            fallbacks=(FellBack("bail_out", 3),),
        )
    )
    assert "MTP on" in said
    assert "[T + D on H, block size 4]" in said


def test_what_is_unknown_is_named() -> None:
    """A state or schema of a later version is not guessed at."""
    assert describe(written(state="profiling") | {"state": "dreaming"}) == (
        "state 'dreaming' is unknown to this version"
    )
    assert "schema 2 is unknown" in describe(written(state="profiling") | {"schema_version": 2})
