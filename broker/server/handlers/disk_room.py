"""The room on the disk of a store, as tools read it (28). Pure: the process asks the file system."""

from __future__ import annotations

from typing import NamedTuple


class DiskRoom(NamedTuple):
    """The room on a disk in bytes; `free_bytes`: those that an ordinary user may still write."""

    total_bytes: int
    used_bytes: int
    free_bytes: int

    @property
    def used_percent(self) -> float:
        """The share of what an ordinary user may use that is in use."""
        usable = self.used_bytes + self.free_bytes
        return 100 * self.used_bytes / usable if usable else 0.0

    @property
    def used_ratio(self) -> str:
        """The same share from 0 to 1, as text."""
        return f"{self.used_percent / 100:.4f}"

    @property
    def text(self) -> str:
        """Total and free room for people, as RocketMQ writes it."""
        return f"Total : {size_text(self.total_bytes)}, Free : {size_text(self.free_bytes)}."


def room_table(room: DiskRoom | None) -> dict[str, str]:
    """Return names and values; what is derived lies on the disk of the log. Unknown room has RocketMQ's -1."""
    ratio = room.used_ratio if room is not None else "-1"
    return {
        "commitLogDirCapacity": room.text if room is not None else "",
        "commitLogDiskRatio": ratio,
        "consumeQueueDiskRatio": ratio,
        "raftFreeBytes": str(room.free_bytes) if room is not None else "",
    }


def size_text(size_bytes: int) -> str:
    """Write a size as RocketMQ does: 1023 B, 1.0 KiB, 98.3 GiB."""
    size, unit = float(size_bytes), ""
    for larger in "KMGTPE":
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.1f} {unit}iB" if unit else f"{size_bytes} B"
