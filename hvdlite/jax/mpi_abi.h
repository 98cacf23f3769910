/* The names of MPItrampoline's ABI 2.10 that library.c does not define, as X-macro lists.
 *
 * Written by tools/jax_abi.py from the folder mpiabi of MPItrampoline v5.3.1 (MIT license). */
/* clang-format off */
#define MPI_CONSTANTS(ROW) ROW(ANY_SOURCE) ROW(ANY_TAG) ROW(PROC_NULL) ROW(ROOT) ROW(CART) \
    ROW(DIST_GRAPH) ROW(GRAPH) ROW(CONGRUENT) ROW(IDENT) ROW(SIMILAR) ROW(UNEQUAL) \
    ROW(BSEND_OVERHEAD) ROW(KEYVAL_INVALID) ROW(APPNUM) ROW(HOST) ROW(IO) ROW(LASTUSEDCODE) \
    ROW(TAG_UB) ROW(UNIVERSE_SIZE) ROW(WIN_BASE) ROW(WIN_CREATE_FLAVOR) ROW(WIN_DISP_UNIT) \
    ROW(WIN_MODEL) ROW(WIN_SIZE) ROW(WTIME_IS_GLOBAL) ROW(COMBINER_CONTIGUOUS) \
    ROW(COMBINER_DARRAY) ROW(COMBINER_DUP) ROW(COMBINER_F90_COMPLEX) ROW(COMBINER_F90_INTEGER) \
    ROW(COMBINER_F90_REAL) ROW(COMBINER_HINDEXED) ROW(COMBINER_HINDEXED_BLOCK) \
    ROW(COMBINER_HVECTOR) ROW(COMBINER_INDEXED) ROW(COMBINER_INDEXED_BLOCK) ROW(COMBINER_NAMED) \
    ROW(COMBINER_RESIZED) ROW(COMBINER_STRUCT) ROW(COMBINER_SUBARRAY) ROW(COMBINER_VECTOR) \
    ROW(COMM_TYPE_SHARED) ROW(DISTRIBUTE_BLOCK) ROW(DISTRIBUTE_CYCLIC) ROW(DISTRIBUTE_DFLT_DARG) \
    ROW(DISTRIBUTE_NONE) ROW(ERR_ACCESS) ROW(ERR_AMODE) ROW(ERR_ARG) ROW(ERR_ASSERT) \
    ROW(ERR_BAD_FILE) ROW(ERR_BASE) ROW(ERR_BUFFER) ROW(ERR_COMM) ROW(ERR_CONVERSION) \
    ROW(ERR_COUNT) ROW(ERR_DIMS) ROW(ERR_DISP) ROW(ERR_DUP_DATAREP) ROW(ERR_FILE) \
    ROW(ERR_FILE_EXISTS) ROW(ERR_FILE_IN_USE) ROW(ERR_GROUP) ROW(ERR_INFO) ROW(ERR_INFO_KEY) \
    ROW(ERR_INFO_NOKEY) ROW(ERR_INFO_VALUE) ROW(ERR_INTERN) ROW(ERR_IN_STATUS) ROW(ERR_IO) \
    ROW(ERR_KEYVAL) ROW(ERR_LASTCODE) ROW(ERR_LOCKTYPE) ROW(ERR_NAME) ROW(ERR_NOT_SAME) \
    ROW(ERR_NO_MEM) ROW(ERR_NO_SPACE) ROW(ERR_NO_SUCH_FILE) ROW(ERR_OP) ROW(ERR_OTHER) \
    ROW(ERR_PENDING) ROW(ERR_PORT) ROW(ERR_QUOTA) ROW(ERR_RANK) ROW(ERR_READ_ONLY) \
    ROW(ERR_REQUEST) ROW(ERR_RMA_ATTACH) ROW(ERR_RMA_CONFLICT) ROW(ERR_RMA_FLAVOR) \
    ROW(ERR_RMA_RANGE) ROW(ERR_RMA_SHARED) ROW(ERR_RMA_SYNC) ROW(ERR_ROOT) ROW(ERR_SERVICE) \
    ROW(ERR_SIZE) ROW(ERR_SPAWN) ROW(ERR_TAG) ROW(ERR_TOPOLOGY) ROW(ERR_TRUNCATE) ROW(ERR_TYPE) \
    ROW(ERR_UNKNOWN) ROW(ERR_UNSUPPORTED_DATAREP) ROW(ERR_UNSUPPORTED_OPERATION) ROW(ERR_WIN) \
    ROW(SUCCESS) ROW(LOCK_EXCLUSIVE) ROW(LOCK_SHARED) ROW(MODE_APPEND) ROW(MODE_CREATE) \
    ROW(MODE_DELETE_ON_CLOSE) ROW(MODE_EXCL) ROW(MODE_NOCHECK) ROW(MODE_NOPRECEDE) ROW(MODE_NOPUT) \
    ROW(MODE_NOSTORE) ROW(MODE_NOSUCCEED) ROW(MODE_RDONLY) ROW(MODE_RDWR) ROW(MODE_SEQUENTIAL) \
    ROW(MODE_UNIQUE_OPEN) ROW(MODE_WRONLY) ROW(ORDER_C) ROW(ORDER_FORTRAN) ROW(SEEK_CUR) \
    ROW(SEEK_END) ROW(SEEK_SET) ROW(THREAD_SERIALIZED) ROW(THREAD_SINGLE) ROW(TYPECLASS_COMPLEX) \
    ROW(TYPECLASS_INTEGER) ROW(TYPECLASS_REAL) ROW(WIN_FLAVOR_ALLOCATE) ROW(WIN_FLAVOR_CREATE) \
    ROW(WIN_FLAVOR_DYNAMIC) ROW(WIN_FLAVOR_SHARED) ROW(WIN_SEPARATE) ROW(WIN_UNIFIED) \
    ROW(ARGV_NULL) ROW(ARGVS_NULL) ROW(ERRCODES_IGNORE) ROW(UNWEIGHTED) ROW(WEIGHTS_EMPTY) \
    ROW(BOTTOM) ROW(IN_PLACE) ROW(COMM_NULL) ROW(COMM_SELF) ROW(COMM_DUP_FN) \
    ROW(COMM_NULL_COPY_FN) ROW(COMM_NULL_DELETE_FN) ROW(DUP_FN) ROW(NULL_COPY_FN) \
    ROW(CONVERSION_FN_NULL) ROW(2DOUBLE_PRECISION) ROW(2INT) ROW(2INTEGER) ROW(2REAL) ROW(AINT) \
    ROW(CHAR) ROW(CHARACTER) ROW(COMPLEX) ROW(COMPLEX16) ROW(COMPLEX32) ROW(COMPLEX8) ROW(COUNT) \
    ROW(CXX_BOOL) ROW(CXX_DOUBLE_COMPLEX) ROW(CXX_FLOAT_COMPLEX) ROW(CXX_LONG_DOUBLE_COMPLEX) \
    ROW(C_FLOAT_COMPLEX) ROW(C_LONG_DOUBLE_COMPLEX) ROW(DATATYPE_NULL) ROW(DOUBLE_COMPLEX) \
    ROW(DOUBLE_INT) ROW(DOUBLE_PRECISION) ROW(FLOAT_INT) ROW(INT) ROW(INTEGER) ROW(INTEGER1) \
    ROW(INTEGER2) ROW(INTEGER4) ROW(INTEGER8) ROW(LOGICAL) ROW(LONG) ROW(LONG_DOUBLE) \
    ROW(LONG_DOUBLE_INT) ROW(LONG_INT) ROW(LONG_LONG) ROW(LONG_LONG_INT) ROW(OFFSET) ROW(PACKED) \
    ROW(REAL) ROW(REAL16) ROW(REAL4) ROW(REAL8) ROW(SHORT) ROW(SHORT_INT) ROW(SIGNED_CHAR) \
    ROW(UNSIGNED) ROW(UNSIGNED_CHAR) ROW(UNSIGNED_LONG) ROW(UNSIGNED_LONG_LONG) \
    ROW(UNSIGNED_SHORT) ROW(WCHAR) ROW(NULL_DELETE_FN) ROW(ERRHANDLER_NULL) ROW(ERRORS_ARE_FATAL) \
    ROW(ERRORS_RETURN) ROW(FILE_NULL) ROW(F_STATUS_IGNORE) ROW(F_STATUSES_IGNORE) ROW(GROUP_EMPTY) \
    ROW(GROUP_NULL) ROW(INFO_ENV) ROW(INFO_NULL) ROW(MESSAGE_NO_PROC) ROW(MESSAGE_NULL) \
    ROW(DISPLACEMENT_CURRENT) ROW(BAND) ROW(BOR) ROW(BXOR) ROW(LAND) ROW(LOR) ROW(LXOR) \
    ROW(MAXLOC) ROW(MINLOC) ROW(NO_OP) ROW(OP_NULL) ROW(REPLACE) ROW(REQUEST_NULL) \
    ROW(STATUS_IGNORE) ROW(STATUSES_IGNORE) ROW(TYPE_DUP_FN) ROW(TYPE_NULL_COPY_FN) \
    ROW(TYPE_NULL_DELETE_FN) ROW(WIN_NULL) ROW(WIN_DUP_FN) ROW(WIN_NULL_COPY_FN) \
    ROW(WIN_NULL_DELETE_FN)
#define MPI_FUNCTIONS(ROW) ROW(Send) ROW(Recv) ROW(Get_count) ROW(Bsend) ROW(Ssend) ROW(Rsend) \
    ROW(Buffer_attach) ROW(Buffer_detach) ROW(Ibsend) ROW(Issend) ROW(Irsend) ROW(Test) \
    ROW(Request_free) ROW(Waitany) ROW(Testany) ROW(Waitall) ROW(Testall) ROW(Waitsome) \
    ROW(Testsome) ROW(Request_get_status) ROW(Iprobe) ROW(Probe) ROW(Improbe) ROW(Mprobe) \
    ROW(Mrecv) ROW(Imrecv) ROW(Cancel) ROW(Test_cancelled) ROW(Send_init) ROW(Bsend_init) \
    ROW(Ssend_init) ROW(Rsend_init) ROW(Recv_init) ROW(Start) ROW(Startall) ROW(Sendrecv_replace) \
    ROW(Type_contiguous) ROW(Type_vector) ROW(Type_create_hvector) ROW(Type_indexed) \
    ROW(Type_create_hindexed) ROW(Type_create_indexed_block) ROW(Type_create_hindexed_block) \
    ROW(Type_create_struct) ROW(Type_struct) ROW(Type_create_subarray) ROW(Type_create_darray) \
    ROW(Get_address) ROW(Aint_add) ROW(Aint_diff) ROW(Type_size) ROW(Type_size_x) \
    ROW(Type_get_extent) ROW(Type_get_extent_x) ROW(Type_create_resized) ROW(Type_get_true_extent) \
    ROW(Type_get_true_extent_x) ROW(Type_commit) ROW(Type_free) ROW(Type_dup) ROW(Get_elements) \
    ROW(Get_elements_x) ROW(Type_get_envelope) ROW(Type_get_contents) ROW(Pack) ROW(Unpack) \
    ROW(Pack_size) ROW(Pack_external) ROW(Unpack_external) ROW(Pack_external_size) ROW(Barrier) \
    ROW(Bcast) ROW(Gather) ROW(Gatherv) ROW(Scatter) ROW(Scatterv) ROW(Allgatherv) ROW(Alltoall) \
    ROW(Alltoallv) ROW(Alltoallw) ROW(Reduce) ROW(Op_create) ROW(Op_free) ROW(Op_commutative) \
    ROW(Reduce_local) ROW(Reduce_scatter_block) ROW(Scan) ROW(Exscan) ROW(Ibarrier) ROW(Ibcast) \
    ROW(Igather) ROW(Igatherv) ROW(Iscatter) ROW(Iscatterv) ROW(Iallgather) ROW(Iallgatherv) \
    ROW(Ialltoall) ROW(Ialltoallv) ROW(Ialltoallw) ROW(Ireduce) ROW(Iallreduce) \
    ROW(Ireduce_scatter_block) ROW(Ireduce_scatter) ROW(Iscan) ROW(Iexscan) ROW(Group_size) \
    ROW(Group_rank) ROW(Group_translate_ranks) ROW(Group_compare) ROW(Comm_group) ROW(Group_union) \
    ROW(Group_intersection) ROW(Group_difference) ROW(Group_incl) ROW(Group_excl) \
    ROW(Group_range_incl) ROW(Group_range_excl) ROW(Group_free) ROW(Comm_compare) ROW(Comm_dup) \
    ROW(Comm_dup_with_info) ROW(Comm_idup) ROW(Comm_create) ROW(Comm_create_group) \
    ROW(Comm_split_type) ROW(Comm_set_info) ROW(Comm_get_info) ROW(Comm_test_inter) \
    ROW(Comm_remote_size) ROW(Comm_remote_group) ROW(Intercomm_create) ROW(Intercomm_merge) \
    ROW(Comm_create_keyval) ROW(Comm_free_keyval) ROW(Comm_set_attr) ROW(Comm_get_attr) \
    ROW(Comm_delete_attr) ROW(Win_create_keyval) ROW(Win_free_keyval) ROW(Win_set_attr) \
    ROW(Win_get_attr) ROW(Win_delete_attr) ROW(Type_create_keyval) ROW(Type_free_keyval) \
    ROW(Type_set_attr) ROW(Type_get_attr) ROW(Type_delete_attr) ROW(Comm_set_name) \
    ROW(Comm_get_name) ROW(Type_set_name) ROW(Type_get_name) ROW(Win_set_name) ROW(Win_get_name) \
    ROW(Cart_create) ROW(Dims_create) ROW(Graph_create) ROW(Dist_graph_create_adjacent) \
    ROW(Dist_graph_create) ROW(Topo_test) ROW(Graphdims_get) ROW(Graph_get) ROW(Cartdim_get) \
    ROW(Cart_get) ROW(Cart_rank) ROW(Cart_coords) ROW(Graph_neighbors_count) ROW(Graph_neighbors) \
    ROW(Dist_graph_neighbors_count) ROW(Dist_graph_neighbors) ROW(Cart_shift) ROW(Cart_sub) \
    ROW(Cart_map) ROW(Graph_map) ROW(Neighbor_allgather) ROW(Neighbor_allgatherv) \
    ROW(Neighbor_alltoall) ROW(Neighbor_alltoallv) ROW(Neighbor_alltoallw) \
    ROW(Ineighbor_allgather) ROW(Ineighbor_allgatherv) ROW(Ineighbor_alltoall) \
    ROW(Ineighbor_alltoallv) ROW(Ineighbor_alltoallw) ROW(Get_version) ROW(Get_library_version) \
    ROW(Get_processor_name) ROW(Alloc_mem) ROW(Free_mem) ROW(Comm_create_errhandler) \
    ROW(Comm_set_errhandler) ROW(Comm_get_errhandler) ROW(Win_create_errhandler) \
    ROW(Win_set_errhandler) ROW(Win_get_errhandler) ROW(File_create_errhandler) \
    ROW(File_set_errhandler) ROW(File_get_errhandler) ROW(Errhandler_free) ROW(Error_class) \
    ROW(Add_error_class) ROW(Add_error_code) ROW(Add_error_string) ROW(Comm_call_errhandler) \
    ROW(Win_call_errhandler) ROW(File_call_errhandler) ROW(Wtime) ROW(Wtick) ROW(Init) \
    ROW(Initialized) ROW(Abort) ROW(Finalized) ROW(Info_create) ROW(Info_set) ROW(Info_delete) \
    ROW(Info_get) ROW(Info_get_valuelen) ROW(Info_get_nkeys) ROW(Info_get_nthkey) ROW(Info_dup) \
    ROW(Info_free) ROW(Comm_spawn) ROW(Comm_get_parent) ROW(Comm_spawn_multiple) ROW(Open_port) \
    ROW(Close_port) ROW(Comm_accept) ROW(Comm_connect) ROW(Publish_name) ROW(Unpublish_name) \
    ROW(Lookup_name) ROW(Comm_disconnect) ROW(Comm_join) ROW(Win_create) ROW(Win_allocate) \
    ROW(Win_allocate_shared) ROW(Win_shared_query) ROW(Win_create_dynamic) ROW(Win_attach) \
    ROW(Win_detach) ROW(Win_free) ROW(Win_get_group) ROW(Win_set_info) ROW(Win_get_info) ROW(Put) \
    ROW(Get) ROW(Accumulate) ROW(Get_accumulate) ROW(Fetch_and_op) ROW(Compare_and_swap) ROW(Rput) \
    ROW(Rget) ROW(Raccumulate) ROW(Rget_accumulate) ROW(Win_fence) ROW(Win_start) \
    ROW(Win_complete) ROW(Win_post) ROW(Win_wait) ROW(Win_test) ROW(Win_lock) ROW(Win_lock_all) \
    ROW(Win_unlock) ROW(Win_unlock_all) ROW(Win_flush) ROW(Win_flush_all) ROW(Win_flush_local) \
    ROW(Win_flush_local_all) ROW(Win_sync) ROW(Grequest_start) ROW(Grequest_complete) \
    ROW(Status_set_elements) ROW(Status_set_elements_x) ROW(Status_set_cancelled) \
    ROW(Query_thread) ROW(File_open) ROW(File_close) ROW(File_delete) ROW(File_set_size) \
    ROW(File_preallocate) ROW(File_get_size) ROW(File_get_group) ROW(File_get_amode) \
    ROW(File_set_info) ROW(File_get_info) ROW(File_set_view) ROW(File_get_view) ROW(File_read_at) \
    ROW(File_read_at_all) ROW(File_write_at) ROW(File_write_at_all) ROW(File_iread_at) \
    ROW(File_iread_at_all) ROW(File_iwrite_at) ROW(File_iwrite_at_all) ROW(File_read) \
    ROW(File_read_all) ROW(File_write) ROW(File_write_all) ROW(File_iread) ROW(File_iread_all) \
    ROW(File_iwrite) ROW(File_iwrite_all) ROW(File_seek) ROW(File_get_position) \
    ROW(File_get_byte_offset) ROW(File_read_shared) ROW(File_write_shared) ROW(File_iread_shared) \
    ROW(File_iwrite_shared) ROW(File_read_ordered) ROW(File_write_ordered) ROW(File_seek_shared) \
    ROW(File_get_position_shared) ROW(File_read_at_all_begin) ROW(File_read_at_all_end) \
    ROW(File_write_at_all_begin) ROW(File_write_at_all_end) ROW(File_read_all_begin) \
    ROW(File_read_all_end) ROW(File_write_all_begin) ROW(File_write_all_end) \
    ROW(File_read_ordered_begin) ROW(File_read_ordered_end) ROW(File_write_ordered_begin) \
    ROW(File_write_ordered_end) ROW(File_get_type_extent) ROW(Register_datarep) \
    ROW(File_set_atomicity) ROW(File_get_atomicity) ROW(File_sync) ROW(Type_create_f90_real) \
    ROW(Type_create_f90_complex) ROW(Type_create_f90_integer) ROW(Type_match_size) ROW(Comm_f2c) \
    ROW(Comm_c2f) ROW(Type_f2c) ROW(Type_c2f) ROW(Group_f2c) ROW(Group_c2f) ROW(Request_f2c) \
    ROW(Request_c2f) ROW(File_f2c) ROW(File_c2f) ROW(Win_f2c) ROW(Win_c2f) ROW(Op_f2c) ROW(Op_c2f) \
    ROW(Info_f2c) ROW(Info_c2f) ROW(Errhandler_f2c) ROW(Errhandler_c2f) ROW(Message_f2c) \
    ROW(Message_c2f) ROW(Status_f2c) ROW(Status_c2f)
#define MPIX_FUNCTIONS(ROW) ROW(Query_cuda_support) ROW(Query_hip_support) ROW(Query_ze_support)
