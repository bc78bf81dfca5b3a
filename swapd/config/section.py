"""Is the base of every section: frozen, no unknown keys, described by the text under its fields."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """One mapping of the configuration file."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
