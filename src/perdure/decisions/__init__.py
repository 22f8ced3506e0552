"""What people are asked, and what their decisions do. Pure: no I/O, clock, randomness or threads.

    states.py     the states of a request, and what leads from one to another: a table
    request.py    what is asked, as it is stored and hashed; the ids of requests
    entry.py      one row of the table of approvals
    deciding.py   does this decision count, and what follows from it?
    authority.py  who may make which choice?
"""

from perdure.decisions.authority import Authority, Refusal, refusal_of
from perdure.decisions.deciding import CHOICES, Decision, decide, refusal_of_state, withdrawn_votes
from perdure.decisions.entry import ApprovalEntry, Vote
from perdure.decisions.request import Request, approval_id, identity, request_hash
from perdure.decisions.states import ApprovalState, Happening

__all__ = [
    "CHOICES",
    "ApprovalEntry",
    "ApprovalState",
    "Authority",
    "Decision",
    "Happening",
    "Refusal",
    "Request",
    "Vote",
    "approval_id",
    "decide",
    "identity",
    "refusal_of",
    "refusal_of_state",
    "request_hash",
    "withdrawn_votes",
]
