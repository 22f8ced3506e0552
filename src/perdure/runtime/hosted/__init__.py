"""Hosted code: how functions that run outside the workflow's loop get their calls answered.

    hosted code ──▶ Request ──▶ Journal: from the record ──▶ answered
                                     └─▶ held, as long as somebody may still ask for what is unused
                                     └─▶ performed: steps · children · waits · people · here

`journal.py` decides which of the three it is. What can be asked for is made by one noun's file each, which also says
how it is performed: `steps`, `children`, `waits`, `people`, and `here` (what is performed in the calling thread).
`records.py` reads what was recorded, `undoing.py` are sagas. `perdure.runtime.sections` hosts the code itself.
"""
