"""`perdure demo`: an agent of 50 steps is killed in step 47, and goes on from step 47.

story.py      starts the services and two workers, kills one of them, watches the other
services.py   the outside world: a model server and a ticket service, processes of their own
figures.py    what the services wrote down, as the figures of the table
timeline.py   the same as a picture
"""

from perdure.cli.demo.story import demo

__all__ = ["demo"]
