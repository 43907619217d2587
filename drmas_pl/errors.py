"""Errors of the library.

::

    DrMasError
    ├── ConfigError        a setting is unknown, contradictory or cannot be satisfied
    ├── DataError          a task file is missing, unreadable or mistyped
    ├── EnvironmentFault   an environment, grader or tool failed while a trajectory was played
    │   ├── ContractError  a method of an environment, team or role returned or raised what it must not
    │   ├── RetrievalError the retriever failed (which is not the same as finding nothing)
    │   │   └── RetrieverUnavailable it did not answer at all, so that asking again for less is useless
    │   └── SandboxError   a sandbox failed (whatever a program does in it is a result)
    ├── EngineError        generation failed or was refused
    │   └── ServerNotReplaced a server was lost, and its weights are not there any more
    ├── LifecycleError     a worker group was used in the wrong state
    ├── GroupLost          a process of a worker group died or did not answer in time
    ├── BatchError         an invariant at the batch border does not hold
    ├── CheckpointError    a checkpoint is missing, damaged or does not fit
    ├── StorageError       a file of a run cannot be written: the disk is full, or the folder is not ours
    │   └── FolderInUse    another process writes into the run folder
    ├── OutOfMemory        a part of a run needs more memory than there is
    ├── CheckFailed        an environment, team or engine does not keep its contract
    └── TrainingStopped    a guard rail ended the run (too many failures, no signal, non-finite gradients)
        └── NonFiniteWeights weights hold NaN or infinity, which is never saved

Callers' mistakes in arguments raise ``ValueError`` or ``TypeError``; the tree above is for conditions met at run time.
"""

from __future__ import annotations


class DrMasError(Exception):
    """Base of every error the library raises at run time."""


class ConfigError(DrMasError, ValueError):
    """A setting is unknown, contradictory or cannot be satisfied."""


class DataError(DrMasError):
    """A task file is missing, unreadable or mistyped."""


class EnvironmentFault(DrMasError):
    """An environment, grader or tool failed; the trajectory is recorded as failed and never rewarded."""


class ContractError(EnvironmentFault):
    """A method of an environment, team or role returned or raised something that its contract does not allow."""


class RetrievalError(EnvironmentFault):
    """The retriever failed; its message must not name hosts or addresses, since models may read it."""


class RetrieverUnavailable(RetrievalError):
    """The retriever did not answer at all: it is down, too slow, or was found to be so a moment ago."""


class SandboxError(EnvironmentFault):
    """A sandbox did not start, did not answer or is closed; never the fault of a program in it."""


class EngineError(DrMasError):
    """Generation failed or was refused."""


class ServerNotReplaced(EngineError):
    """A server was lost whose weights the trainer has moved on from; the next weights bring another one."""


class LifecycleError(DrMasError):
    """A worker group was asked for a transition that its state does not allow."""


class GroupLost(DrMasError):
    """A process of a worker group died or did not answer in time; its group has to be started again."""


class BatchError(DrMasError):
    """An invariant at the border between rollout and update does not hold."""


class CheckpointError(DrMasError):
    """A checkpoint is missing, damaged or does not fit the run."""


class StorageError(DrMasError):
    """A file of a run cannot be written."""


class FolderInUse(StorageError):
    """Another process writes into the run folder, or may do so."""


class OutOfMemory(DrMasError):
    """A part of a run needs more memory than there is; its message names the settings that lower it."""


class CheckFailed(DrMasError, AssertionError):
    """A conformance suite found that an environment, team or engine does not keep its contract."""


class TrainingStopped(DrMasError):
    """A guard rail ended the run."""


class NonFiniteWeights(TrainingStopped):
    """Weights hold NaN or infinity; checkpoints that were written before are whole."""
