"""Tables in text that fit a terminal."""

from lightning_multigrid.schedule import text_table


def test_columns_without_room_come_below_beside_the_first_one():
    columns = ["phase", "a" * 40, "b" * 31, "c" * 70, "d" * 90]
    blocks = [block.splitlines() for block in text_table(columns, [["0", "1", "2", "3", "4"]]).split("\n\n")]
    names = [["phase", "a" * 40, "b" * 31], ["phase", "c" * 70], ["phase", "d" * 90]]
    assert [block[0].split() for block in blocks] == names
    assert [block[1].split() for block in blocks] == [["0", "1", "2"], ["0", "3"], ["0", "4"]]
    assert len(blocks[0][0]) == 80
