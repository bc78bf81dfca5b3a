"""The HTTP page says what the code does."""

from pathlib import Path

from swapd.proxy.errors import FORMS
from swapd.proxy.routes import EXACT

PAGE = (Path(__file__).parents[2] / "docs" / "http.md").read_text()


def test_every_path_is_documented() -> None:
    assert [path for path in EXACT if f"`{path}`" not in PAGE] == []


def test_the_table_of_errors_is_the_tables() -> None:
    for reason, form in FORMS.items():
        retry = "–" if form.retry_s is None else f"{form.retry_s} s"
        assert f"| `{reason.value}` | {form.status} | `{form.type}` | `{form.code}` | {retry} |" in PAGE
