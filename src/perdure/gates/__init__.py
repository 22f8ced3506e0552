"""May this call pass? Pure: no I/O, clock, randomness or threads.

    conditions.py   conditions on the arguments of a call
    policy.py       policies and their rules: what is written down, and the table of what it means
    ruling.py       what the policies that apply say about a call
    denial.py       what people are shown of a call that was denied
"""
