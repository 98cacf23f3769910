"""Checkpoints: rank 0 writes a checkpoint, and all ranks resume from it."""

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import mxnet as mx
import numpy as np

from hvdlite.core import progress, topology
from hvdlite.core.agreement import agree
from hvdlite.core.names import owner_name
from hvdlite.core.native import RankFailedError
from hvdlite.core.objects import result_of_root
from hvdlite.machine import files
from hvdlite.mxnet.states import gradients_of, pack_states, refuse_begun, resume, whole_states
from hvdlite.training import left_out

_META = "checkpoint.json"


class Checkpoint:
    """A folder with the last checkpoints of a training run, written by rank 0.

    ::

        checkpoint = hvd.Checkpoint("run1", net=net, trainer=trainer)
        begin, extra = checkpoint.load()        # 0, {} if there is no checkpoint
        for epoch in range(begin, epochs):
            batches.epoch = epoch
            ...
            checkpoint.save(epoch + 1, best=best)

    Each checkpoint is a folder such as ``run1/00000003/``. It contains ``checkpoint.json``,
    ``net.params`` and ``trainer.states``; MXNet's ``net.load_parameters`` and
    ``gluon.Trainer.load_states`` can read the last two without hvdlite. ``left_out.3`` contains the
    compression residuals of rank 3. ``save`` renames the folder to its final name when all files
    are on the disk. If a process is killed, the previous checkpoint is still complete.

    :param folder: the first ``save`` makes this folder; only rank 0 needs access to it.
    :param keep: the number of checkpoints to keep; ``save`` deletes older checkpoints.
    :param parts: Blocks and Trainers; the names of these arguments become names of files.
    :raises ValueError: a part is neither a Block nor a Trainer.
    """

    def __init__(self, folder, *, keep: int = 2, **parts) -> None:
        for name, part in parts.items():
            if not isinstance(part, (mx.gluon.Block, mx.gluon.Trainer)):
                raise ValueError(
                    f"{name} is a {type(part).__name__}: expected a gluon Block or Trainer"
                )
        if keep < 1:
            raise ValueError(f"keep is {keep}: expected at least 1")
        self._folder, self._keep = Path(folder), keep
        # Blocks first: a Trainer can't load the states of parameters that have no shape yet.
        self._parts = dict(sorted(parts.items(), key=lambda item: _is_trainer(item[1])))
        self._of_ranks: List[bytes] = []  # set on rank 0 in load(): the residuals of each rank

    def save(self, epoch: int, **extra) -> None:
        """Write the Blocks and Trainers on rank 0. All ranks make the call, and wait for rank 0.

        With a ``ShardedTrainer`` on several hosts, rank 0 gathers the states first.

        The checkpoint has BatchNorm's running statistics of rank 0. To save their average over
        ranks instead, first call ``hvd.average_statistics``.

        :param epoch: the number of finished epochs, which ``load()`` returns. The number must be
            larger than in the last call.
        :param extra: values that ``load()`` returns: numbers, strings, lists and dicts of these.
        :raises TypeError: JSON can't represent a value of ``extra``.
        :raises RuntimeError: the trainer is between the backward passes of a step.
        :raises hvdlite.HvdliteError: on every rank, if rank 0 can't write the checkpoint, or the
            folder has a checkpoint of this or a later epoch. Existing checkpoints do not change.
        :raises hvdlite.RankFailedError: rank 0 was killed. ``load()`` ignores the unfinished
            checkpoint, and the next ``save`` deletes it.
        """
        trainers = self._trainers()
        for trainer in trainers.values():
            refuse_begun(trainer)
        text, name = json.dumps(extra, default=_from_numpy), owner_name("checkpoint")
        states = {n: whole_states(trainer) for n, trainer in trainers.items()}
        gradients = {n: gradients_of(trainer) for n, trainer in trainers.items()}
        own = {n: each.left_out() for n, each in gradients.items() if each is not None}
        meta = {"epoch": epoch, "extra": json.loads(text), "trainers": {}, "sha256": {}}
        try:
            of_ranks = left_out.collect_residuals(own, name)
            result_of_root(lambda: self._save(states, meta, of_ranks), 0, name)
        except RankFailedError as error:
            what = f"the checkpoint {self._path(epoch)} may be unfinished; earlier checkpoints stay"
            error.args = (f"{what}: {error}",)
            raise

    def _trainers(self) -> Dict[str, Any]:
        return {name: part for name, part in self._parts.items() if _is_trainer(part)}

    def _save(self, states: Dict[str, Any], meta: Dict[str, Any], of_ranks: List[bytes]) -> None:
        newest = max(map(_epoch_of, self._finished()), default=-1)
        if meta["epoch"] <= newest:
            raise ValueError(
                f"{self._folder} has a checkpoint of epoch {newest} already, and this is epoch "
                f"{meta['epoch']}: load() it and continue from there, or use another folder"
            )
        unfinished, path = self._folder / ".unfinished", self._path(meta["epoch"])
        try:
            files.make_named_folder(self._folder)
            shutil.rmtree(unfinished, ignore_errors=True)  # a killed job may have left this folder
            unfinished.mkdir()
            with progress.log_progress(f"checkpoint {path}", lambda: _size_text(unfinished)):
                self._write(unfinished, states, meta, of_ranks)
            for each in (*unfinished.iterdir(), unfinished):
                _write_through(each)
            unfinished.rename(path)
            _write_through(self._folder)
        except Exception as error:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise OSError(f"the checkpoint {path} can't be written: {error}") from error
        for old in self._finished()[: -self._keep]:
            # Rename before deleting, so that load() never reads a folder that is partly deleted.
            old.rename(unfinished)
            shutil.rmtree(unfinished)

    def load(self) -> Tuple[int, Dict[str, Any]]:
        """Load the newest checkpoint into the Blocks and Trainers; return its epoch and ``extra``.

        Collective. Rank 0 reads the files and sends them to the other ranks. If there is no
        checkpoint, the call returns 0 and ``{}`` and changes nothing. If this job has another
        number of ranks, the compression residuals are lost, and rank 0 warns.

        :raises hvdlite.HvdliteError: on every rank, if rank 0 can't read a file, or a file is
            damaged, or the checkpoint lacks a part.
        :raises ValueError: the checkpoint was written for another network or optimizer.
        """
        name = owner_name("checkpoint")
        agree(name, list(self._parts), remedy="Give every rank the same parts.")
        found = result_of_root(self._read, 0, name)
        if found is None:
            return 0, {}
        meta, files = found
        own = self._own_left_out(meta.get("left_out_of", 0), name)
        for name, part in self._parts.items():
            if _is_trainer(part):
                packed = {"states": files[name], **meta["trainers"][name]}
                resume(part, packed, own.get(name, {}))
            else:
                _load_parameters(part, files[name])
        return meta["epoch"], meta["extra"]

    def _own_left_out(self, ranks: int, name: str) -> Dict[str, Any]:
        """Return this rank's compression residuals, by the names of trainers. Collective.

        :param ranks: the size of the job that saved the checkpoint; 0: there are no residuals.
        """
        of_ranks, self._of_ranks = self._of_ranks, []
        if ranks == topology.size():
            return left_out.scatter_residuals(of_ranks, name)
        if ranks and not topology.rank():
            why = f"a job of {ranks} ranks has saved the checkpoint; other ranks lose theirs, too"
            left_out.warn(why, "")
        return {}

    def _read(self) -> Optional[Tuple[Dict[str, Any], Dict[str, bytes]]]:
        finished = self._finished()
        if not finished:
            return None
        folder = finished[-1]
        try:
            meta = json.loads((folder / _META).read_text())
            digests = meta.get("sha256", {})
        except ValueError as error:
            raise _damaged(folder / _META) from error
        is_as_large = meta.get("left_out_of") == topology.size()
        saved = [f"left_out.{number}" for number in range(topology.size() if is_as_large else 0)]
        self._of_ranks = [_read_checked(folder / name, digests.get(name)) for name in saved]
        names = {name: _file_name(name, part) for name, part in self._parts.items()}
        files = {n: _read_checked(folder / name, digests.get(n)) for n, name in names.items()}
        return meta, files

    def _path(self, epoch: int) -> Path:
        return self._folder / f"{epoch:08d}"

    def _finished(self) -> List[Path]:
        """Return the folders of finished checkpoints, the newest last."""
        paths = self._folder.iterdir() if self._folder.is_dir() else ()
        return sorted((path for path in paths if path.name.isdigit()), key=_epoch_of)

    def _write(
        self, folder: Path, states: Dict[str, Any], meta: Dict[str, Any], of_ranks: List[bytes]
    ) -> None:  # fmt: skip
        for name, part in self._parts.items():
            path = folder / _file_name(name, part)
            if _is_trainer(part):
                packed = pack_states(part, states[name])
                _write(path, packed.pop("states"))
                meta["trainers"][name] = packed
            else:
                part.save_parameters(str(path))
            meta["sha256"][name] = hashlib.sha256(path.read_bytes()).hexdigest()
        if any(of_ranks):
            meta["left_out_of"] = len(of_ranks)
            for number, data in enumerate(of_ranks):
                name = f"left_out.{number}"
                _write(folder / name, data)
                meta["sha256"][name] = hashlib.sha256(data).hexdigest()
        _write(folder / _META, json.dumps(meta, indent=1).encode())


def _size_text(folder: Path) -> str:
    return f"{sum(file.stat().st_size for file in folder.iterdir()) / 1e6:,.0f} MB are written"


def _is_trainer(part) -> bool:
    return isinstance(part, mx.gluon.Trainer)


def _read_checked(path: Path, digest: Optional[str]) -> bytes:
    data = path.read_bytes()
    if digest and hashlib.sha256(data).hexdigest() != digest:
        raise _damaged(path)
    return data


def _damaged(path: Path) -> ValueError:
    return ValueError(f"{path} is damaged: delete {path.parent} to load the checkpoint before it")


def _file_name(name: str, part) -> str:
    return f"{name}.states" if _is_trainer(part) else f"{name}.params"


def _epoch_of(path: Path) -> int:
    return int(path.name)


def _from_numpy(value):
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} can't be kept in a checkpoint: expected numbers, "
                    "strings, lists or dicts")  # fmt: skip


def _write(path: Path, data: bytes) -> None:
    with files.open_named(path, "wb") as file:
        file.write(data)


def _write_through(path: Path) -> None:
    """Wait until the disk has stored the file or folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _load_parameters(block, data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "params")
        _write(path, data)
        block.load_parameters(str(path))
