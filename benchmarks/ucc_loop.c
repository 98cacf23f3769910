/* Repeats an allreduce of UCC in a C loop, for benchmarks/small.py. */
#include <ucc/api/ucc.h>

#include <stddef.h>

typedef int gather(const void *mine, void *all, size_t bytes);

static gather *gather_all;
static ucc_context_h context;
static ucc_team_h team;

static ucc_status_t oob_gather(void *mine, void *all, size_t bytes, void *info, void **request) {
    (void)info;
    *request = all;
    return gather_all(mine, all, bytes) ? UCC_ERR_NO_MESSAGE : UCC_OK;
}

static ucc_status_t oob_done(void *request) { return (void)request, UCC_OK; }

#define TRY(call)                                                                                  \
    do {                                                                                           \
        ucc_status_t status_ = (call);                                                             \
        if (status_ != UCC_OK) return status_;                                                     \
    } while (0)

int ucc_loop_open(unsigned rank, unsigned size, gather *all) {
    ucc_oob_coll_t oob = {oob_gather, oob_done, oob_done, NULL, size, rank};
    ucc_lib_params_t of_lib = {.mask = UCC_LIB_PARAM_FIELD_THREAD_MODE,
                               .thread_mode = UCC_THREAD_SINGLE};
    ucc_context_params_t of_context = {.mask = UCC_CONTEXT_PARAM_FIELD_OOB, .oob = oob};
    ucc_team_params_t of_team = {.mask = UCC_TEAM_PARAM_FIELD_OOB, .oob = oob};
    ucc_lib_config_h lib_config;
    ucc_context_config_h context_config;
    ucc_lib_h lib;
    ucc_status_t status;
    gather_all = all;
    TRY(ucc_lib_config_read(NULL, NULL, &lib_config));
    TRY(ucc_init(&of_lib, lib_config, &lib));
    TRY(ucc_context_config_read(lib, NULL, &context_config));
    TRY(ucc_context_create(lib, &of_context, context_config, &context));
    TRY(ucc_team_create_post(&context, 1, &of_team, &team));
    while ((status = ucc_team_create_test(team)) == UCC_INPROGRESS) ucc_context_progress(context);
    return status;
}

int ucc_loop_plan(float *data, size_t count, ucc_coll_req_h *plan) {
    ucc_coll_args_t args = {.mask = UCC_COLL_ARGS_FIELD_FLAGS,
                            .flags = UCC_COLL_ARGS_FLAG_PERSISTENT | UCC_COLL_ARGS_FLAG_IN_PLACE,
                            .coll_type = UCC_COLL_TYPE_ALLREDUCE,
                            .op = UCC_OP_SUM,
                            .dst.info = {data, count, UCC_DT_FLOAT32, UCC_MEMORY_TYPE_HOST}};
    return ucc_collective_init(&args, plan, team);
}

int ucc_loop_run(ucc_coll_req_h plan, int count) {
    for (int i = 0; i < count; i++) {
        ucc_status_t status = ucc_collective_post(plan);
        while (status == UCC_OK && (status = ucc_collective_test(plan)) == UCC_INPROGRESS) {
            ucc_context_progress(context);
            status = UCC_OK;
        }
        if (status != UCC_OK) return status;
    }
    return UCC_OK;
}
