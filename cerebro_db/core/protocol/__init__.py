"""The protocol between driver, segment and trainer: every order and answer is a dataclass, and is encoded here alone.

The driver sends an order to a segment as the text argument of ``_work``.  The segment obeys the order itself, or adds
what only the segment may say (paths, the source of custom functions) and passes the order on to a trainer, as a frame
of ``core/trainers/frames.py``.  The reply to an order is ``{"ok": ANSWER}`` or ``{"error": FAILURE}``; before it a
trainer may send ``{"progress": PROGRESS}``.  docs/reference/protocol.md lists all orders; the command
``python -m cerebro_db.core.protocol`` prints that page.
"""

# ruff: noqa: F401

from __future__ import annotations

from .answers import (
    Described,
    Done,
    EngineStarted,
    EngineTried,
    Evaluated,
    EvaluatedModel,
    Failure,
    FeaturesUsed,
    FrozenPart,
    FusionRehearsed,
    Inspected,
    JointStep,
    Json,
    MetricsMerged,
    MetricStates,
    OutgoingState,
    Predicted,
    PredictedMore,
    PredictedOutput,
    Progress,
    RowsLoaded,
    ServerFacts,
    Suggested,
    Trained,
    TrainedGroup,
    TrainedMember,
    TrainedVisit,
    WorkerOpened,
)
from .messages import (
    PROGRESS,
    decode,
    decode_opened,
    decode_reply,
    decode_settings,
    encode,
    encode_answer,
    encode_opened,
    encode_settings,
    from_json,
    order_from_driver,
    progress_frame,
    progress_in,
    progress_notice,
    reply,
    reply_json,
    reply_of,
    to_json,
)
from .orders import (
    LONGEST_REST,
    MOST_SUGGESTIONS,
    ORDERS,
    Average,
    Begin,
    BeginJoint,
    BeginPrediction,
    Collected,
    CollectResult,
    Computation,
    Describe,
    DropRows,
    DropStates,
    EndJoint,
    EndPrediction,
    Evaluate,
    Inspect,
    KeepEngines,
    LoadRows,
    MergeAdapters,
    MergeMetrics,
    Order,
    Predict,
    PredictMore,
    RehearseFusion,
    Rest,
    Route,
    StartEngine,
    StepJoint,
    Suggest,
    Train,
    TryEngine,
    Wake,
)
from .parts import (
    MOST_BACKGROUND,
    MOST_REPEATS,
    BestClasses,
    Calibrated,
    CustomFunction,
    EvaluationRows,
    Exchange,
    Explanation,
    Group,
    InputElements,
    Member,
    MemberVisit,
    ModelReplica,
    ModelState,
    Origin,
    PredictionInput,
    Quantiles,
    RowPortion,
    RowsBeside,
    Span,
    StateRef,
    TrainerOptions,
    TrainerSettings,
)

# Bytes of a model's state per row of its state table. A row of this size stays in one piece in its page: 100 MB take
# half the time to store that rows of 256 kB take, which PostgreSQL cuts up and indexes. (Larger rows still are.)
STATE_ROW = 8096


def frozen_name(sha256: str) -> str:
    """The name under which ``cerebro_internal._state_in`` receives a frozen part."""
    return f"frozen part {sha256}"
