"""Whether long trainings, and many short ones in one session, leave something behind."""
