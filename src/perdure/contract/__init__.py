"""What may change in a workflow's code while runs are under way: manifests compared, topology, differences in words.

A run's history begins with a `Manifest`: what it was started under. `compare` says, by a table, what a run may do under
the code that is here now; `topology` is the outline of the durable calls in a workflow's source. An outline explains a
difference; whether a history replays, replay alone decides.
"""
