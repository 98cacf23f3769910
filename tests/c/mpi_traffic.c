/* The traffic of test_transport.c between processes that MPI connects: run it by mpirun. */
#include "check.h"

#include "traffic.h"
#include "transport/transport_mpi.h"

#include <mpi.h>

TEST(test_messages_and_transfers_over_mpi_do_not_mix) {
    MPI_Comm world = MPI_COMM_WORLD;
    int threads;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &threads);
    for (int window = 0; window < 2; window++) {
        struct transport_config config = {.window = window};
        struct transport *t;
        OK(transport_mpi_open(&t, &world, NULL, NULL, &config, ERR));
        REQUIRE(t != NULL);
        CHECK_INT(t->at.size, 3); /* 1: mpirun is of another MPI than this program */
        traffic(t);
        transport_close(t, true);
    }
    MPI_Finalize();
}
