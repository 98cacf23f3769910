"""Process sets: some ranks of the job that run collectives among themselves."""
