"""The variables of the environment by which a launcher and the ranks of an elastic job speak."""

ELASTIC = "HVDLITE_ELASTIC"  # 1: ranks may die
FEWEST = "HVDLITE_ELASTIC_MIN_RANKS"  # that go on without others
MOST = "HVDLITE_ELASTIC_MAX_RANKS"  # new ones come up to so many in all; 0: none come
RESETS = "HVDLITE_ELASTIC_RESET_LIMIT"  # new beginnings after deaths; none: no limit
PATIENCE = "HVDLITE_ELASTIC_TIMEOUT_SECONDS"
COMMAND = "HVDLITE_COMMAND"  # what starts a rank, as JSON; the launcher's agents set it
LAUNCHER = "HVDLITE_LAUNCHER"  # how the agent of a rank finds the launcher
FOLD = "HVDLITE_FOLD_TRACEBACKS"  # 1: of errors that are another rank's, show the text alone
NEWCOMER = "HVDLITE_NEWCOMER"  # set for a process that comes into a running job
TOO_LATE = 75  # exit code of a newcomer that nobody has let in
