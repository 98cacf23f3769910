"""The variables by which launchers tell a process its place in a job: one row for each launcher."""

from typing import NamedTuple, Tuple


class Launcher(NamedTuple):
    """One launcher, with variables that it sets in each process that it starts."""

    name: str  # name in error texts
    rank: str  # variable with the process's number
    size: str = ""  # variable with the number of processes; "": there is none
    more: Tuple[str, ...] = ()  # further variables of the launcher that hvdlite needs

    @property
    def variables(self) -> Tuple[str, ...]:
        return (self.rank, self.size, *self.more)


_PLACE = "OMPI_COMM_WORLD_"
_LOCAL = (f"{_PLACE}LOCAL_RANK", f"{_PLACE}LOCAL_SIZE")
OPEN_MPI = Launcher("Open MPI's mpirun", f"{_PLACE}RANK", f"{_PLACE}SIZE", _LOCAL)
PMI = Launcher("a launcher of PMI", "PMI_RANK", "PMI_SIZE", ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"))
PMIX = Launcher("a launcher of PMIx", "PMIX_RANK")
MVAPICH = Launcher("MVAPICH's mpirun", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE")
JSRUN = Launcher("jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE")
APRUN = Launcher("aprun", "ALPS_APP_PE")
_MORE = (Launcher("mpirun_rsh", "MPIRUN_RANK"), Launcher("PALS", "PALS_RANKID"))
OF_MPI = (OPEN_MPI, PMIX, PMI, APRUN, JSRUN, MVAPICH, *_MORE)

_MASTER = ("MASTER_ADDR", "MASTER_PORT")
TORCHRUN = Launcher("torchrun", "RANK", "WORLD_SIZE", ("LOCAL_RANK", *_MASTER))
TORCHELASTIC = "TORCHELASTIC_RUN_ID"  # torchrun sets it in ranks, and has it not itself
JAX = Launcher("JAX", "JAX_PROCESS_ID", "JAX_NUM_PROCESSES", ("JAX_COORDINATOR_ADDRESS",))
_STEP = ("SLURM_STEP_NODELIST", "SLURM_JOB_ID")
SRUN = Launcher("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", _STEP)
_SERVERS = ("DMLC_NUM_SERVER", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT")
MXNET = Launcher("MXNet's launch.py or dmlc-submit", "DMLC_ROLE", "DMLC_NUM_WORKER", _SERVERS)
HOROVODRUN = Launcher("horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE")
FLUX = Launcher("flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE")
TENSORFLOW = Launcher("TensorFlow's cluster", "TF_CONFIG")  # JSON, with all addresses
