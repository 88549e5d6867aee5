"""What models report to the policy, what it answers, and what it publishes about itself.

Terms as in `messages.events`; *block size* K = rows of a verify forward, so a round drafts K - 1 tokens.
All times are milliseconds of wall time unless a name ends in `_s`; `at_s` is Unix time in seconds, stamped on
arrival by the policy actor so that one clock orders all messages.
"""

from typing import Literal

from msgspec import Struct

from messages.scheduling import ModelName

GpuVendor = Literal["Apple", "Nvidia", "Amd", "Unknown"]
Selection = Literal["default", "narrow", "row_invariant"]
State = Literal["settled", "profiling", "forced", "unavailable", "exactness_declined"]
UnavailableReason = Literal["no_mtp_dispatch", "adaptive_disabled", "worker_not_ready", "exactness_pending"]
Verdict = Literal["enable", "decline"]
Source = Literal["measured", "restored"]
TemperatureClass = Literal["greedy", "sampled"]
ContextClass = Literal["short", "medium", "long"]
DeclineReason = Literal[
    "concurrent",
    "grammar",
    "multimodal",
    "sampler",
    "prompt_cached",
    "too_short",
    "drafter_failed",
    "target_unsupported",
    "audit",
]
FallbackReason = Literal["drafter_failed", "audit", "bail_out"]


class Hardware(Struct, frozen=True, kw_only=True):
    """The accelerator a replica runs on; `label` is the coarse class that keys verdicts (`M5-16c`)."""

    label: str
    gpu_vendor: GpuVendor = "Unknown"
    gpu_device: str | None = None
    gpu_architecture: str | None = None


class Pairing(Struct, frozen=True, order=True, kw_only=True):
    """The four fields a verdict belongs to; target and drafter are directory basenames, hardware a label."""

    target: str
    drafter: str
    hardware: str
    block_size: int


class VerifyCost(Struct, frozen=True):
    """One point of the cost curve measured at load: wall time of one target forward of `rows` rows."""

    rows: int
    ms: float


class NoMtpDispatch(Struct, frozen=True, tag=True):
    """The replica has no MTP drafter: none was given, or it is of another speculative kind."""


class MtpDispatch(Struct, frozen=True, tag=True, kw_only=True):
    """The replica can speculate with this pairing.

    `fingerprint` digests everything a measurement depends on beyond the pairing: weights, engine and MLX
    versions, BLAS, dtype, thread count. `drafter_kind` is the drafter's model type. `verify_cost` (ascending
    rows), `plain_step_ms` (a decode step under ordinary kernels) and `draft_step_ms` (one drafted token) come
    from the probe and are empty or None until it has run.
    `block_sizes` are the sizes that are exact under the kernels in force and that the replica would change to
    when the policy recommends it; empty where the size is fixed. The fingerprint covers those kernels, so
    pairings that differ in block size alone are one pairing in several sizes.
    """

    pairing: Pairing
    drafter_kind: str
    fingerprint: str
    target_can_batch: bool
    verify_cost: tuple[VerifyCost, ...] = ()
    plain_step_ms: float | None = None
    draft_step_ms: float | None = None
    block_sizes: tuple[int, ...] = ()


Dispatch = NoMtpDispatch | MtpDispatch


class Exactness(Struct, frozen=True, kw_only=True):
    """What the exactness probe or a live audit found; `exact` is None while the probe has not run yet.

    `selection` is the kernel selection in use, `detail` the one-line reason of a failure.
    """

    exact: bool | None = None
    selection: Selection | None = None
    detail: str | None = None


class Declined(Struct, frozen=True):
    """How many attempts one gate below the policy turned away."""

    reason: DeclineReason
    count: int


class FellBack(Struct, frozen=True):
    """How often a speculating request went on in plain decode: for good, or for the pause of a bail-out."""

    reason: FallbackReason
    count: int


class Counts(Struct, frozen=True, kw_only=True):
    """Cumulative counters of one incarnation, so a lost report loses nothing.

    An attempt is a request that reached the gates below the policy with the policy's gate open; it either
    becomes a burst or is declined for one reason. One that asked for speculation itself is no attempt.
    `audited` rounds were re-checked against plain decode, and `mismatches` of them differed.
    """

    attempts: int = 0
    bursts: int = 0
    declines: tuple[Declined, ...] = ()
    fallbacks: tuple[FellBack, ...] = ()
    audited: int = 0
    mismatches: int = 0


class Attach(Struct, frozen=True, tag=True, kw_only=True):
    """A replica has loaded (or reports a better known dispatch); `incarnation` changes with its process."""

    model: ModelName
    incarnation: str
    hardware: Hardware
    dispatch: Dispatch
    exactness: Exactness = Exactness()
    at_s: float = 0.0


class Renew(Struct, frozen=True, tag=True, kw_only=True):
    """The replica lives; sent every few seconds, never per request. The reply is the gate in force."""

    model: ModelName
    incarnation: str
    counts: Counts = Counts()
    at_s: float = 0.0


class ExactnessFound(Struct, frozen=True, tag=True, kw_only=True):
    """A late probe finished, or a live audit found a mismatch."""

    model: ModelName
    incarnation: str
    exactness: Exactness
    at_s: float = 0.0


class Detach(Struct, frozen=True, tag=True, kw_only=True):
    """The replica is leaving."""

    model: ModelName
    incarnation: str
    at_s: float = 0.0


class Slice(Struct, frozen=True, gc=False):
    """One comparison inside a measured request: some MTP rounds, then plain decode steps next to them.

    Rounds count whether the drafter proposed their drafts or the text itself, by repeating.

    `mtp_ms` is wall time from the first round's start to the last token's emission, with everything a round
    costs (draft, verify, rewind, drafter catch-up, bookkeeping); `emitted` counts tokens really emitted.
    The plain part runs on the ordinary plain path. Rounds after EOS and rounds cut short by the token budget
    are left out.
    """

    rounds: int
    emitted: int
    mtp_ms: float
    plain_tokens: int
    plain_ms: float


class Sample(Struct, frozen=True, tag=True, kw_only=True):
    """The report of one finished measured request. It holds nothing of its prompt or text.

    `accepted_per_position[i]` counts rounds that kept draft i (0-based), so it has block size - 1 entries
    that never increase and sum to `accepted`. `slices` are the paired measurements, `rounds` to `emitted`
    totals over the request's rounds in which the drafter was asked, which may be none. `draft_ms`,
    `verify_ms`, `overhead_ms` and the probe (`probe_rounds` one-token rounds through the verify path,
    `probe_ms` in all) are what the original estimator works on.
    """

    model: ModelName
    incarnation: str
    rounds: int
    proposed: int
    accepted: int
    emitted: int
    accepted_per_position: tuple[int, ...]
    slices: tuple[Slice, ...] = ()
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    overhead_ms: float = 0.0
    probe_rounds: int = 0
    probe_ms: float = 0.0
    prompt_tokens: int = 0
    temperature: TemperatureClass = "greedy"
    cancelled: bool = False
    counts: Counts = Counts()
    at_s: float = 0.0


Message = Attach | Renew | ExactnessFound | Sample | Detach


class BailOut(Struct, frozen=True, kw_only=True):
    """When one request gives up a losing burst, and when it tries again.

    `break_even_emitted` is the mean number of tokens per round at which a round pays for itself beside
    ordinary decode; a round that emits fewer loses the difference, in tokens of plain decode. When the
    request has lost `loss_tokens` since it last stood best, it decodes plainly for `pause_tokens`
    tokens (doubling each time), then speculates again with half of that to lose. It counts tokens, not time,
    so the same request takes the same course on every run.
    """

    break_even_emitted: float
    loss_tokens: float
    pause_tokens: int


class Gate(Struct, frozen=True, tag=True, kw_only=True):
    """What the engine reads: a plain field per request, no message, no clock, no environment.

    `enabled` says whether ordinary requests speculate. Every `measure_every`-th eligible request (0 = none)
    is a measured one: it speculates even while `enabled` is False, alternates `slice_rounds` rounds with
    `slice_plain_tokens` plain tokens, starts with `probe_rounds` one-token rounds, and ends with a `Sample`.
    Of two gates the one with the higher `version` holds. `block_size` is the size it was made for, None for
    any. The default is the closed gate.
    """

    enabled: bool = False
    version: int = 0
    measure_every: int = 0
    slice_rounds: int = 0
    slice_plain_tokens: int = 0
    probe_rounds: int = 0
    bail_out: BailOut | None = None
    block_size: int | None = None
    recommended_block_size: int | None = None


class NotAttached(Struct, frozen=True, tag=True):
    """The policy does not know the sender (it restarted or the lease ran out): keep the gate, attach anew."""

    model: ModelName
    incarnation: str


GateReply = Gate | NotAttached


class ClassReport(Struct, frozen=True, kw_only=True):
    """The measurements of one kind of request; figures are None where there is too little of it."""

    temperature: TemperatureClass
    context: ContextClass
    samples: int
    acceptance_rate: float | None = None
    speedup: float | None = None


class PolicyReport(Struct, frozen=True, kw_only=True):
    """The policy's whole knowledge of one pairing (or of there being none), in the terms of the endpoint.

    `acceptance_rate` is accepted over proposed. `accepted_per_position` holds fractions of rounds. The
    speed-up is plain over MTP wall time per emitted token with its confidence interval; `original_speedup`
    and `original_verdict` are what the original estimator says of the same samples. `verify_cost`,
    `plain_step_ms` and `draft_step_ms` were measured at load, `drafter_share` is drafting's part of the time
    of the rounds.
    `replicas` counts live ones. `starved_by` names the gate below the policy that turned away most attempts
    while none got through.
    """

    state: State
    reason: UnavailableReason | None = None
    decline_detail: str | None = None
    verdict: Verdict | None = None
    mtp_enabled: bool | None = None
    target: str | None = None
    drafter: str | None = None
    hardware: str | None = None
    gpu_vendor: GpuVendor = "Unknown"
    gpu_device: str | None = None
    gpu_architecture: str | None = None
    block_size: int | None = None
    acceptance_rate: float | None = None
    samples: int = 0
    samples_required: int = 4
    samples_remaining: int | None = None
    exact: bool | None = None
    selection: Selection | None = None
    drafter_kind: str | None = None
    estimator: str | None = None
    source: Source | None = None
    settled_at: float | None = None
    rounds: int = 0
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    plain_ms_per_token: float | None = None
    mtp_ms_per_token: float | None = None
    accepted_per_position: tuple[float, ...] | None = None
    original_speedup: float | None = None
    original_verdict: Verdict | None = None
    verify_cost: tuple[VerifyCost, ...] = ()
    plain_step_ms: float | None = None
    draft_step_ms: float | None = None
    drafter_share: float | None = None
    recommended_block_size: int | None = None
    classes: tuple[ClassReport, ...] = ()
    attempts: int = 0
    bursts: int = 0
    declines: tuple[Declined, ...] = ()
    fallbacks: tuple[FellBack, ...] = ()
    audited_rounds: int = 0
    audit_mismatches: int = 0
    starved_by: DeclineReason | None = None
    replicas: int = 0


class PolicySnapshot(Struct, frozen=True, tag=True, kw_only=True):
    """Everything published at one moment, complete and immutable; the higher `version` is the newer one.

    `top` is the report shown at the top level, `pairings` all pairings with a live replica. Versions keep
    rising across restarts of the policy actor.
    """

    version: int
    top: PolicyReport
    pairings: tuple[PolicyReport, ...] = ()
