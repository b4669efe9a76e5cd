"""The baseline, without a solver: what kube-batch and Volcano would do, under the rules of this scheduler.

Its plan is the solver's hint, the bar that a solved plan must reach, and the answer when the budget ends.
"""

from solver_sched.greedy.evict import evicting_plan
from solver_sched.greedy.fill import greedy_plan, settle, start
from solver_sched.greedy.spare import spare
from solver_sched.greedy.towards import towards

__all__ = ["evicting_plan", "greedy_plan", "settle", "spare", "start", "towards"]
