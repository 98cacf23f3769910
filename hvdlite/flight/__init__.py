"""The flight recorder: what each rank does and did last, for whoever asks, also after its death.

``memory`` finds and reads the recorders of this host's processes, ``live`` puts what several say
together, ``report`` writes what went wrong, ``top`` shows a job in the terminal; none of them
imports MPI. ``rank`` is the rank's own part: its stacks, and the recorders of its neighbours.
"""
