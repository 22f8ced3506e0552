"""May this call pass? Pure: no I/O, clock, randomness or threads.

    budget.py       what a run, or many runs together, may spend, and have spent
    conditions.py   conditions on the arguments of a call
    policy.py       policies and their rules: what is written down, and the table of what it means
    prices.py       what tokens cost: the price list that the user keeps
    ruling.py       what the policies that apply say about a call
    denial.py       what people are shown of a call that was denied
"""
