"""Error messages for the shell: remedies that are Python calls become commands."""

from __future__ import annotations

from penstock.errors import NoSuchTube, NotFound, PenstockError, TubeExists

_REMEDIES: dict[type[PenstockError], str] = {
    NoSuchTube: "penstock tubes lists the tubes, penstock create creates one",
    TubeExists: "use it as it is, remove it with penstock drop, or choose another name",
    NotFound: "take again; penstock sessions lists the live sessions",
}


def for_a_shell(error: Exception) -> str:
    """The error as one line, with a remedy for the shell."""
    # The problem is before the last ": ", which no name can contain, and the remedy after it.
    wrong, colon, remedy = " ".join(str(error).split()).rpartition(": ")
    if "broker." in remedy:
        remedy = next((words for kind, words in _REMEDIES.items() if isinstance(error, kind)), remedy)
    # Verbs are commands here, and None is an option that is left out.
    remedy = remedy.replace("()", "").replace("on_duplicate", "--on-duplicate").removesuffix(", or None")
    return wrong + colon + remedy
