"""Checkpoints: rank 0 writes them, and all ranks resume from the same one."""

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import mxnet as mx
import numpy as np

from hvdlite.core import files, progress
from hvdlite.core.names import owner_name
from hvdlite.core.native import RankFailedError
from hvdlite.core.objects import agree, result_of_root
from hvdlite.mxnet.states import pack_states, refuse_begun, resume, whole_states

_META = "checkpoint.json"


class Checkpoint:
    """A folder with the last checkpoints of a training run, written by rank 0.

    ::

        checkpoint = hvd.Checkpoint("run1", net=net, trainer=trainer)
        begin, extra = checkpoint.load()        # 0, {} where there is none yet
        for epoch in range(begin, epochs):
            batches.epoch = epoch
            ...
            checkpoint.save(epoch + 1, best=best)

    A checkpoint is a folder of its own: ``run1/00000003/`` with ``net.params`` and
    ``trainer.states``, which ``net.load_parameters`` and ``gluon.Trainer.load_states`` read without
    hvdlite too, and ``checkpoint.json``. The folder gets its name when all of it is on the disk, so
    a process killed at any time leaves the last whole checkpoint.

    :param folder: made by the first ``save``; only rank 0 needs to reach it.
    :param keep: how many checkpoints stay; older ones are deleted.
    :param parts: Blocks and Trainers by the names of their files; for a GAN several of each.
    :raises ValueError: a part is something else.
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

    def save(self, epoch: int, **extra) -> None:
        """Write the parts as they are now, on rank 0. All ranks call it, and wait for rank 0.

        With a ``ShardedTrainer`` on several hosts rank 0 gathers the states.

        BatchNorm's running statistics are those of rank 0; call ``hvd.average_statistics`` before
        to make them equal.

        :param epoch: the number of epochs done, which ``load()`` returns; more than at the last
            save.
        :param extra: more for ``load()`` to return: numbers, texts, lists and dicts of them.
        :raises TypeError: JSON has no form for ``extra``.
        :raises RuntimeError: a step has done only some of its backward passes.
        :raises hvdlite.HvdliteError: on every rank, if rank 0 can't write the checkpoint, or the
            folder already has a checkpoint of this or a later epoch. Earlier ones do not change.
        :raises hvdlite.RankFailedError: rank 0 was killed. ``load()`` ignores the unfinished
            checkpoint, and the next ``save`` deletes it.
        """
        for part in filter(_is_trainer, self._parts.values()):
            refuse_begun(part)
        text = json.dumps(extra, default=_from_numpy)
        states = {n: whole_states(p) for n, p in self._parts.items() if _is_trainer(p)}
        meta = {"epoch": epoch, "extra": json.loads(text), "trainers": {}, "sha256": {}}
        try:
            result_of_root(lambda: self._save(states, meta), 0, owner_name("checkpoint"))
        except RankFailedError as error:
            what = f"the checkpoint {self._path(epoch)} may be unfinished, those before it stay"
            error.args = (f"{what}: {error}",)
            raise

    def _save(self, states: Dict[str, Any], meta: Dict[str, Any]) -> None:
        newest = max(map(_epoch_of, self._finished()), default=-1)
        if meta["epoch"] <= newest:
            raise ValueError(
                f"{self._folder} has a checkpoint of epoch {newest} already, and this is epoch "
                f"{meta['epoch']}: load() it and continue from there, or use another folder"
            )
        unfinished, path = self._folder / ".unfinished", self._path(meta["epoch"])
        try:
            files.make_named_folder(self._folder)
            shutil.rmtree(unfinished, ignore_errors=True)  # of a job that was killed
            unfinished.mkdir()
            with progress.told(f"checkpoint {path}", lambda: _size_text(unfinished)):
                self._write(unfinished, states, meta)
            for each in (*unfinished.iterdir(), unfinished):
                _write_through(each)
            unfinished.rename(path)
            _write_through(self._folder)
        except Exception as error:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise OSError(f"the checkpoint {path} can't be written: {error}") from error
        for old in self._finished()[: -self._keep]:
            old.rename(unfinished)  # so that load() takes no part of it for a checkpoint
            shutil.rmtree(unfinished)

    def load(self) -> Tuple[int, Dict[str, Any]]:
        """Load the newest checkpoint into the parts, on every rank; return its epoch and extra.

        Collective. Rank 0 reads the files and sends them. Without a checkpoint every rank loads
        nothing and gets 0 and ``{}``. What compression had left out of gradients is in no
        checkpoint: a warning says so.

        :raises hvdlite.HvdliteError: on every rank, if rank 0 can't read the files, or they are
            damaged, or the checkpoint lacks a part.
        :raises ValueError: the checkpoint is that of another network or optimizer.
        """
        name = owner_name("checkpoint")
        agree(name, list(self._parts), remedy="Give every rank the same parts.")
        found = result_of_root(self._read, 0, name)
        if found is None:
            return 0, {}
        meta, files = found
        for name, part in self._parts.items():
            if _is_trainer(part):
                resume(part, {"states": files[name], **meta["trainers"][name]})
            else:
                _load_parameters(part, files[name])
        return meta["epoch"], meta["extra"]

    def _read(self) -> Optional[Tuple[Dict[str, Any], Dict[str, bytes]]]:
        finished = self._finished()
        if not finished:
            return None
        folder = finished[-1]
        try:
            meta = json.loads((folder / _META).read_text())
            names = {name: _file_name(name, part) for name, part in self._parts.items()}
            files = {name: (folder / file).read_bytes() for name, file in names.items()}
        except ValueError as error:
            raise _damaged(folder / _META) from error
        for name, digest in meta.get("sha256", {}).items():
            if name in files and hashlib.sha256(files[name]).hexdigest() != digest:
                raise _damaged(folder / names[name])
        return meta, files

    def _path(self, epoch: int) -> Path:
        return self._folder / f"{epoch:08d}"

    def _finished(self) -> List[Path]:
        """Return the folders of whole checkpoints, the newest last."""
        paths = self._folder.iterdir() if self._folder.is_dir() else ()
        return sorted((path for path in paths if path.name.isdigit()), key=_epoch_of)

    def _write(self, folder: Path, states: Dict[str, Any], meta: Dict[str, Any]) -> None:
        for name, part in self._parts.items():
            path = folder / _file_name(name, part)
            if _is_trainer(part):
                packed = pack_states(part, states[name])
                _write(path, packed.pop("states"))
                meta["trainers"][name] = packed
            else:
                part.save_parameters(str(path))
            meta["sha256"][name] = hashlib.sha256(path.read_bytes()).hexdigest()
        _write(folder / _META, json.dumps(meta, indent=1).encode())


def _size_text(folder: Path) -> str:
    return f"{sum(file.stat().st_size for file in folder.iterdir()) / 1e6:,.0f} MB are written"


def _is_trainer(part) -> bool:
    return isinstance(part, mx.gluon.Trainer)


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
                    "texts, lists or dicts")  # fmt: skip


def _write(path: Path, data: bytes) -> None:
    with files.open_named(path, "wb") as file:
        file.write(data)


def _write_through(path: Path) -> None:
    """Wait until the file or folder is on the disk."""
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
