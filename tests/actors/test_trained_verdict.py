"""The policy beside a pair that really accepts drafts: it settles on what it has measured."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.model_actor import ModelActor
from actors.policy_actor import PolicyActor
from engine.config import EngineConfig
from messages.events import Finished
from messages.model import EventBatch
from messages.policy import PolicyReport
from messages.requests import RequestId
from policy.config import PolicyConfig
from policy.switches import Switches
from tests.actors.test_model_actor import RecordingScheduler, until_ready
from tests.fixtures.pair import asking, files

# Twenty requests have rounds enough to end any profile; the thirty-second is measured after a decline too.
MAX_REQUESTS = 30


async def report_in(policy: PolicyActor, state: str) -> PolicyReport:
    """What is published once the state is reached."""
    async for snapshot in policy.watch():
        if snapshot.top.state == state:
            return snapshot.top
    raise AssertionError("the policy has ended")


async def generate(actor: ModelActor, stream: AsyncIterator[Any], name: str, ids: list[int]) -> Finished:
    """One request, whose gate is the policy's, to its end."""
    item = asking.request(ids, max_tokens=100, ignore_eos=True)
    assert await actor.submit(msgspec.structs.replace(item, request_id=RequestId(name)))
    async for message in stream:
        if isinstance(message, EventBatch):
            for event in message.events:
                if isinstance(event, Finished):
                    return event
    raise AssertionError("the stream has ended")


@pytest.mark.slow
async def test_the_policy_settles_on_what_it_has_measured(tmp_path: Path) -> None:
    """Whichever way it falls, the verdict fits its interval, and requests keep to it."""
    settings = PolicyConfig()
    policy = PolicyActor(settings, Switches(), tmp_path)
    config = EngineConfig(
        model=str(files.model()),
        draft_model=str(files.head()),
        cache_root=str(tmp_path),
        prompt_cache_bytes=0,
        audit_share=0.0,
    )
    actor = ModelActor("pair", config, RecordingScheduler(), policy)
    rows = [files.tokenizer().encode(text).ids for text in files.prompts()]
    try:
        stream = actor.events("c")
        await until_ready(stream)
        await asyncio.wait_for(report_in(policy, "profiling"), 60)
        for index in range(MAX_REQUESTS):
            await generate(actor, stream, f"r{index}", rows[index % len(rows)])
            if (await policy.snapshot()).top.state == "settled":
                break
        report = await asyncio.wait_for(report_in(policy, "settled"), 10)
        # The gate reaches the engine with the answer to the last sample.
        await asyncio.sleep(0.2)
        after = await generate(actor, stream, "after", rows[0])
    finally:
        actor.close()
    assert None not in (report.speedup, report.speedup_low, report.speedup_high)
    assert report.speedup_low <= report.speedup <= report.speedup_high
    # Between 1 and the margin, and where the rounds run out undecided, either verdict is right.
    assert report.speedup_high > 1 if report.verdict == "enable" else report.speedup_low < 1 + settings.margin
    assert report.accepted_per_position is not None
    assert report.accepted_per_position[0] > 0.3
    assert report.mtp_enabled is (report.verdict == "enable")
    assert (after.timings.draft is not None) is report.mtp_enabled
