"""The variables by which launchers tell a process its rank: one row for each launcher."""

from typing import NamedTuple, Tuple

_HVDLITERUN = "Start it by `hvdliterun -n {n} python train.py`"
_OTHER_MPI = f"{_HVDLITERUN}, or by the mpirun of the MPI that mpi4py has loaded"


class Launcher(NamedTuple):
    """One launcher, with variables that it sets in each process that it starts."""

    name: str  # name in error texts
    rank: str  # variable with the process's number
    size: str = ""  # variable with the number of processes; "": there is none
    more: Tuple[str, ...] = ()  # other variables that hvdlite needs
    run: Tuple[str, ...] = ()  # variables that have other values in each job of the launcher
    advice: str = _OTHER_MPI  # what to do if each of n processes is a job of one rank

    @property
    def variables(self) -> Tuple[str, ...]:
        return (self.rank, self.size, *self.more)


_PLACE = "OMPI_COMM_WORLD_"
_LOCAL = (f"{_PLACE}LOCAL_RANK", f"{_PLACE}LOCAL_SIZE")
OPEN_MPI = Launcher("Open MPI's mpirun", f"{_PLACE}RANK", f"{_PLACE}SIZE", _LOCAL)
PMI = Launcher("a launcher of PMI", "PMI_RANK", "PMI_SIZE", ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"))
PMIX = Launcher("a launcher of PMIx", "PMIX_RANK", run=("PMIX_NAMESPACE", PMI.size, "PMI_FD"))
MVAPICH = Launcher("MVAPICH's mpirun", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE")
JSRUN = Launcher("jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE")
APRUN = Launcher("aprun", "ALPS_APP_PE")
_MORE = (Launcher("mpirun_rsh", "MPIRUN_RANK"), Launcher("PALS", "PALS_RANKID"))
OF_MPI = (OPEN_MPI, PMIX, PMI, APRUN, JSRUN, MVAPICH, *_MORE)

_MASTER = ("MASTER_ADDR", "MASTER_PORT")
TORCHELASTIC = "TORCHELASTIC_RUN_ID"  # set in ranks, but not in torchrun itself
_RUN = (TORCHELASTIC, "TORCHELASTIC_RESTART_COUNT")
TORCHRUN = Launcher(
    "torchrun", "RANK", "WORLD_SIZE", ("LOCAL_RANK", *_MASTER), _RUN, advice=_HVDLITERUN
)
JAX = Launcher("JAX", "JAX_PROCESS_ID", "JAX_NUM_PROCESSES", ("JAX_COORDINATOR_ADDRESS",))
_STEP = ("SLURM_STEP_NODELIST", "SLURM_JOB_ID")
SRUN = Launcher(
    *("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", _STEP, ("SLURM_STEP_ID",)),
    advice="Start it by `srun --mpi=none`, which needs no MPI, by `srun --mpi=pmix`, or by "
    "`hvdliterun -n {n} python train.py` inside the allocation",
)
_SERVERS = ("DMLC_NUM_SERVER", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT")
MXNET = Launcher(
    *("MXNet's launch.py or dmlc-submit", "DMLC_ROLE", "DMLC_NUM_WORKER", _SERVERS),
    advice=f"{_HVDLITERUN}, or by `launch.py -n {{n}} -s 1`, which sets DMLC_PS_ROOT_URI, "
    "DMLC_PS_ROOT_PORT and DMLC_NUM_SERVER. End a `launch.py -s 0` that waits forever by Ctrl-C",
)
HOROVODRUN = Launcher("horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE", advice=_HVDLITERUN)
FLUX = Launcher("flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE")
# TF_CONFIG is JSON, with all addresses
TENSORFLOW = Launcher("TensorFlow's cluster", "TF_CONFIG", advice=_HVDLITERUN)
WITHOUT_MPI = (TORCHRUN, JAX, SRUN)
# Launchers that some MPI does not know: this MPI makes each of their processes a job of one rank.
_NOT_OF_MPI = (HOROVODRUN, MXNET, FLUX, TENSORFLOW)
UNKNOWN_TO_MPI = (TORCHRUN, SRUN, OPEN_MPI, PMI, PMIX, MVAPICH, JSRUN, APRUN, *_NOT_OF_MPI)
