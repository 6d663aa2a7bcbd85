"""Online meta-learning: a stream of tasks, learners that see them one by one, Hedge over their settings.

Source: Acar, thesis, Chapter 5 and Appendix A.1.4 (MOML, ICML 2021).
"""

from fedflow.procedures.online.hedge import hedge
from fedflow.procedures.online.learners import LEARNERS, MOML, Learner
from fedflow.procedures.online.meta_gradients import Expert, Lesson, accuracy, adapted, meta_gradient
from fedflow.procedures.online.procedure import Online
from fedflow.procedures.online.quadratics import follow_the_leader, play
from fedflow.procedures.online.stream import Stream, StreamTask

__all__ = [
    "LEARNERS",
    "MOML",
    "Expert",
    "Learner",
    "Lesson",
    "Online",
    "Stream",
    "StreamTask",
    "accuracy",
    "adapted",
    "follow_the_leader",
    "hedge",
    "meta_gradient",
    "play",
]
