"""The trainer: obeys the orders of core/protocol, one method per order."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import platform
import resource
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from cerebro_db.core.architecture import trees
from cerebro_db.core.errors import InvalidArgument, UndefinedObject, WrongState
from cerebro_db.core.protocol import (
    Average,
    BeginJoint,
    Describe,
    Described,
    Done,
    DropRows,
    EndJoint,
    EngineStarted,
    EngineTried,
    Evaluate,
    Evaluated,
    EvaluatedModel,
    Failure,
    FusionRehearsed,
    JointStep,
    Json,
    LoadRows,
    MergeAdapters,
    MergeMetrics,
    MetricsMerged,
    Order,
    Predict,
    Predicted,
    PredictedMore,
    PredictMore,
    Progress,
    RehearseFusion,
    Rest,
    RowsLoaded,
    StartEngine,
    StepJoint,
    Suggest,
    Suggested,
    Train,
    Trained,
    TrainedGroup,
    TryEngine,
    Wake,
)
from cerebro_db.nn import cuda, metric_states, state_file
from cerebro_db.nn.clocks import Pace
from cerebro_db.nn.engines.base import open_engine
from cerebro_db.nn.explain import as_error
from cerebro_db.nn.fit_parameters import Fit, fusion_key
from cerebro_db.nn.frozen_features import Features, row_bytes
from cerebro_db.nn.models import custom_functions
from cerebro_db.nn.orders import evaluations, merging, predictions, suggestions, training, trials
from cerebro_db.nn.orders.joint import JointVisit
from cerebro_db.nn.programs import Programs, ReadyProgram
from cerebro_db.nn.rows.data import Dataset
from cerebro_db.nn.shards.cutting import Cutting

PROGRESS_SECONDS = 0.25


class Trainer:
    """An engine, its compiled programs, and the rows that it was given."""

    def __init__(
        self,
        report: Callable[[Progress], None],
        listen: Callable[[], None],
        confinement: Sequence[str] = (),
        folders: Sequence[str] = (),
    ) -> None:
        """``folders``: in which this process may have files."""
        self._folders = list(folders)
        self._report = report
        self._listen = listen
        self._confinement = list(confinement)
        self._gpu = False
        self._opened: Programs | None = None  # once the engine is started
        self._datasets: dict[str, Dataset] = {}
        self._visits = 0
        self._predicts: Predict | None = None  # the last order, if its weights are held
        self._joint: JointVisit | None = None  # under way
        self._methods: dict[type[Order[Any]], Callable[[Any], Any]] = {
            StartEngine: self.start_engine,
            LoadRows: self.load_rows,
            DropRows: self.drop_rows,
            Describe: self.describe,
            TryEngine: self.try_engine,
            RehearseFusion: self.rehearse_fusion,
            Train: self.train,
            Average: self.average,
            BeginJoint: self.begin_joint,
            StepJoint: self.step_joint,
            EndJoint: self.end_joint,
            Evaluate: self.evaluate,
            MergeMetrics: self.merge_metrics,
            MergeAdapters: self.merge_adapters,
            Predict: self.predict,
            PredictMore: self.predict_more,
            Suggest: self.suggest,
            Rest: self.rest,
            Wake: self.wake,
        }

    def obey(self, order: Order[Any]) -> Any:
        """The answer to an order, or a Failure: an exception would end the trainer."""
        try:
            method = self._methods.get(type(order))
            if method is None:
                raise InvalidArgument(f"a trainer takes no order {order.name!r}")
            if self._opened is None and not isinstance(order, StartEngine):
                raise WrongState(f"the first order to a trainer has to be {StartEngine.name}")
            if not isinstance(order, (PredictMore, Rest, Wake)):
                self._predicts = None
            if not isinstance(order, (StepJoint, EndJoint)):
                self._joint = None
            custom_functions.learn(getattr(order, "functions", None) or ())
            return method(order)
        except Exception as error:
            return Failure.of(as_error(error))

    # -- the process -------------------------------------------------------------------------------

    def start_engine(self, order: StartEngine) -> EngineStarted:
        """Import the framework.  What it must know before its import goes into the environment."""
        if self._opened is not None:
            raise WrongState("this trainer has started its engine already")
        settings = order.settings
        self._gpu, self._memory_mb = settings.gpu is not None, settings.memory_mb
        os.environ.update(CUDA_VISIBLE_DEVICES="-1" if settings.gpu is None else str(settings.gpu))
        if self._gpu and order.compiled is not None:
            # What the driver compiles for a GPU that is newer than the framework; it takes minutes.
            os.environ["CUDA_CACHE_PATH"] = os.path.join(order.compiled, "cuda")
            os.environ["CUDA_CACHE_MAXSIZE"] = str(256 << 20)  # half of what all users' compiled programs may take
        if settings.threads is not None:
            os.environ.update(OMP_NUM_THREADS=str(settings.threads), OPENBLAS_NUM_THREADS=str(settings.threads))
        if settings.memory_limit_mb and settings.gpu is None:
            # The limit is on private writable memory, which is close to what is resident (980 against 900 MB with a
            # state of 98 MB). Above it an order fails with OutOfResources, or the process dies where a kernel of the
            # framework does not check; either way only the trainer is hit.
            limit = settings.memory_limit_mb << 20
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        engine = open_engine(
            settings.engine,
            threads=settings.threads,
            deterministic=settings.deterministic,
            compiled=order.compiled,
        )
        self._opened = Programs(engine, Features.of_settings(settings), Cutting(settings, self._listen, self._folders))
        versions = {"python": platform.python_version(), "numpy": np.__version__, **engine.versions()}
        devices, no_gpu = engine.devices(), None
        if self._gpu and all(device.startswith("CPU") for device in devices):
            no_gpu = cuda.problem() or "CUDA works, so this build of the framework does not use it"
        return EngineStarted(versions, devices, os.getpid(), self._confinement, no_gpu)

    def warm_up(self) -> None:
        """Use the engine for the first time, while the session prepares its next order."""
        with contextlib.suppress(Exception):  # the order after this meets the same error, and reports it
            self._programs.warm_up()

    def rest(self, order: Rest) -> Done:
        """Nothing to do here: the process waits for the next order, and ends if none comes (trainer_main.py)."""
        return Done()

    def wake(self, order: Wake) -> Done:
        return Done()

    # -- rows --------------------------------------------------------------------------------------

    def load_rows(self, order: LoadRows) -> RowsLoaded:
        if order.files is None:
            raise InvalidArgument("the order names no files")
        dataset = Dataset(order.layout, order.rows, order.files)
        self._datasets[order.handle] = dataset
        return RowsLoaded(dataset.rows, dataset.bytes)

    def drop_rows(self, order: DropRows) -> Done:
        self._datasets.pop(order.handle, None)
        return Done()

    # -- search ------------------------------------------------------------------------------------

    def suggest(self, order: Suggest) -> Suggested:
        return suggestions.suggested(order)

    # -- before training ---------------------------------------------------------------------------

    def describe(self, order: Describe) -> Described:
        Fit.of(order.configuration)
        ready = self._programs.described(order.configuration, order.layout, order.seed)
        with self._programs.configuration_errors():
            if order.compiles and not trees.are_grown(order.configuration["architecture"]):
                ready.program.prepare_ahead()  # each segment describes some of the configurations, and trains them all
            alike = (one for one in self._datasets.values() if one.layout == order.layout and one.rows)
            seconds = self._programs.feature_seconds(ready, next(alike, None))
        return Described(**self._description(ready, [order.configuration, *order.others], order.layout, seconds))

    def try_engine(self, order: TryEngine) -> EngineTried:
        dataset = self._with_outputs(order.handle)
        ready, build, compiling, batch = trials.try_engine(
            self._programs, order.configuration, dataset, self._gpu, self._listen
        )
        seconds = self._programs.feature_seconds(ready, dataset)
        description = self._description(ready, [order.configuration, *order.others], dataset.layout, seconds)
        return EngineTried(**description, program=ready.name, build=build, compile=compiling, batch=batch)

    def rehearse_fusion(self, order: RehearseFusion) -> FusionRehearsed:
        dataset = self._with_outputs(order.handle)
        return trials.rehearse_fusion(self._programs, order.configurations, dataset, self._listen)

    # -- training, evaluating, predicting ----------------------------------------------------------

    def train(self, order: Train) -> Trained:
        """The groups one after the other; the error of a group is its own result."""
        programs, dataset, configurations = self._programs, self._with_outputs(order.handle), order.configurations
        total = sum(training.planned_rows(group, configurations, dataset) for group in order.groups)
        before = programs.features_used()
        programs.require_resident(member.state for member in order.members)

        def report(rows: int, loss: float | None) -> None:
            self._report(Progress(rows, total, loss))

        shared = training.TrainingOrder(
            programs=programs,
            configurations=configurations,
            dataset=dataset,
            evaluated=self._with_outputs,
            pace=Pace(PROGRESS_SECONDS),
            report=report,
            listen=self._listen,
            memory_mb=self._memory_mb,
        )
        results, done, index = [], 0, 0
        for group in order.groups:
            self._visits += 1
            token = f"{os.getpid()}.{self._visits}"
            try:
                members, seconds = training.train(shared, group, index, token, done)
                results.append(TrainedGroup(members, seconds))
                done += sum(visit.rows for member in members for visit in member.visits)
            except Exception as error:
                results.append(TrainedGroup(error=Failure.of(as_error(error))))
            index += len(group.members)
        return Trained(results, resident=sorted(programs.resident), features=programs.features_used(before))

    def average(self, order: Average) -> Trained:
        self._visits += 1
        token = f"{os.getpid()}.{self._visits}"
        member, seconds = training.average(self._programs, order, self._with_outputs(order.handle), token)
        return Trained([TrainedGroup([member], seconds)], resident=sorted(self._programs.resident))

    def begin_joint(self, order: BeginJoint) -> JointStep:
        pace = Pace(PROGRESS_SECONDS)

        def report(rows: int, total: int) -> None:
            if order.place == 0 and pace.due():
                self._report(Progress(rows, total))

        self._programs.require_resident([order.member.state])
        begun = JointVisit(order, self._programs, self._with_outputs(order.handle), report, self._listen)
        step = begun.begin()
        self._joint = begun
        return step

    def step_joint(self, order: StepJoint) -> JointStep:
        return self._joint_visit().step(order)

    def end_joint(self, order: EndJoint) -> Trained:
        joint, self._joint = self._joint_visit(), None
        self._visits += 1
        member, seconds = joint.end(order, f"{os.getpid()}.{self._visits}")
        return Trained([TrainedGroup([member], seconds)], resident=sorted(self._programs.resident))

    def _joint_visit(self) -> JointVisit:
        if self._joint is None:
            raise WrongState("no joint visit is under way", hint="It is to begin again.")
        return self._joint

    def evaluate(self, order: Evaluate) -> Evaluated:
        """The models one after the other; the error of a model is its own result."""
        programs, dataset = self._programs, self._with_outputs(order.handle)
        programs.require_resident(model.state for model in order.models)
        results, before = [], programs.features_used()
        for model in order.models:
            try:
                configuration = order.configurations[model.configuration]
                results.append(evaluations.evaluate(programs, model, configuration, dataset, self._listen))
            except Exception as error:
                results.append(EvaluatedModel(error=Failure.of(as_error(error))))
        return Evaluated(results, resident=sorted(programs.resident), features=programs.features_used(before))

    def merge_metrics(self, order: MergeMetrics) -> MetricsMerged:
        dataset = self._with_outputs(order.handle)
        program = self._programs.ready(order.configuration, dataset.layout, rows=dataset).program
        with self._programs.configuration_errors():
            return MetricsMerged(program.metric_values(metric_states.merged(order.states)))

    def merge_adapters(self, order: MergeAdapters) -> Done:
        with self._programs.configuration_errors():
            merging.merge(order, self._listen)
        return Done()

    def predict(self, order: Predict) -> Predicted:
        if order.handle is not None:
            dataset = self._dataset(order.handle)
        else:
            assert order.inputs is not None and order.files is not None
            layout = {"inputs": [asdict(column) for column in order.inputs], "outputs": []}
            dataset = Dataset(layout, order.rows, order.files, packed=False)
        answer = predictions.predict(self._programs, order, dataset, self._listen)
        if answer.holds and order.inputs is not None:
            self._predicts = replace(order, state=replace(order.state, path=None))
        return answer

    def predict_more(self, order: PredictMore) -> PredictedMore:
        last = self._predicts
        if last is None:
            raise WrongState("the trainer holds the weights of no prediction")
        assert last.inputs is not None
        if len(order.values) != len(last.inputs):
            raise InvalidArgument(f"a model of {len(last.inputs)} inputs cannot predict rows of {len(order.values)}")
        layout = {"inputs": [asdict(column) for column in last.inputs], "outputs": []}
        values = {one.name: base64.b64decode(its) for one, its in zip(last.inputs, order.values)}
        return predictions.predict_more(
            self._programs, last, Dataset(layout, order.rows, values, packed=False), self._listen
        )

    # -- parts -------------------------------------------------------------------------------------

    def _description(
        self, ready: ReadyProgram, configurations: Sequence[Json], layout: Json | None, feature_seconds: float
    ) -> dict[str, Any]:
        """The fields of Described; the first configuration is that of the program."""
        cut = ready.program.cut
        keys = [fusion_key(each, layout) for each in configurations]
        return {
            "parameters": ready.program.parameters,
            "state_bytes": ready.state_bytes,
            "inputs": ready.program.inputs,
            "outputs": ready.program.outputs,
            "fusion_keys": keys if ready.program.fusion and ready.fuses else [None] * len(keys),
            "frozen_layers": 0 if cut is None else cut.layers,
            "feature_bytes": 0 if cut is None else row_bytes(ready.program),
            "feature_seconds": feature_seconds,
            "features": "" if cut is None else hashlib.sha256(ready.program.features_key.encode()).hexdigest()[:16],
            "frozen_bytes": state_file.frozen_bytes(ready.program),
            **self._programs.memory(ready, configurations[0]),
        }

    @property
    def _programs(self) -> Programs:
        assert self._opened is not None
        return self._opened

    def _dataset(self, handle: str) -> Dataset:
        if handle not in self._datasets:
            raise UndefinedObject(f"the trainer has no rows of {handle!r}")
        return self._datasets[handle]

    def _with_outputs(self, handle: str) -> Dataset:
        dataset = self._dataset(handle)
        if not dataset.outputs:
            raise WrongState(f"the rows of {handle!r} have no outputs to compare with")
        return dataset
