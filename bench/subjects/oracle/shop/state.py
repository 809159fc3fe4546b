"""Words of this manager's own: their order is not that of the statuses in SGLang."""

from enum import Enum, auto


class Stage(Enum):
    NEW = auto()
    READY = auto()
    MOVING = auto()
    DONE = auto()
    BROKEN = auto()
    GONE = auto()

    @property
    def final(self):
        return self in (Stage.DONE, Stage.BROKEN, Stage.GONE)
