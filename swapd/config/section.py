"""Is the base of every section: frozen, no unknown keys, described by the text under its fields.

``document`` reads these texts from the source. Pydantic would do so, too, but for each section at each start of the
daemon, which took a fifth of it.
"""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """One mapping of the configuration file."""

    model_config = ConfigDict(extra="forbid", frozen=True)
