"""What is public: names, arguments and options. A change is one of `surface.txt`, and a line of the changelog."""

from pathlib import Path

from tests.helpers.surface import surface


def test_public_names_arguments_and_options_are_those_of_the_list():
    listed = Path(__file__).with_name("surface.txt").read_text()
    assert surface() == listed, "run `python -m tests.helpers.surface > tests/repository/surface.txt`"
