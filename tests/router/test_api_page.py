"""docs/api.md names what the request schemas take."""

from scripts.api_parameters import API_PAGE, with_table


def test_api_page__table_of_parameters__is_that_of_the_schemas() -> None:
    page = API_PAGE.read_text()

    assert with_table(page) == page, "run python -m scripts.api_parameters"
