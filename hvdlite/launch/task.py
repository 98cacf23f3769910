"""The program of a rank of ``hvdlite.run``: reads the call, makes it, writes the result."""

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
    if script:  # provides the names that were pickled as __main__.NAME
        spawn.prepare({"init_main_from_path": script})
    function, args, kwargs = pickle.loads(pickled)
    result = function(*args, **kwargs)
    with open(path + ".result", "wb") as file:
        pickle.dump(result, file)


if __name__ == "__main__":
    main()
