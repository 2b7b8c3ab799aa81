"""Ratios that say more than the counters they come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from agent.counters.registry import SET_OBJECT
from agent.engine.latency import quantile

# name: (numerator counters, denominator counters); each side is added up.
_Ratio = tuple[tuple[str, ...], tuple[str, ...]]

_PACKETS: Final[dict[str, _Ratio]] = {
    "bytes_per_packet_sent": (("Packets Sent in Bytes",), ("Packets Sent",)),
    "bytes_per_fetch_block_received": (("Fetch Blocks Received in Bytes",), ("Fetch Blocks Received",)),
    "blocks_per_fetch_request_sent": (("Fetch Blocks Received",), ("Fetch Requests Sent",)),
    "packet_send_error_ratio": (("Packets Sent in Error",), ("Packets Sent", "Packets Sent in Error")),
    "binding_error_ratio": (("Bindings in Error",), ("Bindings", "Bindings in Error")),
    "authentication_error_ratio": (
        ("Authentications in Error",),
        ("Authentications", "Authentications in Error"),
    ),
    "inbound_dampened_ratio": (("Inbound Change Orders Dampened",), ("Remote Change Orders Received",)),
}
_SET: Final[dict[str, _Ratio]] = _PACKETS | {
    "bytes_per_file_installed": (("Bytes of Files Installed",), ("Files Installed",)),
    "bytes_per_staging_file_generated": (("Bytes of Staging Generated",), ("Staging Files Generated",)),
    "staging_fetched_per_byte_installed": (("Bytes of Staging Fetched",), ("Bytes of Files Installed",)),
    "install_error_ratio": (
        ("Files Installed with Error",),
        ("Files Installed", "Files Installed with Error"),
    ),
    "staging_error_ratio": (
        ("Staging Files Generated with Error",),
        ("Staging Files Generated", "Staging Files Generated with Error"),
    ),
    "packet_receive_error_ratio": (
        ("Packets Received in Error",),
        ("Packets Received", "Packets Received in Error"),
    ),
    "change_order_retry_ratio": (("Change Orders Retried",), ("Change Orders Issued",)),
    "change_order_abort_ratio": (("Change Orders Aborted",), ("Change Orders Issued",)),
    "usn_record_accept_ratio": (("USN Records Accepted",), ("USN Records Examined",)),
}


def derive(object_name: str, totals: Mapping[str, int], raw: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    """The ratios of one instance, ``None`` where the denominator is zero.

    ``totals`` may lack counters that are zero. A ratio of errors is errors over attempts, 0 to 1. With both
    staging amounts in ``raw``, ``staging_use`` is the part of the staging space in use at the last sample;
    with ``Backlog`` there, ``backlog`` is the last one and ``backlog_max`` the highest. Within ``latency_p50_s`` and
    ``latency_p95_s`` half, and 95 %, of the changes that came were carried out.
    """
    ratios = _SET if object_name == SET_OBJECT else _PACKETS
    derived: dict[str, Any] = {}
    for name, (above, below) in ratios.items():
        denominator = sum(totals.get(counter, 0) for counter in below)
        numerator = sum(totals.get(counter, 0) for counter in above)
        derived[name] = round(numerator / denominator, 6) if denominator else None
    for share in (50, 95):
        derived[f"latency_p{share}_s"] = quantile(totals, share / 100)
    used, free = raw.get("KB of Staging Space In Use"), raw.get("KB of Staging Space Free")
    if used is not None and free is not None:
        whole = used["last"] + free["last"]
        derived["staging_use"] = round(used["last"] / whole, 6) if whole else None
    if "Backlog" in raw:
        derived["backlog"] = raw["Backlog"]["last"]
        derived["backlog_max"] = raw["Backlog"]["max"]
    return derived
