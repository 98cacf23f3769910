"""What a rank of ``hvdlite.run`` executes: reads the call, makes it, writes its result."""

import os
import pickle
import sys
from multiprocessing import spawn

from hvdlite.launch.agent import DATA_VARIABLE


def main() -> None:
    path = os.environ[DATA_VARIABLE]
    with open(path, "rb") as file:
        search_path, script, pickled = pickle.load(file)
    sys.path[:] = [*search_path, *(p for p in sys.path if p not in search_path)]
    if script:  # so that what was pickled as __main__.NAME is found there
        spawn.prepare({"init_main_from_path": script})
    function, args, kwargs = pickle.loads(pickled)
    result = function(*args, **kwargs)
    with open(path + ".result", "wb") as file:
        pickle.dump(result, file)


if __name__ == "__main__":
    main()
