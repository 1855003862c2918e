"""Text that must not reach a log."""

from pathlib import Path

from glm5_mla.refusal import Refusal


class Secret(str):
    """A string whose repr() is not itself.

    SGLang logs its arguments, and answers /server_info with them, by the repr() of the object that holds them; where it
    compares or sends the API key it uses the string.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


def read(path: str) -> Secret:
    """Return the API key in the file `path`, without the line's end. Raises `Refusal` when there is none to use."""
    try:
        text = Path(path).read_text(encoding="utf-8").strip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        cause = error.strerror if isinstance(error, OSError) else "it is not text"
        raise Refusal(
            "ApiKeyUnreadable", f"The API key's file {path} (GLM5_API_KEY_FILE) can't be read: {cause}."
        ) from None
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise Refusal(
            "ApiKeyUnusable",
            f"The API key in {path} (GLM5_API_KEY_FILE) is empty or has characters that can't stand in an HTTP header: "
            "give one line of printable ASCII without spaces.",
        )
    return Secret(text)
