"""The B-frames of MPEG-1, 2 and 4: no other picture refers to them, and they are shown as soon as they are decoded."""

from lightning_multigrid.decode.packet_index import DROPPABLE, ENTRY

# The start code of a picture, the byte behind it that holds its type, and the place of the type in it. A type of 2 in
# MPEG-4 and 3 in the others is that of a B-frame; ISO/IEC 13818-2, 6.2.3 and table 6-12; 14496-2, 6.2.5 and table 6-20.
_PICTURES = {
    "mpeg1video": (b"\0\0\1\0", 5, 3, 7, 3),
    "mpeg2video": (b"\0\0\1\0", 5, 3, 7, 3),
    "mpeg4": (b"\0\0\1\xb6", 4, 6, 3, 2),
}


class BFrames:
    """Looks at the packets of an MPEG stream in decoding order."""

    sure = True  # of the orders

    def __init__(self, codec: str) -> None:
        self._code, self._place, self._shift, self._mask, self._type = _PICTURES[codec]
        self._is_b: list[bool] = []

    @staticmethod
    def knows(codec: str) -> bool:
        return codec in _PICTURES

    def look(self, packet: bytes) -> int:
        """Returns the flags of the next packet in decoding order."""
        at = packet.find(self._code) + self._place
        is_b = self._place <= at < len(packet) and packet[at] >> self._shift & self._mask == self._type
        self._is_b.append(is_b)
        return ENTRY | DROPPABLE * is_b

    @property
    def orders(self) -> list[tuple[int]]:
        """For each packet a number that grows with the time at which it is shown.

        Another picture than a B-frame is shown right before the next such picture comes out of the decoder.
        """
        orders, following = [], len(self._is_b)
        for number in range(len(self._is_b) - 1, -1, -1):
            orders.append((2 * number,) if self._is_b[number] else (2 * following - 1,))
            following = following if self._is_b[number] else number
        return orders[::-1]
