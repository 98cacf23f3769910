"""One thread closes a group, another one the job, of a rank by sockets; often, at all distances."""

import threading

from jobs import report

from hvdlite.core.native import ffi, lib, new_error

LIVES, DISTANCES = 200, 40

lowest, no_file = ffi.new("int[1]", [0]), ffi.new("int[1]", [-1])
sockets = ffi.new("hvd_sockets *", [0, 1, lowest, no_file, no_file])
group, error = ffi.new("int *"), new_error()
for life in range(LIVES):
    assert lib.hvd_init_sockets(sockets, error) == lib.HVD_OK, ffi.string(error.text)
    assert lib.hvd_group_open_among(lowest, 1, 1, group, error) == lib.HVD_OK
    lib.hvd_leave(lib.HVD_ALL_GROUPS, b"done")
    while not lib.hvd_wait_end(lib.HVD_ALL_GROUPS, 0.1):
        pass
    meet = threading.Barrier(2)
    closes = threading.Thread(target=lambda meet=meet: (meet.wait(), lib.hvd_group_close(group[0])))
    closes.start()
    meet.wait()
    for _ in range(life % DISTANCES * 100):
        pass
    lib.hvd_close()
    closes.join()
report(0, lives=LIVES)
