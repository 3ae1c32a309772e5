"""What `frame_pixels` takes for granted of PyAV."""

import av
import pytest
from av.sidedata.sidedata import Type

from lightning_multigrid.decode.frame_pixels import orientation_of
from lightning_multigrid.decode.frame_table import Orientation
from tests.helpers.rare_bytes import encoded, remuxed, with_exif
from tests.helpers.rare_files import CODINGS


def first_frame(folder, *edits):
    path = folder / "turned.mov"
    path.write_bytes(remuxed([encoded(CODINGS["mjpeg"], "avi")], "mov", *edits))
    with av.open(str(path)) as container:
        return next(container.decode(video=0))


@pytest.mark.skipif(int(av.__version__.split(".")[0]) < 18, reason="the FFmpeg of PyAV 17 tells of no such data")
def test_pyav_still_refuses_the_side_data_of_a_frame_with_exif_data(tmp_path):
    """When this fails, PyAV knows them: `_display_matrix` needs no filter, and the next test decides if it may go."""
    with pytest.raises(ValueError, match="is not a valid Type"):
        _ = first_frame(tmp_path, with_exif(6)).side_data
    assert sorted(int(kind.value) for kind in Type) == list(range(len(Type)))  # those beyond are deleted


def test_the_turn_of_a_frame_is_found_among_side_data_that_pyav_does_not_know(tmp_path):
    assert orientation_of(first_frame(tmp_path)) == Orientation()
    assert orientation_of(first_frame(tmp_path, with_exif(6))) == Orientation(transposed=True, mirrored=True)
    assert orientation_of(first_frame(tmp_path, with_exif(4))) == Orientation(upside_down=True)
