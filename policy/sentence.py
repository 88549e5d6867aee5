"""Says in one line what the policy decided and why, for people; programs read the body instead."""

from messages.policy import PolicyReport

_UNAVAILABLE = {
    "no_mtp_dispatch": "MTP is not configured: no drafter is loaded",
    "worker_not_ready": "waiting for a model to load",
    "exactness_pending": "MTP waits for the exactness probe; running plain decode",
}


def sentence(report: PolicyReport) -> str:
    """One line for a status display; "measuring" never stands for something that cannot happen."""
    said = _state(report)
    if report.starved_by is None:
        return said
    declined = sum(row.count for row in report.declines)
    what = f"{declined} of {report.attempts} attempts declined"
    if not declined:
        what = f"{report.bursts} of {report.attempts} attempts gave too little to measure"
    return f"{said}; nothing gets through at present: {what}, mostly {report.starved_by}"


def _state(report: PolicyReport) -> str:
    switch = "on" if report.mtp_enabled else "off"
    match report.state:
        case "profiling":
            done, needed = report.samples, report.samples_required
            return f"measuring: {done} of {needed} single-request generations done"
        case "settled":
            verb = "measured" if report.source == "measured" else "measured earlier"
            return f"MTP {switch}: {verb} at {_speedup(report)} plain decode{_original(report)}"
        case "forced":
            return f"MTP pinned {switch} by MLXCEL_ENABLE_MTP_B1; nothing is measured"
        case "exactness_declined":
            return f"MTP configured but vetoed; running plain decode: {report.decline_detail or 'inexact'}"
        case "unavailable" if report.reason == "adaptive_disabled":
            return f"MTP {switch}: the adaptive policy is disabled"
        case "unavailable":
            return _UNAVAILABLE.get(report.reason or "", "unavailable")


def _original(report: PolicyReport) -> str:
    """What the original rules would have decided, where they differ."""
    if report.original_verdict in (None, report.verdict):
        return ""
    found = "no estimate" if report.original_speedup is None else f"{report.original_speedup:.2f} times"
    return f" (the original rules would {report.original_verdict} at {found})"


def _speedup(report: PolicyReport) -> str:
    if report.speedup is None:
        return "an unknown multiple of"
    if report.speedup_low is None or report.speedup_high is None:
        return f"{report.speedup:.2f} times"
    return f"{report.speedup:.2f} times ({report.speedup_low:.2f} to {report.speedup_high:.2f})"
