"""Who reports: the name a replica was given and the process it runs in."""

from msgspec import Struct

from messages.scheduling import ModelName


class Identity(Struct, frozen=True):
    """Whose reports these are; `incarnation` changes whenever the process restarts."""

    model: ModelName
    incarnation: str
