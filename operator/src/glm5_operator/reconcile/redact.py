"""Keeps credentials out of messages that are made from logs."""

import re

_MASK = "***"
_PATTERNS = (
    re.compile(r"(?i)(authorization:\s*(?:bearer|basic)\s+|bearer\s+)(\S+)"),
    re.compile(
        r"(?i)((?:api[-_]?key|access[-_]?key|[a-z_-]*token|secret|password|passwd)['\"]?\s*[=:]\s*['\"]?)([^\s'\",;)}]{6,})"
    ),
    re.compile(r"(://[^/\s:@]+:)([^@\s]+)(?=@)"),
)
_WHOLE = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|eyJ[\w-]+\.[\w-]+\.[\w-]+)"
)


def redact(text: str) -> str:
    """The text with values of keys, tokens and passwords masked."""
    for pattern in _PATTERNS:
        text = pattern.sub(lambda found: found.group(1) + _MASK, text)
    return _WHOLE.sub(_MASK, text)


def last_lines(text: str, *, lines: int = 5, characters: int = 600) -> str:
    """The end of a log, redacted, in one line of bounded length."""
    kept = [line.strip() for line in text.strip().splitlines() if line.strip()][-lines:]
    joined = redact(" | ".join(kept))
    return joined if len(joined) <= characters else "..." + joined[-characters:]
