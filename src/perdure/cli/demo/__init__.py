"""`perdure demo`: an agent of 50 steps is killed in step 47, and goes on from step 47. It is also killed between a
payment and our record of it, on each of three routes, and has paid once.

story.py      what happens: four kills, and what the next worker, or a person, does after each
gates.py      the second act: a policy, an approval whose facts change, an attempt that is denied
standing.py   the third act: decisions that are checked before they are acted upon
stage.py      what it happens on: services, workers, the command line
processes.py  how these are started
services.py   the outside world: a model server, tickets, payments and policies, processes of their own
figures.py    what the services wrote down, as the figures of the table
timeline.py   the same as a picture
"""

from perdure.cli.demo.story import demo

__all__ = ["demo"]
