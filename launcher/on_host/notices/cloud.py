"""What the answers of Google Cloud's metadata server mean for the job on this machine. Pure.

Source: cloud.google.com/compute/docs/metadata/predefined-metadata-keys, `instance/preempted` and
`instance/maintenance-event`.
"""

# The keys that are asked for, below `instance/`.
PREEMPTED, MAINTENANCE = KEYS = ("preempted", "maintenance-event")
_KNOWN = {
    PREEMPTED: ("TRUE", "FALSE"),
    # A machine that migrates goes on where it was; one with a TPU cannot.
    MAINTENANCE: ("NONE", "MIGRATE_ON_HOST_MAINTENANCE", "TERMINATE_ON_HOST_MAINTENANCE"),
}


def why_taken(key: str, answer: str) -> str:
    """Why this machine is taken away soon, by the answer to one of `KEYS`; "" where it is not."""
    said = answer.strip()
    if key == PREEMPTED and said == "TRUE":
        return "the cloud has preempted it (instance/preempted is TRUE)"
    if key == MAINTENANCE and said.startswith("TERMINATE"):
        return f"the cloud ends it for maintenance (instance/maintenance-event is {said})"
    return ""


def why_unknown(key: str, answer: str) -> str:
    """What is wrong with an answer that means nothing; "" where it does."""
    if answer.strip() in _KNOWN[key]:
        return ""
    lines = answer.strip().splitlines() or [""]
    known = ", ".join(_KNOWN[key])
    return f"instance/{key} is {lines[0][:60]!r}, and one of {known} is needed"
