// Process: the state that the backend keeps between calls. Made when Python loads the backend.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <atomic>

#include <unistd.h>

extern "C" {
#include "functions.h"
}

namespace hvdlite {

class Keeper;

struct Process {
    pid_t pid = getpid();               // to recognize a forked child, which has no threads
    struct core core = {};              // functions of the core that Python has loaded
    PyObject *bucket = nullptr;         // bucket() of groups.py; never released
    std::atomic<int> jobs{1};           // number of the job; reconfigure begins another job
    std::atomic<bool> stage_all{false}; // for tests without a GPU: stage CPU tensors, too
    Keeper *keeper = nullptr;           // never freed: its threads are not joined
};
inline Process process;

} // namespace hvdlite
